"""The process of a driver: it runs pipelines as its daemon orders, and ends when that is gone, after their epochs.

    python -m onefold.daemon.hosting FD LOGS NAME...

is the host that forks it. FD is the host's end of `control`, LOGS is json or text, and the names are those of its
pipelines, for who looks at the processes of the machine. A host is started by exec, so that nothing of the daemon's is
in it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from onefold.core import ConfigError, OnefoldError, Retriable
from onefold.core.extras import naming_extras
from onefold.daemon.hosting.host_process import SIGNALS, forked_driver
from onefold.daemon.hosting.identity import changed
from onefold.daemon.hosting.log_tail import LogTail
from onefold.daemon.hosting.messages import Channel, Failure, Order, Report
from onefold.daemon.hosting.works import EngineWork, SparkWork, Work, drawing_of, meaning
from onefold.pipeline import Engine, read
from onefold.store.drivers import hold
from onefold.store.job.logs import logged_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT_S = 0.2
_FLOWING_S = 1.0
_GRACE_S = 5.0
_TELL_S = 1.0

log = logging.getLogger("onefold")


class DriverProcess:
    """The main thread starts what is to be run, another one obeys orders and reports."""

    def __init__(self, connection: socket.socket, title: str, tail: LogTail) -> None:
        self._channel = Channel(connection, Order)
        self._title, self._tail = title, tail
        self._starts: SimpleQueue[Order | None] = SimpleQueue()
        self._ends: SimpleQueue[None] = SimpleQueue()  # a signal's handler may put something into it
        self._works: dict[int, Work] = {}
        self._drained: set[int] = set()  # as the daemon ordered
        self._is_ending = False
        self._reported: dict[int, Report] = {}
        self._drawn: set[int] = set()
        self._flowing_s = 0.0  # when that is told next
        self._reporting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._spark: SparkSession | None = None
        self._at_rest = threading.Event()

    def run(self) -> None:
        """Until the daemon is gone, or has let go of it."""
        obeying = threading.Thread(target=self._obey, name="onefold-orders", daemon=True)
        obeying.start()
        threading.Thread(target=self._end_when_asked, name="onefold-end", daemon=True).start()
        with ExitStack() as opened:
            opened.callback(obeying.join)
            opened.callback(self._channel.close)
            opened.callback(self.end)
            opened.callback(self._at_rest.set)
            while (order := self._starts.get()) is not None:
                with logged_as(pipeline=order.name):
                    self._start(order, opened)
            for thread in self._threads:
                thread.join()

    def _start(self, order: Order, opened: ExitStack) -> None:
        try:
            with naming_extras():
                work = self._works.get(order.work) or self._made(order, opened)
        except (Exception, SystemExit) as error:
            self._send(Report(work=order.work, has_ended=True, failure=Failure.of(meaning(order.name, error))))
            return
        self._works[order.work] = work
        if self._is_ending or order.work in self._drained:  # which came before it was there
            work.drain()
        if isinstance(work, EngineWork):  # it has signals, which are the main thread's
            self._live(order, work)
            return
        thread = threading.Thread(target=self._live, args=(order, work), name=f"onefold-{order.name}")
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def _made(self, order: Order, opened: ExitStack) -> Work:
        with _may_pass_of_what_has_run(order):
            pipeline = read(order.pipeline)
        if parts := changed(pipeline, order.parts):
            raise ConfigError(
                "pipeline-changed",
                f"{order.pipeline} has another {' and another '.join(parts)} than when this daemon was started, which"
                " shows what it read then: start the daemon anew",
            )
        if isinstance(pipeline.runtime, Engine):
            return EngineWork(pipeline, order.is_paused)
        if self._spark is None:
            with _may_pass_of_what_has_run(order):  # a JVM that is killed while it starts looks like one that cannot
                self._spark = opened.enter_context(pipeline.spark.session_for(f"onefold {self._title}", "run"))
        return SparkWork(pipeline, order.is_paused, self._spark)

    def _live(self, order: Order, work: Work) -> None:
        failure: OnefoldError | None = None
        with logged_as(pipeline=order.name):
            try:
                with naming_extras():
                    work.run()
                if work.was_drained and order.work not in self._drained:
                    raise Retriable(
                        "host-stopped",
                        f"the process that ran pipeline {order.name!r} was asked to end, by a signal and not by its"
                        " daemon, and has ended after a complete epoch: nothing is lost",
                    )
            except (Exception, SystemExit) as error:  # by which a thread would end in silence
                failure = meaning(order.name, error)
        is_last = isinstance(work, EngineWork) or (failure is not None and self._has_lost_spark(failure))
        said = None if failure is None else Failure.of(failure)
        self._tell(order.work, work, has_ended=True, failure=said, is_last=is_last)
        if is_last:
            self._starts.put(None)

    def _has_lost_spark(self, failure: OnefoldError) -> bool:
        """Whether no query can start in this process any more."""
        from onefold.spark.errors.failures import is_stopped

        return failure.code == "jvm-gone" or (self._spark is not None and is_stopped(self._spark))

    def _obey(self) -> None:
        while (orders := self._channel.receive(_REPORT_S)) is not None:
            for order in orders:
                self._do(order)
            for number, work in list(self._works.items()):
                if isinstance(work, EngineWork):
                    work.look()
                try:
                    self._tell(number, work)
                except Exception:  # orders are obeyed all the same
                    log.exception("where pipeline %r stands could not be told", work.pipeline.name)
        self.end()

    def _tell(self, number: int, work: Work, **ended: Any) -> None:
        """Where it stands, if that has changed; and what flows in it, once a second and at its end."""
        with self._reporting:
            report = Report(work=number, status=work.status, **ended)
            more: dict[str, Any] = {"finished": work.finished(), "lines": self._tail.take(work.pipeline.name)}
            if number not in self._drawn and (graph := work.graph) is not None:
                self._drawn.add(number)
                more["drawing"] = drawing_of(graph)
            if ended or time.monotonic() >= self._flowing_s:
                self._flowing_s = time.monotonic() + _FLOWING_S
                more["flowing"] = work.flowing()
            if any(more.values()) or report != self._reported.get(number):
                self._reported[number] = report
                self._send(report.model_copy(update=more))

    def _do(self, order: Order) -> None:
        if order.do == "start":
            self._starts.put(order)
            return
        if order.do == "drain":
            self._drained.add(order.work)
        work = self._works.get(order.work)
        if work is None:
            return  # it was not made yet, or could not be
        try:
            match order.do:
                case "pause" | "resume":
                    work.hold(order.do == "pause")
                case "drain":
                    work.drain()
                case "close":
                    del self._works[order.work]
                    self._reported.pop(order.work, None)
                    self._drawn.discard(order.work)
                    self._drained.discard(order.work)
                    if isinstance(work, SparkWork):
                        work.close()
        except Exception as error:
            log.error("pipeline %r: %s failed: %s", order.name, order.do, meaning(order.name, error))

    def _send(self, report: Report) -> None:
        with suppress(OSError):  # the daemon is gone: nobody listens
            self._channel.send(report)

    def end(self) -> None:
        """After the epochs that are run: the daemon is gone, or has let go of it, or a signal came. Takes no lock: a
        signal's handler would wait for the thread that it has interrupted."""
        self._ends.put(None)

    def _end_when_asked(self) -> None:
        self._ends.get()
        self._is_ending = True
        self._starts.put(None)
        works = list(self._works.values())
        for work in works:
            work.drain()
        within_s = max((work.pipeline.stop_within_s for work in works), default=0.0) + _GRACE_S
        if not self._at_rest.wait(within_s):
            _exit("not at rest in time (stop_within_s): the process ends, and the next start resolves what it began")


@contextmanager
def _may_pass_of_what_has_run(order: Order) -> Iterator[None]:
    """Raises Retriable for what is wrong now of a pipeline that has run: somebody may be writing its file."""
    try:
        yield
    except ConfigError as error:
        if not order.goes_on:
            raise
        raise error.retyped(Retriable) from error


def _exit(because: str) -> None:
    """At once, also where nobody reads what is logged, so that this takes for ever."""
    telling = threading.Thread(target=log.error, args=(because,), daemon=True)
    telling.start()
    telling.join(_TELL_S)
    os._exit(Retriable.exit_code)


def _exit_late() -> None:
    time.sleep(_GRACE_S)
    waited_for = [
        each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()
    ]
    _exit(
        f"the process has done its work and ends, without waiting for what a module of a flow has begun: {waited_for}"
    )


def main() -> None:
    number, logs, *names = sys.argv[1:]
    if logs == "json":
        from onefold.daemon.hosting.logs import log_as_json as show
    else:
        from onefold.spark.errors.exits import show_progress

        show = partial(show_progress, is_alone=False)
    hold()
    connection = forked_driver(socket.socket(fileno=int(number)))
    show()
    tail = LogTail(names)
    logging.getLogger().addHandler(tail)
    driver = DriverProcess(connection, " ".join(names), tail)
    for signalled in SIGNALS:
        signal.signal(signalled, lambda _number, _frame: driver.end())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    driver.run()
    threading.Thread(target=_exit_late, name="onefold-exit", daemon=True).start()

"""A daemon's hosts: one for each pipeline of the engine, and one for all that share a Spark session.

A host is started when a pipeline is to be run and there is none, and again where it was lost; its drivers, one after
the other, run the pipeline. They end with the daemon: where that was killed, after the epochs that are run.
"""

from __future__ import annotations

import logging
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from onefold.core import OnefoldError, OutOfResources, Retriable
from onefold.core.values.names import signal_name
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.host_process import HostProcess, modules_of
from onefold.daemon.hosting.identity import identity
from onefold.daemon.hosting.log_tail import LogTail
from onefold.daemon.hosting.messages import Channel, Do, LogLine, Order, Report, Status, Totals
from onefold.daemon.hosting.traffic_rates import TrafficRates
from onefold.pipeline import Engine, Pipeline

_END_S = 30.0  # for a host whose pipelines are at rest; a session of Spark takes a while to close
_EXIT_S = 1.0  # for a driver that has said its last word: its host forks no other before
_NUMBERS = count(1)

log = logging.getLogger("onefold")


class Hosts:
    """Makes what runs each of these pipelines. `logs` is how hosts log: json or text."""

    def __init__(self, pipelines: Sequence[Pipeline], logs: str) -> None:
        self._logs = logs
        self._members: dict[object, list[Pipeline]] = {}  # by what they share
        for pipeline in pipelines:
            self._members.setdefault(_shared(pipeline), []).append(pipeline)
        self._hosts: dict[object, HostProcess] = {}
        self._left: list[HostProcess] = []  # that others have replaced, while their processes end
        self._drivers: dict[object, _Driver] = {}  # the last of each host
        self.traffic: dict[str, TrafficRates] = {}  # this and the next: by the pipelines' names
        self.epochs: dict[str, EpochTimes] = {}
        self.tail = LogTail()  # a handler of what this process logs
        self._starting = threading.Lock()

    def __call__(self, pipeline: Pipeline) -> Hosted:
        return Hosted(pipeline, self)

    def of(self, pipeline: Pipeline) -> _Driver:
        """The one that runs this pipeline, which is started where there is none. Raises OutOfResources where it cannot
        be."""
        key = _shared(pipeline)
        members = self._members[key]
        names = [each.name for each in members]
        driver = self._drivers.get(key)
        if driver is not None and driver.is_over:
            driver.wait(_EXIT_S)
        with self._starting:
            driver = self._drivers.get(key)
            if driver is None or driver.is_over:
                with _out_of_resources(names):
                    host = self._hosts.get(key)
                    if host is None or host.is_gone or (driver is not None and not driver.has_ended):
                        host = self._hosts[key] = self._instead_of(host, names)
                    driver = self._drivers[key] = _Driver(names, host, modules_of(members))
            return driver

    def _instead_of(self, host: HostProcess | None, names: Sequence[str]) -> HostProcess:
        if host is not None:
            host.close()
            self._left.append(host)
        self._left = [each for each in self._left if not each.has_ended]
        return HostProcess(names, self._logs)

    def close(self) -> None:
        """All end: with their pipelines at rest, in good order."""
        for driver in list(self._drivers.values()):
            driver.close()
        until_s = time.monotonic() + _END_S
        for host in list(self._hosts.values()):
            host.close()
            with suppress(subprocess.TimeoutExpired):
                host.wait(max(0.0, until_s - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """All that are left end now, with whatever they started. Also from a signal's handler."""
        for host in [*self._hosts.values(), *self._left]:
            host.kill()


class Hosted:
    """A pipeline that is run in a host, one run after the other. One thread calls `run`, any the others."""

    def __init__(self, pipeline: Pipeline, hosts: Hosts) -> None:
        self.traffic = hosts.traffic.setdefault(pipeline.name, TrafficRates())
        self.epochs = hosts.epochs.setdefault(pipeline.name, EpochTimes())
        self._pipeline, self._hosts, self._number = pipeline, hosts, next(_NUMBERS)
        self._parts = identity(pipeline)
        self._driver: _Driver | None = None
        # What other hosts have counted, and what this one says: in one piece, for another thread that adds them up.
        self._stands = Totals(), Status()
        self._started_before_s: float | None = None
        self._on_start: Callable[[], None] | None = None  # of the run that goes on, before it could start
        self._ends: SimpleQueue[OnefoldError | None] = SimpleQueue()
        self._is_draining = False

    @property
    def status(self) -> Status:
        return self._stands[1]

    @property
    def totals(self) -> Totals:
        before, status = self._stands
        return before + status.totals

    @property
    def memory_bytes(self) -> int | None:
        """Resident in its driver; None without one."""
        return None if self._driver is None else self._driver.memory_bytes

    @property
    def lines(self) -> Sequence[LogLine]:
        return self._hosts.tail.of(self._pipeline.name)

    def run(self, on_start: Callable[[], None], is_paused: bool) -> None:
        """Until it has ended by itself, or was drained. `on_start` is called once it runs. Raises the error that ended
        it."""
        driver = self._hosts.of(self._pipeline)
        if driver is not self._driver:
            self._stands = self.totals, _known(Status(), self.status)
            self._driver = driver
        self._started_before_s = self.status.started_at_s
        self._on_start = on_start
        start = {"parts": self._parts, "goes_on": self.status.recovered is not None, "is_paused": is_paused}
        driver.start(self, self._order("start").model_copy(update=start))
        if self._is_draining:
            self._send("drain")
        if (error := self._ends.get()) is not None:
            raise error

    def pause(self) -> None:
        self._send("pause")

    def resume(self) -> None:
        self._send("resume")

    def drain(self) -> None:
        """Have it end after its epoch; returns at once."""
        self._is_draining = True
        self._send("drain")

    def close(self) -> None:
        """It is not run again."""
        if self._driver is None:
            return
        if isinstance(self._pipeline.runtime, Engine):
            self._driver.close()
        else:
            self._send("close")

    def report(self, report: Report) -> None:
        if report.drawing is not None:
            self.traffic.draw(report.drawing)
        if report.flowing is not None:
            self.traffic.take(report.flowing)
        if report.lines:
            self._hosts.tail.add(self._pipeline.name, report.lines)
        if report.finished:
            self.epochs.take(report.finished)
        before, earlier = self._stands
        self._stands = before, _known(report.status, earlier)
        has_started = report.status.started_at_s not in (None, self._started_before_s)
        if has_started and (on_start := self._on_start) is not None:
            self._on_start = None
            on_start()
        if report.has_ended:
            self._on_start = None
            self.traffic.end()
            self._ends.put(None if report.failure is None else report.failure.error())

    def lost(self, error: Retriable) -> None:
        """Its driver has ended, and it was run."""
        self._on_start = None
        self.traffic.end()
        self._ends.put(error)

    def _send(self, do: Do) -> None:
        if self._driver is not None:
            self._driver.send(self._order(do))

    def _order(self, do: Do) -> Order:
        return Order(do=do, work=self._number, pipeline=self._pipeline.named, name=self._pipeline.name)


def _known(now: Status, before: Status) -> Status:
    """With what was found before, until this start has found, or written, anything."""
    known = {name: getattr(now, name) or getattr(before, name) for name in ("recovered", "progress_at_s", "gave_up")}
    return now.model_copy(update=known)


class _Driver:
    def __init__(self, names: Sequence[str], host: HostProcess, modules: Sequence[str]) -> None:
        self.is_over = False  # it takes no start any more
        self._names, self._host = names, host
        self._running: dict[int, Hosted] = {}
        self._changing = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._channel = Channel(self._socket, Report)
        with ExitStack() as undoing:
            undoing.callback(self._socket.close)
            with theirs:
                self._process = host.fork(modules, theirs)
            undoing.callback(host.kill)
            threading.Thread(target=self._await_end, name="onefold-host", daemon=True).start()
            threading.Thread(target=self._listen, name="onefold-reports", daemon=True).start()
            undoing.pop_all()

    @property
    def memory_bytes(self) -> int | None:
        return None if self.has_ended else resident_bytes(self._process.pid)  # its id may be another process's by now

    def start(self, hosted: Hosted, order: Order) -> None:
        with self._changing:
            is_over = self.is_over
            if not is_over:
                self._running[order.work] = hosted
        if is_over:
            self._process.wait(_END_S)
            hosted.lost(self._lost())
        else:
            self.send(order)

    def send(self, order: Order) -> None:
        with suppress(OSError):  # it is gone, which `_listen` notices
            self._channel.send(order)

    @property
    def has_ended(self) -> bool:
        return self._process.status is not None

    def wait(self, within_s: float) -> None:
        self._process.wait(within_s)

    def close(self) -> None:
        """It ends, and its host."""
        self.is_over = True
        self._channel.close()
        self._host.close()

    def _await_end(self) -> None:
        """What it forked may hold its socket open for a while."""
        self._process.await_end()
        self._channel.close()

    def _listen(self) -> None:
        try:
            while (reports := self._channel.receive()) is not None:
                for report in reports:
                    self._take(report)
        except Exception:  # what it runs would be shown as it was, for ever
            log.exception("the process that runs %s is not understood, and ends", ", ".join(self._names))
            self._channel.close()
        with self._changing:
            self.is_over = True
            lost = list(self._running.values())
            self._running.clear()
        self._process.wait(_END_S)
        if not self.has_ended:
            log.warning("the process that ran %s does not end, and is killed", ", ".join(self._names))
            self._host.kill()
            self._process.wait()
        for hosted in lost:
            hosted.lost(self._lost())
        self._socket.close()

    def _take(self, report: Report) -> None:
        with self._changing:
            self.is_over = self.is_over or report.is_last
            hosted = self._running.get(report.work)  # what it says of an earlier run is of no use
            if report.has_ended:
                self._running.pop(report.work, None)
        if hosted is not None:
            hosted.report(report)

    def _lost(self) -> Retriable:
        status = self._process.status
        how = "is gone" if status is None else f"has ended with status {status}"
        if status is not None and status < 0:
            how = f"was ended by signal {signal_name(-status)}"
        return Retriable(
            "host-lost",
            f"the process that runs {', '.join(self._names)} {how}, in the middle of its work. The next start resolves"
            " what it has begun",
        )


def resident_bytes(pid: int) -> int | None:
    """None where the process has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return None


@contextmanager
def _out_of_resources(names: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # of a thread that cannot be started
        raise OutOfResources(
            "host-not-started",
            f"the process that is to run {', '.join(names)} cannot be started:"
            f" {getattr(error, 'strerror', None) or error}",
        ) from error


def _shared(pipeline: Pipeline) -> object:
    """What the pipelines of one host have in common."""
    if isinstance(pipeline.runtime, Engine):
        return pipeline.name
    return pipeline.runtime.master, tuple(sorted(pipeline.runtime.settings.items()))

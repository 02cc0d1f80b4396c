"""One run in this process, shown by the API from its start to its end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onefold.core import InDoubt, OnefoldError, Retriable, Terminal
from onefold.core.errors import InternalError
from onefold.core.values.plain import plain
from onefold.daemon.access.proof import PRIVATELY
from onefold.daemon.api.listening import Listening
from onefold.daemon.api.serving import answering
from onefold.daemon.control import Control
from onefold.daemon.hosting.epoch_times import EpochTimes
from onefold.daemon.hosting.hosts import resident_bytes
from onefold.daemon.hosting.log_tail import LogTail
from onefold.daemon.hosting.messages import LogLine, Status, Totals
from onefold.daemon.hosting.traffic_rates import TrafficRates
from onefold.daemon.hosting.works import EngineWork, SparkWork, Work, drawing_of
from onefold.pipeline import Engine, Pipeline

if TYPE_CHECKING:
    from onefold.core.protocol.epoch import Outcome
    from onefold.engine import Progress
    from onefold.engine.driver.flow_run import FlowRun
    from onefold.flow import Flow

_LOOK_S = 0.2
_FLOWING_S = 1.0
T = TypeVar("T")
OnOutcome: TypeAlias = "Callable[[Outcome], None]"
OnOpened: TypeAlias = "Callable[[FlowRun], None]"
Here: TypeAlias = Callable[[OnOutcome, OnOpened], Any]  # runs it in this thread

log = logging.getLogger("onefold.daemon")


def run(pipeline: Pipeline, listen: str) -> None:
    """`Pipeline.run`, shown at HOST:PORT of this machine. Raises ConfigError where that is none, or is not free."""
    listening = Listening.on_this_machine(listen)
    if isinstance(pipeline.runtime, Engine):
        _run_engine(pipeline, listening, pipeline.run_here)
        return
    with pipeline.runtime.session_for(f"onefold {pipeline.name}", "run") as spark:
        own = _OwnRun(SparkWork(pipeline, is_paused=False, spark=spark))
        with _shown(own, listening):
            own.live()


def run_flow(
    flow: Flow,
    listen: str,
    *,
    checkpoint: str | Path,
    store: str | None = None,
    on_outcome: OnOutcome | None = None,
    on_opened: OnOpened | None = None,
    **settings: Any,
) -> Progress:
    """`Flow.run`, shown as `run` does it. `settings` are those of `onefold.engine.run`."""
    from onefold.engine.driver.opening import store_url

    listening = Listening.on_this_machine(listen)
    store = store_url(flow.name, flow.sinks(), str(checkpoint), store)

    def here(noted: OnOutcome, opened: OnOpened) -> Progress:
        settings["on_outcome"], settings["on_opened"] = _both(noted, on_outcome), _both(opened, on_opened)
        progress: Progress = flow.run(checkpoint=str(checkpoint), store=store, **settings)
        return progress

    runtime = Engine(mechanism=settings.get("mechanism", "barriers"))
    pipeline = Pipeline(flow, runtime=runtime, checkpoint=str(checkpoint), store=store)
    progress: Progress = _run_engine(pipeline, listening, here)
    return progress


def _run_engine(pipeline: Pipeline, listening: Listening, here: Here) -> Any:
    """The API answers from when the flow is about to start: what forks its workers is forked before, and has nothing of
    the API's."""
    with ExitStack() as opened:
        work = _EngineWork(pipeline, here, lambda: opened.enter_context(_shown(own, listening)))
        own = _OwnRun(work)
        own.live()
        return work.result


class _EngineWork(EngineWork):
    """Runs it by `here`, and shows it as soon as it is open."""

    def __init__(self, pipeline: Pipeline, here: Here, show: Callable[[], None]) -> None:
        super().__init__(pipeline, is_paused=False)
        self._here, self._show = here, show
        self.result: Any = None

    def run(self) -> None:
        self.result = self._here(self._note, self._opened)

    def _opened(self, flow: FlowRun) -> None:
        super()._opened(flow)
        self._show()


class _OwnRun:
    """The only run of a pipeline. The thread that asked for it runs it, those of the API ask and order."""

    def __init__(self, work: Work) -> None:
        self.traffic, self.epochs = TrafficRates(), EpochTimes()
        self.tail = LogTail([work.pipeline.name])  # a handler of what this process logs
        self.control = Control(work.pipeline, lambda _: self, can_restart=False)
        self._work = work
        self._raised: Exception | None = None
        self._on_start: Callable[[], None] | None = None  # of a start that has not succeeded yet
        self._started_before_s: float | None = None
        self._is_drawn = False
        self._flowing_s = 0.0  # when that is looked at next

    def live(self) -> None:
        """Run it to its end. Raises what ended it."""
        try:
            self.control.run.live()
        except OnefoldError:
            if self._raised is None:
                raise
        if self._raised is not None:
            raise self._raised

    @property
    def status(self) -> Status:
        return self._work.status

    @property
    def totals(self) -> Totals:
        return self._work.status.totals

    @property
    def memory_bytes(self) -> int | None:
        return resident_bytes(os.getpid())

    @property
    def lines(self) -> Sequence[LogLine]:
        return self.tail.of(self._work.pipeline.name)

    def run(self, on_start: Callable[[], None], is_paused: bool) -> None:  # noqa: ARG002 - its work knows
        self._started_before_s, self._on_start = self.status.started_at_s, on_start
        self._raised = None
        try:
            self._work.run()
        except Exception as error:
            self._raised = error
            raise self._shown(error) from error
        finally:
            self._on_start = None

    def _shown(self, error: Exception) -> OnefoldError:
        """The error as the API has it. After a Retriable or InDoubt one another run begins: as without the API, on
        Spark alone, while there is one, and not where the program has stopped the query."""
        if not isinstance(error, OnefoldError):
            return InternalError("unexpected-error", f"{type(error).__name__}: {plain(str(error))}")
        is_for_good = isinstance(self._work, EngineWork) or error.code in ("jvm-gone", "query-ended")
        return error.retyped(Terminal if is_for_good and isinstance(error, Retriable | InDoubt) else type(error))

    def pause(self) -> None:
        self._work.hold(True)

    def resume(self) -> None:
        self._work.hold(False)

    def drain(self) -> None:
        self._work.drain()

    def close(self) -> None:
        if isinstance(self._work, SparkWork):
            self._work.close()

    def look(self) -> None:
        """Where it stands, and what flows in it. Called every now and then."""
        if isinstance(self._work, EngineWork):
            self._work.look()
        self.epochs.take(self._work.finished())
        on_start = self._on_start
        if on_start is not None and self.status.started_at_s not in (None, self._started_before_s):
            self._on_start = None
            on_start()
        if not self._is_drawn and (graph := self._work.graph) is not None:
            self._is_drawn = True
            if (drawing := drawing_of(graph)) is not None:
                self.traffic.draw(drawing)
        if time.monotonic() >= self._flowing_s and (flowing := self._work.flowing()) is not None:
            self._flowing_s = time.monotonic() + _FLOWING_S
            self.traffic.take(flowing)


@contextmanager
def _shown(own: _OwnRun, listening: Listening) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            try:
                own.look()
            except Exception:  # it is run all the same
                log.exception("where pipeline %r stands could not be told", own.control.name)

    ours = logging.getLogger("onefold")  # a handler of all would be logging that the program has configured
    with answering([own.control], listening) as answers:
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"The status page: {answers.page}\n{PRIVATELY}", file=sys.stderr, flush=True)
        looking = threading.Thread(target=look, name="onefold-look", daemon=True)
        looking.start()
        ours.addHandler(own.tail)
        try:
            yield
        finally:
            ours.removeHandler(own.tail)
            over.set()
            looking.join()


def _both(first: Callable[[T], None], second: Callable[[T], None] | None) -> Callable[[T], None]:
    def call(value: T) -> None:
        first(value)
        if second is not None:
            second(value)

    return call

"""Opens a flow's run: its session with store and sinks, its workers' fleet, and what SIGTERM and Ctrl-C do."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from onefold.clients.sql.sqlite import check_whole_path
from onefold.clients.sql.url import url_of
from onefold.core.contract import Sink
from onefold.core.errors import ConfigError
from onefold.core.values.plain import shown_url
from onefold.core.values.remedies import in_words_of
from onefold.core.writing.durable_files import make_folder
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.driver.fleet import Fleet
from onefold.engine.driver.flow_run import FlowRun, RunSettings
from onefold.engine.driver.resume_point import WrittenMarker
from onefold.engine.state import LEDGER, STATE, folder_of
from onefold.engine.workers.fork_server import ForkServer
from onefold.flow.planning import check_apart
from onefold.flow.processing.mechanisms import Mechanism, has_snapshots
from onefold.store.checkpoint_store import CheckpointStore, default_store
from onefold.store.job.session import Session

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def opened(
    plan: Plan,
    fork_server: ForkServer,
    marks: Marks,
    settings: RunSettings,
    checkpoint: str,
    store: str | None,
    retain: int,
    patience_s: float,
) -> Iterator[FlowRun]:
    """A flow's run, ready to start; closed with the block. Arguments as `onefold.engine.run` has them."""
    overtakes = settings.alignment.overtakes
    with session_of(plan, checkpoint, store, retain, patience_s, overtakes) as session, ExitStack() as opened:
        fleet_of, run_of = _driver_of(plan.mechanism)
        fleet = fleet_of(fork_server, plan, settings.workers, marks)
        databases = place = None
        if plan.graph.keeps_state and settings.state == "rocksdb":
            from onefold.engine.state.rocks.scratch import scratch  # needs its package

            databases = opened.enter_context(scratch())
        if plan.has_state and any(node.queryable for node in plan.graph.nodes):
            from onefold.engine.queries.place import Place  # with operators: only where they can be asked
            from onefold.engine.state.storage import Storage

            place = Place(plan.graph, Storage(checkpoint, session.name), settings.workers)
            opened.callback(place.close)
        opened.callback(fleet.end)  # before their folders go
        written = WrittenMarker(checkpoint, session.name)
        state_root = checkpoint if STATE in session.names else None
        flow = run_of(plan, session, fleet, settings, state_root, written, databases, place)
        opened.enter_context(_draining(flow.drain))
        yield flow


def _driver_of(mechanism: Mechanism) -> tuple[type[Fleet], type[FlowRun]]:
    """The driver's half of a mechanism. Where epochs go through the whole flow it is the same."""
    if has_snapshots(mechanism):
        return Fleet, FlowRun
    half = importlib.import_module(f"onefold.engine.mechanisms.{mechanism}.driver")
    return half.FLEET, half.RUN


@contextmanager
def session_of(
    plan: Plan, checkpoint: str, store: str | None, retain: int, patience_s: float, overtakes: bool = False
) -> Iterator[Session]:
    """A flow's session with its store and its sinks, of which its state is one; closed with the block. Where barriers
    overtake, or did, there is state without operators that keep some: what is in flight."""
    graph = plan.graph
    sinks: tuple[Sink, ...] = tuple(writing.sink for _, writing in graph.writings())
    url = store_url(graph.flow, sinks, checkpoint, store)
    sources = [reading.source for _, reading in graph.readings()]
    check_apart(sources, checkpoint, f"{checkpoint}/{folder_of(graph.flow)}", url)
    everyone = sinks
    if plan.has_state or overtakes or _has_state(checkpoint, graph.flow):
        from onefold.engine.state.participant import StateSink  # with snapshots and file systems: only for state

        everyone = (*sinks, StateSink(checkpoint, retain))
    late = [*graph.letters(), STATE]  # where there is none, the resume point says so
    session = Session(graph.flow, everyone, CheckpointStore(url, pipeline=graph.flow), patience_s, late)
    session.endpoints = graph.endpoints
    try:
        with in_words_of(session.remedies):
            yield session
    finally:
        session.close()


def _has_state(checkpoint: str, flow: str) -> bool:
    if "://" not in checkpoint:
        return any(Path(checkpoint, folder_of(flow)).glob(LEDGER))
    from onefold.engine.state.storage import Storage  # with file systems

    return Storage(checkpoint, flow).find(LEDGER) is not None


def store_url(flow: str, sinks: tuple[Sink, ...], checkpoint: str, store: str | None) -> str:
    """Of a flow's checkpoint store: `store`, or where it is by default."""
    url = store or next((url for sink in sinks if (url := sink.store_url())), None)
    if url is not None:
        check_whole_path("store", url_of(url, "the checkpoint store's"))
        return url
    if "://" in checkpoint:
        raise ConfigError(
            "store-missing",
            f"checkpoint={shown_url(checkpoint)!r} is no folder of this machine, and no sink is a database: name the"
            " checkpoint store's (store='postgresql+psycopg://...')",
        )
    try:
        make_folder(Path(checkpoint))
    except OSError as error:
        raise ConfigError(
            "state-storage-refused",
            f"the checkpoint folder {checkpoint} cannot be made: {error.strerror}. Name one in which this process may"
            " make folders and files",
        ) from error
    return default_store(flow, Path(checkpoint))


@contextmanager
def _draining(drain: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C drain, where this is the main thread: no other has signals. A second Ctrl-C does what it did
    before. A signal that is ignored, as Ctrl-C is in what a shell starts in the background, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def drained(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
        drain()

    before = {number: signal.getsignal(number) for number in _ENDING}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, drained)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

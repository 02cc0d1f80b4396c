"""Makes a savepoint of a flow: its state as tables, of a decided epoch. The flow may run on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from onefold.core import ConfigError, EpochRecord, Retriable
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.exporting import exported
from onefold.engine.savepoints.saved_tables import SavedTable
from onefold.engine.savepoints.savepoint import Savepoint
from onefold.engine.state import handles_of, is_flight, refuse_in_flight
from onefold.engine.state.participant import StateCommitter
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.processing.mechanisms import may_double
from onefold.operate.savepoint.making import being_made, refuse_taken
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Engine
from onefold.store.drivers import driver_of
from onefold.store.job.holding import held
from onefold.store.journal import journals
from onefold.store.savepoint_notes import MADE, note_savepoint

ATTEMPTS = 5  # the epoch may be retired before it is held


def create_of_flow(stopped: StoppedPipeline, name: str | None, folder: str) -> Savepoint:
    """Write the state of its last complete epoch to `folder`/`name`. What a flow that does not run had begun is
    finished before; one that runs does not notice, but for one without alignment, which makes an aligned epoch.

    Raises ConfigError where it has written nothing or the name is taken; where it runs without alignment, what `held`
    raises.
    """
    there, pipeline = stopped.files.of(folder), stopped.pipeline
    pipeline.check_snapshots()
    if name is not None:
        refuse_taken(there, folder, name)
    planned = plan(pipeline.graph)
    with (
        _tables(stopped, planned) as (facts, last, tables),
        being_made(there, folder, name, last.epoch) as making,
    ):
        flow = making.keep_flow(pipeline, planned, tables, journals(stopped.store, pipeline.name))
        savepoint = making.describe_pipeline(stopped.store, facts, last, last.generation, flow=flow)
    note_savepoint(stopped.store, pipeline.name, making.name, last.epoch, MADE)
    return savepoint


def _runs(stopped: StoppedPipeline, facts: StoreFacts) -> bool:
    """As far as its store tells: on another machine nobody here can tell, and it is left alone."""
    driver = driver_of(stopped.store, stopped.name, facts.generation)
    return driver is not None and driver.is_alive() is not False


@contextmanager
def _tables(stopped: StoppedPipeline, planned: Plan) -> Iterator[tuple[StoreFacts, EpochRecord, Iterator[SavedTable]]]:
    """The last complete epoch, and its state, which stays within the block."""
    if not isinstance(stopped.pipeline.runtime, Engine):
        from onefold.operate.savepoint.query_create import at_rest
        from onefold.spark.flows.moved_state import extracted  # both for pipelines on Spark alone

        with closing(stopped.session()) as session:
            facts, last, stands = at_rest(stopped, session)
            root = stopped.pipeline.checkpoint
            yield facts, last, extracted(stopped.files.spark(), root, stands.batch_id, planned)
        return
    runs = _runs(stopped, stopped.facts())
    if not runs:
        stopped.pipeline.recover()
    with _held(stopped, planned, runs) as (facts, last, handles):
        refuse_in_flight(stopped.name, handles or handles_of(last), stopped.nothing)
        of = RestoreFrom(stopped.pipeline.checkpoint, stopped.name, "", 0, handles)
        yield facts, last, exported(of, planned) if handles else iter(())


@contextmanager
def _held(
    stopped: StoppedPipeline, planned: Plan, runs: bool
) -> Iterator[tuple[StoreFacts, EpochRecord, tuple[str, ...]]]:
    """The last complete epoch, and its snapshots, which stay within the block. A flow that runs without alignment makes
    an aligned epoch, and is held while it is found out which files are of that."""
    committer = StateCommitter(Storage(stopped.pipeline.checkpoint, stopped.name))
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            facts, hold = stopped.facts(), None
            if runs and facts.complete is not None and _is_beside_its_positions(facts.complete):
                hold = stack.enter_context(held(stopped.store, stopped.name))
                facts = stopped.facts()
            last = facts.complete
            if last is None:
                raise ConfigError(
                    "savepoint-empty",
                    f"pipeline {stopped.name!r} has written nothing yet: there is nothing to make a savepoint of",
                )
            handles: tuple[str, ...] = ()
            try:
                if planned.has_state:
                    handles = stack.enter_context(committer.held(last.epoch))
                if hold is not None:
                    hold.go_on()
            except Retriable:
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            yield facts, last, handles
            return


def _is_beside_its_positions(last: EpochRecord) -> bool:
    """Whether an epoch's state may be less than its positions say, or more."""
    return any(map(is_flight, handles_of(last))) or bool(may_double(last))

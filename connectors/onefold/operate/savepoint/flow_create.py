"""Makes a savepoint of a flow: its state as tables, of a decided epoch. The flow may run on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version

import pyarrow as pa

from onefold.clients.files import FileSystem
from onefold.core import ConfigError, EpochRecord, Retriable
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.exporting import exported
from onefold.engine.savepoints.saved_tables import SavedTable, to_file
from onefold.engine.savepoints.savepoint import (
    STATE,
    CopiedFile,
    Counted,
    FlowState,
    SavedState,
    Savepoint,
    being_made,
    carried,
    refuse_taken,
)
from onefold.engine.state import folder_of
from onefold.engine.state.participant import StateCommitter
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Engine
from onefold.store.drivers import driver_of
from onefold.store.journal import journals
from onefold.store.pins import all_pins
from onefold.store.savepoint_notes import MADE, note_savepoint

__all__ = ["create_of_flow", "journals_file", "written"]

_JOURNALS = "journals.parquet"  # a name that no operator's folder has
ATTEMPTS = 5  # the epoch may be retired before it is held


def create_of_flow(stopped: StoppedPipeline, name: str | None, folder: str) -> Savepoint:
    """Write the state of its last complete epoch to `folder`/`name`. What a flow that does not run had begun is
    finished before; one that runs does not notice.

    Raises ConfigError where it has written nothing or the name is taken.
    """
    there, pipeline = stopped.files.of(folder), stopped.pipeline
    if name is not None:
        refuse_taken(there, folder, name)
    planned, runtime = plan(pipeline.graph), "engine" if isinstance(pipeline.runtime, Engine) else "spark"
    with (
        _tables(stopped, planned) as (facts, last, tables),
        being_made(there, folder, name, last.epoch) as making,
    ):
        states, files = written(there, making.partial, tables)
        journal = journals_file(there, making.partial, journals(stopped.store, pipeline.name))
        files += journal
        savepoint = Savepoint(
            name=making.name,
            made_at=making.made_at,
            pipeline=pipeline.name,
            onefold=version("onefold"),
            store_id=facts.store_id,
            generation=last.generation,
            epoch=last.epoch,
            timestamp_ms=last.timestamp_ms,
            fingerprint=last.fingerprint,
            positions=last.range.end,
            frozen=facts.frozen,
            pins=carried(all_pins(stopped.store, pipeline.name)),
            files=tuple(files),
            flow=FlowState(runtime, planned.graph.max_parallelism, states, _JOURNALS if journal else None),
        )
        making.write(savepoint)
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
    if not _runs(stopped, stopped.facts()):
        stopped.pipeline.recover()
    with _held(stopped, planned) as (facts, last, handles):
        of = RestoreFrom(stopped.pipeline.checkpoint, stopped.name, "", 0, handles)
        yield facts, last, exported(of, planned) if handles else iter(())


@contextmanager
def _held(stopped: StoppedPipeline, planned: Plan) -> Iterator[tuple[StoreFacts, EpochRecord, tuple[str, ...]]]:
    """The last complete epoch, and its snapshots, which stay within the block."""
    committer = StateCommitter(Storage(stopped.pipeline.checkpoint, stopped.name))
    for attempt in range(ATTEMPTS):
        facts = stopped.facts()
        last = facts.complete
        if last is None:
            raise ConfigError(
                "savepoint-empty",
                f"pipeline {stopped.name!r} has written nothing yet: there is nothing to make a savepoint of",
            )
        if not planned.has_state:
            yield facts, last, ()
            return
        with ExitStack() as stack:
            try:
                handles = stack.enter_context(committer.held(last.epoch))
            except Retriable:
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            yield facts, last, handles
            return


def journals_file(there: FileSystem, partial: str, texts: Sequence[tuple[str, str, str]]) -> list[CopiedFile]:
    """Of the texts of sources, by their source and name; none where there are none."""
    if not texts:
        return []
    table = pa.table([*map(list, zip(*texts, strict=True))], names=["source", "name", "text"])
    return [_file(there, partial, _JOURNALS, table)]


def written(
    there: FileSystem, partial: str, tables: Iterator[SavedTable]
) -> tuple[tuple[SavedState, ...], list[CopiedFile]]:
    """Write the files of tables. Returns the states that they are of, and the files."""
    states: dict[tuple[str, str, str], SavedState] = {}
    files = list[CopiedFile]()
    for saved in tables:
        spec = saved.spec
        of = spec.uid, spec.name, spec.kind.value
        before = states.get(of, SavedState(*of, saved.keys, 0, ()))
        path = f"{folder_of(spec.uid)}/{folder_of(spec.name)}-{spec.kind.value}-{len(before.files)}.parquet"
        files.append(_file(there, partial, path, saved.table))
        states[of] = SavedState(*of, saved.keys, before.rows + len(saved.table), (*before.files, path))
    return tuple(states.values()), files


def _file(there: FileSystem, partial: str, path: str, table: pa.Table) -> CopiedFile:
    count = Counted()
    there.write(partial, f"{STATE}/{path}", count.of(iter([to_file(table).to_pybytes()])))
    return CopiedFile(path, count.bytes, count.sha256)

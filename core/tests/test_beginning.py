"""A pipeline that begins where another one stood; the store is as it is, and the sinks are models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import CheckpointMismatch, Committable, ConfigError, EpochRecord, Fenced, Positions, Range, Sink
from onefold.core.protocol.beginning import SavepointOrigin, begin_at, take
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.core.testing import ModelTwoPhaseSink, ModelWriteThroughSink
from onefold.core.values.remedies import SPARK_FLOW
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of
from onefold.store.savepoint_notes import Restoring, check_restored, note_restored, note_restoring, restoring

ROWS = pa.record_batch({"id": ["t/0@0"]})
AT = [Positions.of({"t/0": n}) for n in range(20)]
LATER_MS = 4_000_000_000_000  # beyond this machine's clock
ORIGIN = SavepointOrigin(17, LATER_MS, AT[10], AT[3])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with closing(CheckpointStore(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        yield store


def session_of(store: CheckpointStore, *sinks: Sink) -> Session:
    return Session("p", sinks, CheckpointStore(str(store.database.url)), patience_s=0)


def begin(session: Session, again: bool = False) -> None:
    generation, store_id = session.drive(take(ORIGIN, session.names, again))
    session.drive(begin_at(ORIGIN, generation, store_id, session.names))


def epoch(session: Session, span: Range) -> EpochRecord:
    def write(record: EpochRecord) -> tuple[Committable, ...]:
        prepared = []
        for sink in session.sinks:
            writer = sink.writer(task_of(record))
            writer.write(ROWS)
            prepared.append(writer.prepare())
        return tuple(each for each in prepared if each is not None)

    request = EpochRequest(span, "q", 5, "job", session.names, session.write_through, continues=True)
    return session.run_epoch(request, write).record


def test_the_new_chain_goes_on_from_the_epoch_number_time_and_positions_of_the_other(store: CheckpointStore) -> None:
    sinks = ModelTwoPhaseSink("a"), ModelWriteThroughSink("b")
    with closing(session_of(store, *sinks)) as session:
        begin(session)
        started = session.start(Initial(AT[0], setting="earliest"))
        assert started.start == AT[3], "as in the other one, not where its own setting says"
        assert session.facts().last is not None
        session.open_sinks(ROWS.schema)
        record = epoch(session, Range(AT[10], AT[12]))
        assert (record.epoch, record.timestamp_ms) == (18, LATER_MS + 1)
        assert {entry.epoch for entry in session.ledgers().values() if entry} == {18}
        session.remedies = replace(SPARK_FLOW, directory="/srv/p.checkpoint")
        with raises(CheckpointMismatch, "batch-overlaps") as overlaps:
            epoch(session, Range(AT[9], AT[13]))
        for told in (
            "starting_offsets='ledger' (in a pipeline's file under [[sources]])",
            "Where /srv/p.checkpoint holds",
        ):
            assert told in overlaps.value.message


def test_it_begins_once_and_only_where_nothing_was_written(store: CheckpointStore) -> None:
    with closing(session_of(store, ModelTwoPhaseSink("a"))) as session:
        begin(session)
        with raises(ConfigError, "pipeline-not-new", "'a'"):
            begin(session)
        begin(session, again=True)
        session.start(None)
        session.open_sinks(ROWS.schema)
        epoch(session, Range(AT[10], AT[12]))
        with raises(ConfigError, "pipeline-not-new"):
            begin(session, again=True)


def test_a_pipeline_that_was_started_elsewhere_or_has_begun_an_epoch_is_not_new(store: CheckpointStore) -> None:
    with closing(session_of(store, ModelTwoPhaseSink("a"))) as session:
        session.start(Initial(AT[4]))
        with raises(ConfigError, "pipeline-not-new"):
            begin(session)
    with closing(session_of(store, ModelTwoPhaseSink("a"))) as session:
        generation = session.start(Initial(AT[4])).generation
        store.open_epoch(generation, EpochRequest(Range(AT[4], AT[5]), "q", 0, "job", ("a",)), 0, 1)
        with raises(ConfigError, "pipeline-not-new"):
            begin(session)


def test_a_ledger_without_the_store_that_it_is_of_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    sink = ModelTwoPhaseSink("a")
    with closing(session_of(store, sink)) as session:
        begin(session)
    with closing(CheckpointStore(f"sqlite:///{tmp_path / 'other.db'}")) as other:
        session = Session("p", [sink], other, patience_s=0)
        with raises(CheckpointMismatch, "another-store"):
            begin(session, again=True)


def test_no_start_goes_on_while_a_restore_is_not_done(store: CheckpointStore) -> None:
    saved = Restoring("s", "/savepoints/s", "digest")
    with closing(session_of(store, ModelTwoPhaseSink("a"))) as session:
        generation, _ = session.drive(take(ORIGIN, session.names))
        check_restored(store, "p")
        note_restoring(store, generation, saved)
        assert restoring(store, "p") == saved
        with raises(CheckpointMismatch, "restore-unfinished", "'s'", "'p'"):
            session.start(None)
        assert store.facts("p").generation == generation.number, "the restore is not fenced by it"
        note_restored(store, generation)
        session.start(None)
        with pytest.raises(Fenced):
            note_restoring(store, generation, saved)


def test_a_start_that_overtakes_the_note_of_a_restore_does_not_go_on(store: CheckpointStore) -> None:
    """The note came between its first look and its generation."""

    class Late(ModelTwoPhaseSink):
        notes = False

        def ledger(self) -> None:
            if self.notes:
                self.notes = False
                note_restoring(store, store.acquire("p", 0), Restoring("s", "/savepoints/s", "digest"))

    sink = Late("a")
    with closing(session_of(store, sink)) as session:
        sink.notes = True
        with raises(CheckpointMismatch, "restore-unfinished"):
            session.start(None)

"""A sink's target that was dropped, made anew or emptied, as a session finds it; the sink is a model."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import Committable, DataLoss, EpochRecord, Positions, Range
from onefold.core.findings import Target
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.core.testing import ModelTwoPhaseSink
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of

ROWS = pa.record_batch({"id": ["t/0@0"]})


class Seen(ModelTwoPhaseSink):
    """Shows whatever the test says that its server shows."""

    shows = Target("table t", True, "oid 1", "file 1")
    empty = False

    def target_now(self, pipeline: str) -> Target:
        assert pipeline == "p"
        return self.shows

    def is_empty(self, pipeline: str) -> bool:
        assert pipeline == "p"
        return self.empty


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(f"sqlite:///{tmp_path / 'store.db'}")


def start(store: CheckpointStore, sink: Seen, *, accept: bool = False, writes: bool = True) -> None:
    session = Session("p", [sink], store, patience_s=0)
    try:
        session.start(Initial(Positions.of({"t/0": 0})))
        if accept:
            session.accept_targets()
        session.check_targets()  # as Pipeline.write does, before its query starts
        session.open_sinks(ROWS.schema)
        if writes:
            epoch(session, sink)
    finally:
        session.close()


def epoch(session: Session, sink: Seen) -> None:
    def write(record: EpochRecord) -> tuple[Committable, ...]:
        writer = sink.writer(task_of(record))
        writer.write(ROWS)
        prepared = writer.prepare()
        assert prepared is not None
        return (prepared,)

    last = session.facts().last
    at = 0 if last is None else int(dict(last.range.end.items)["t/0"])
    between = Range(Positions.of({"t/0": at}), Positions.of({"t/0": at + 1}))
    session.run_epoch(EpochRequest(between, "q", at, "job", session.names, continues=at > 0), write)


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (Target("table t", is_there=False), "target-missing"),
        (Target("table t", True, "oid 2", "file 2"), "target-made-anew"),
    ],
)
def test_a_target_that_lost_its_rows_is_refused_until_the_user_accepts_it(
    store: CheckpointStore, now: Target, code: str
) -> None:
    sink = Seen("sink")
    start(store, sink)
    sink.shows = now
    for _ in range(2):
        with raises(DataLoss, code, "accept_targets=True"):
            start(store, sink)
    start(store, sink, accept=True)
    if now.is_there:
        start(store, sink)
        sink.shows = Target("table t", True, "oid 3", "file 3")
        with raises(DataLoss, "target-made-anew"):
            start(store, sink)


def test_an_emptied_target_is_said_once_and_a_rewritten_one_not_at_all(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Seen("sink")
    start(store, sink)
    sink.shows = Target("table t", True, "oid 1", "file 2")
    start(store, sink, writes=False)
    sink.empty = True
    start(store, sink, writes=False)
    assert not caplog.records, "its rows were deleted one by one, as those of a queue are"
    sink.shows = Target("table t", True, "oid 1", "file 3")
    for _ in range(2):
        start(store, sink, writes=False)
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "table t is empty, and pipeline 'p' has written at least 1 rows there" in warned.getMessage()


def test_another_target_by_the_sinks_own_settings_and_one_without_epochs_are_not_compared(
    store: CheckpointStore,
) -> None:
    sink = Seen("sink")
    start(store, sink, writes=False)
    sink.shows = Target("table t", True, "oid 2", "file 2")
    start(store, sink)
    sink.shows = Target("table of june", is_there=False)
    start(store, sink)


def test_a_target_that_an_older_onefold_has_not_noted_is_refused_only_where_it_is_missing(
    store: CheckpointStore,
) -> None:
    sink = Seen("sink")
    start(store, sink)
    with store.database.transaction() as connection:
        connection.rows("DELETE FROM onefold_pins")
    sink.shows = Target("table t", is_there=False)
    with raises(DataLoss, "target-missing"):
        start(store, sink)
    sink.shows = Target("table t", True, "oid 2", "file 2")
    start(store, sink)


def test_a_pipeline_that_begins_anew_keeps_its_generation_and_nothing_else(store: CheckpointStore) -> None:
    sink = Seen("sink")
    start(store, sink)
    generation = store.acquire("p", 0)
    store.begin_anew(generation)
    facts = store.facts("p")
    assert (facts.generation, facts.last, facts.unfinished, facts.frozen) == (generation.number, None, (), None)
    assert store.history("p") == []

"""A pipeline's life in one driver process, without Spark: the store and the sink are as they are."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import (
    BadRecord,
    CheckpointMismatch,
    Committable,
    Committer,
    ConfigError,
    Decided,
    EpochRecord,
    EpochState,
    Fenced,
    Guarantee,
    InDoubt,
    Positions,
    Range,
    Retriable,
    TaskId,
)
from onefold.core.contract import Binding
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.core.testing import ModelTwoPhaseSink, ModelWriteThroughSink
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.query import QueryLifecycle
from onefold.store.job.session import Session, task_of

SPAN = Range(Positions.of({"t/0": 0}), Positions.of({"t/0": 1}))
ROWS = pa.record_batch({"id": ["t/0@0"]})


class LosesDecisions(CheckpointStore):
    """The first one asked for goes unanswered, and may still land: `late` is what was asked."""

    late: Callable[[], Decided] | None = None
    unanswered = 0

    def decide(self, *asked: Any) -> Decided:
        if not self.unanswered:
            self.unanswered += 1
            self.late = partial(super().decide, *asked)
            raise InDoubt("commit-unanswered", "no answer")
        return super().decide(*asked)


@pytest.fixture
def store(tmp_path: Path) -> LosesDecisions:
    return LosesDecisions(f"sqlite:///{tmp_path / 'store.db'}")


def run(session: Session, sink: ModelTwoPhaseSink) -> bool:
    def write(record: EpochRecord) -> tuple[Committable, ...]:
        writer = sink.writer(task_of(record).another_attempt())
        writer.write(ROWS)
        prepared = writer.prepare()
        assert prepared is not None
        return (prepared,)

    return session.run_epoch(EpochRequest(SPAN, "q", 0, "job", session.names), write).replayed


class Hasty(ModelTwoPhaseSink):
    """What it prepares lives for a minute."""

    def guarantee(self) -> Guarantee:
        return replace(super().guarantee(), prepared_s=60)


def test_an_epoch_commits_the_sinks_whose_prepared_work_lives_shortest_first(store: LosesDecisions) -> None:
    store.unanswered = 1
    sinks = [ModelTwoPhaseSink("a"), Hasty("b"), ModelTwoPhaseSink("c"), Hasty("d")]
    session = Session("p", sinks, store, patience_s=0, letters=["d"])
    session.start(Initial(SPAN.start))
    session.open_sinks(ROWS.schema)
    assert session.names == ("b", "d", "a", "c")
    outcome = session.run_epoch(EpochRequest(SPAN, "q", 0, "job", session.names), lambda _: ())
    assert outcome.record.sinks == ("b", "d", "a", "c")
    session.close()


class Noting(ModelTwoPhaseSink):
    """Says when its committer was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class Absent(ModelTwoPhaseSink):
    def recover(self, pipeline: str) -> Committer:
        raise ConfigError("option-value", f"{pipeline} has no such destination")


def test_sinks_that_were_opened_are_closed_where_a_later_one_cannot_be(store: LosesDecisions) -> None:
    first, never = Noting("a"), Noting("c")
    with raises(ConfigError, "option-value"):
        Session("p", [first, Absent("b"), never], store, patience_s=0)
    assert (first.closed, never.closed) == (1, 0)


def test_after_a_decision_in_doubt_the_next_call_takes_over_and_the_late_one_is_fenced(
    store: LosesDecisions,
) -> None:
    sink = ModelTwoPhaseSink("sink")
    session = Session("p", [sink], store, patience_s=0)
    assert session.start(Initial(SPAN.start)).generation.number == 1
    session.open_sinks(ROWS.schema)
    with pytest.raises(InDoubt):
        run(session, sink)
    assert not run(session, sink)
    assert session.started is not None and session.started.generation.number == 2
    assert store.late is not None
    with pytest.raises(Fenced):
        store.late()
    assert sink.shown() == {"t/0@0": 1} and not sink.prepared
    session.close()


@pytest.mark.parametrize("ends", ["idles", "closes"])
def test_an_epoch_that_none_follows_becomes_complete(store: LosesDecisions, ends: str) -> None:
    store.unanswered = 1
    session = Session("p", [ModelTwoPhaseSink("sink")], store, patience_s=0)
    session.start(Initial(SPAN.start))
    session.open_sinks(ROWS.schema)
    session.drive(session.lifecycle.sweep())
    if ends == "closes":
        session._completer.stop()
    session.drive(session.lifecycle.run_epoch(EpochRequest(SPAN, "q", 0, "job", session.names)), lambda _: ())
    if ends == "closes":
        assert [record.state for record in store.facts("p").unfinished] == [EpochState.DECIDED]
        session.close()
    until_s = time.monotonic() + (0 if ends == "closes" else 20)
    while store.facts("p").unfinished and time.monotonic() < until_s:
        time.sleep(0.05)
    assert store.facts("p").unfinished == ()
    session.close()


def test_an_epoch_becomes_complete_though_the_next_one_runs_for_long(store: LosesDecisions) -> None:
    store.unanswered = 1
    session = Session("p", [ModelTwoPhaseSink("sink")], store, patience_s=0)
    session.start(Initial(SPAN.start))
    session.open_sinks(ROWS.schema)
    session.drive(session.lifecycle.sweep())

    def slow(_: EpochRecord) -> tuple[Committable, ...]:
        until_s = time.monotonic() + 20
        while store.facts("p").unfinished and time.monotonic() < until_s:
            time.sleep(0.05)
        assert store.facts("p").unfinished == ()
        return ()

    session.drive(session.lifecycle.run_epoch(EpochRequest(SPAN, "q", 0, "job", session.names)), lambda _: ())
    following = Range(SPAN.end, Positions.of({"t/0": 2}))
    session.drive(session.lifecycle.run_epoch(EpochRequest(following, "q", 1, "job", session.names)), slow)
    session.close()
    facts = store.facts("p")
    assert facts.complete is not None and facts.complete.epoch == 2 and facts.unfinished == ()


def test_a_process_that_was_taken_over_while_in_doubt_does_not_take_over_again(store: LosesDecisions) -> None:
    sink = ModelTwoPhaseSink("sink")
    session = Session("p", [sink], store, patience_s=0)
    session.start(Initial(SPAN.start))
    session.open_sinks(ROWS.schema)
    with pytest.raises(InDoubt):
        run(session, sink)
    other = Session("p", [sink], store, patience_s=0).start(None)
    with pytest.raises(Fenced):
        run(session, sink)
    assert store.facts("p").generation == other.generation.number == 2
    session.close()


def test_a_process_that_goes_on_takes_nothing_back_from_its_successor_until_it_is_closed(store: LosesDecisions) -> None:
    sink = ModelTwoPhaseSink("sink")

    def session() -> Session:
        return Session("p", [sink], store, patience_s=0)

    first = session()
    for number in (1, 2):
        assert first.start(Initial(SPAN.start), goes_on=True).generation.number == number
    successor = session().start(Initial(SPAN.start), goes_on=True).generation
    with raises(Fenced, "taken-over", "'p'"):
        first.start(Initial(SPAN.start), goes_on=True)
    assert store.freeze(successor, SPAN.start) == SPAN.start, "it is the pipeline's still"
    assert session().start(Initial(SPAN.start), goes_on=True).generation.number == 4, "another one takes over"
    first.close()


def test_a_start_that_failed_after_it_took_over_does_not_fence_the_next_one(store: LosesDecisions) -> None:
    class NotYet(ModelTwoPhaseSink):
        binds = 0

        def bind(self, binding: Binding) -> None:
            self.binds += 1
            if self.binds == 2:
                raise Retriable("test", "the sink is down")
            super().bind(binding)

    session = Session("p", [NotYet("sink")], store, patience_s=0)
    session.start(Initial(SPAN.start), goes_on=True)
    with pytest.raises(Retriable):
        session.start(Initial(SPAN.start), goes_on=True)
    assert session.start(Initial(SPAN.start), goes_on=True).generation.number == 3
    session.close()


class Querying(Session):
    LIFECYCLE = QueryLifecycle


def test_a_session_whose_query_was_never_looked_at_sweeps_nothing_when_it_is_closed(store: LosesDecisions) -> None:
    """Beside an older copy of the store its start is refused, and what a newer one decided is to stay."""
    sink = ModelTwoPhaseSink("sink")
    writer = sink.writer(TaskId("p", 1, 1, 1, uuid.uuid4()))
    writer.write(ROWS)
    assert writer.prepare() is not None
    for is_looked_at in (False, True):
        session = Querying("p", [sink], store, patience_s=0)
        session.start(Initial(SPAN.start))
        if is_looked_at:
            session.drive(session.lifecycle.sweep())
        session.sweep()
        session.close()
        assert bool(sink.prepared) is not is_looked_at


class Named(ModelWriteThroughSink):
    """Rows are told apart by columns that its user names."""

    names = "id"

    def identity(self) -> str:
        return self.names


def test_a_begun_epoch_that_shows_at_once_runs_again_under_the_names_that_its_rows_began_with(
    store: LosesDecisions,
) -> None:
    store.unanswered = 1
    sink = Named("sink")

    def life(names: str, *, is_cut: bool = False) -> None:
        sink.names = names
        session = Session("p", [sink], store, patience_s=0)
        session.start(Initial(SPAN.start))
        job = session.open_sinks(ROWS.schema)
        request = EpochRequest(SPAN, "q", 0, job, session.names, session.write_through)

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            writer = sink.writer(task_of(record).another_attempt())
            writer.write(ROWS)
            if is_cut:
                raise BadRecord("record-unreadable", "the next row is none")
            prepared = writer.prepare()
            assert prepared is not None
            return (prepared,)

        try:
            session.run_epoch(request, write)
        finally:
            session.close()

    with pytest.raises(BadRecord):
        life("id", is_cut=True)
    with raises(CheckpointMismatch, "replay-differs"):
        life("other")
    assert not sink.shown()
    life("id")
    assert sink.shown() == {"t/0@0": 1}


def test_a_jobs_fingerprint_is_the_same_in_whichever_order_its_sinks_are_named(store: LosesDecisions) -> None:
    def fingerprint(*names: str) -> str:
        session = Session("p", [Named(name) for name in names], store, patience_s=0)
        return session.open_sinks(ROWS.schema)

    assert fingerprint("a", "b") == fingerprint("b", "a") != fingerprint("a", "c")

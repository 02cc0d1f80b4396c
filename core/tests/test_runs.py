"""Batch runs as positions, and the store that decides no name twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.errors import raises
from store_suite import last_of, work

from onefold.core import (
    CheckpointMismatch,
    ConfigError,
    EpochRecord,
    EpochState,
    Generation,
    LedgerEntry,
    Positions,
    Range,
)
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.protocol.runs import NO_RUN, DecidedRun, check_name, next_range, refuse_query, run_of
from onefold.store import checkpoint_store as store_module
from onefold.store.checkpoint_store import CheckpointStore

NOW_MS = 1_700_000_000_000
PIPELINE = "p"
KAFKA = Positions.of({"t/0": 7})


def at(run: str) -> Positions:
    return Positions.of({"#run": run})


def epoch(start: Positions, end: Positions, state: EpochState, write_through: tuple[str, ...] = ()) -> EpochRecord:
    return EpochRecord(PIPELINE, 1, 1, state, Range(start, end), NOW_MS, "q", 0, "f", (), ("s",), write_through)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(f"sqlite:///{tmp_path / 'store.db'}")


def write(store: CheckpointStore, generation: Generation, start: Positions, run: str, rows: int = 3) -> EpochRecord:
    request = EpochRequest(Range(start, at(run)), run, sinks=("sink",))
    opened = store.open_epoch(generation, request, last_of(store), NOW_MS)
    decided = store.decide(generation, opened, [work(opened, rows=rows)], NOW_MS)
    store.complete(generation, decided, NOW_MS)
    return decided.record


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a\nb", "a\0", "x" * 201, 20261120])
def test_what_cannot_name_a_run_is_refused(name: str) -> None:
    with raises(ConfigError, "option-value"):
        check_name(name)


def test_a_schedulers_names_are_names() -> None:
    for name in ("2026-11-20", "scheduled__2026-11-20T00:00:00+00:00", "Nacht zum 20. November", "5"):
        check_name(name)
        assert run_of(Positions.from_json(at(name).to_json())) == name


def test_each_run_begins_where_the_one_before_ended() -> None:
    assert next_range(StoreFacts("s", 1, frozen=NO_RUN), "a") == Range(NO_RUN, at("a"))
    last = epoch(NO_RUN, at("a"), EpochState.COMPLETE)
    assert next_range(StoreFacts("s", 1, last, last, frozen=NO_RUN), "b") == Range(at("a"), at("b"))


@pytest.mark.parametrize(
    "facts",
    [
        StoreFacts("s", 1, frozen=KAFKA),
        StoreFacts("s", 1, epoch(Positions(), KAFKA, EpochState.COMPLETE)),
        StoreFacts("s", 1, unfinished=(epoch(Positions(), KAFKA, EpochState.OPEN, ("s",)),)),
    ],
)
def test_a_run_under_a_querys_name_is_refused_whatever_the_query_left(facts: StoreFacts) -> None:
    refuse_query(facts, PIPELINE)
    with raises(ConfigError, "batch-and-stream-mixed"):
        next_range(facts, "a")


@pytest.mark.parametrize(
    "facts",
    [
        StoreFacts("s", 1, frozen=NO_RUN),
        StoreFacts("s", 1, epoch(NO_RUN, at("a"), EpochState.COMPLETE), frozen=NO_RUN),
        StoreFacts("s", 1, unfinished=(epoch(NO_RUN, at("a"), EpochState.DAMAGED),)),
    ],
)
def test_a_query_under_the_name_of_runs_is_refused_whatever_they_left(facts: StoreFacts) -> None:
    with raises(ConfigError, "batch-and-stream-mixed"):
        refuse_query(facts, PIPELINE)
    assert next_range(facts, "b").end == at("b")


def test_a_run_that_writes_through_and_was_begun_comes_before_any_other() -> None:
    facts = StoreFacts("s", 1, unfinished=(epoch(NO_RUN, at("a"), EpochState.OPEN, ("s",)),), frozen=NO_RUN)
    assert next_range(facts, "a") == Range(NO_RUN, at("a"))
    with raises(CheckpointMismatch, "run-unfinished", "'a'"):
        next_range(facts, "b")


def test_no_name_is_decided_twice_even_by_a_driver_that_did_not_look(store: CheckpointStore) -> None:
    generation = store.acquire(PIPELINE, 0)
    write(store, generation, NO_RUN, "a", rows=5)
    write(store, generation, at("a"), "b")
    merged: list[object] = []
    request = EpochRequest(Range(at("b"), at("a")), "a", sinks=("sink",))
    opened = store.open_epoch(generation, request, last_of(store), NOW_MS)
    with raises(CheckpointMismatch, "run-already-written", "'a'", "'p'"):
        store.decide(generation, opened, [work(opened)], NOW_MS, merged.append)
    assert merged == []
    assert store.facts(PIPELINE).unfinished == (opened,), "it stays undecided"
    assert store.decided_run(PIPELINE, "a") == DecidedRun("a", 1, 5)


def test_a_run_is_known_from_its_decision_on_and_not_before(store: CheckpointStore) -> None:
    generation = store.acquire(PIPELINE, 0)
    opened = store.open_epoch(generation, EpochRequest(Range(NO_RUN, at("a"))), 0, NOW_MS)
    assert store.decided_run(PIPELINE, "a") is None
    decided = store.decide(generation, opened, [work(opened)], NOW_MS)
    assert store.decide(generation, opened, [work(opened)], NOW_MS) == decided, "asked again, answered again"
    assert store.decided_run(PIPELINE, "a") == DecidedRun("a", 1, 3)
    assert store.decided_run("another", "a") is None


def test_a_decision_whose_merge_fails_takes_no_name(store: CheckpointStore) -> None:
    def fail(_: object) -> None:
        raise ConfigError("option-value", "no")

    generation = store.acquire(PIPELINE, 0)
    opened = store.open_epoch(generation, EpochRequest(Range(NO_RUN, at("a"))), 0, NOW_MS)
    with pytest.raises(ConfigError):
        store.decide(generation, opened, [work(opened)], NOW_MS, fail)
    assert store.decided_run(PIPELINE, "a") is None


def test_a_name_outlives_its_epoch(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "KEEP_EPOCHS", 2)
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 1)
    generation, last = store.acquire(PIPELINE, 0), NO_RUN
    for number in range(6):
        last = write(store, generation, last, f"night {number}").range.end
    assert [record.query_id for record in store.history(PIPELINE)] == ["night 3", "night 4", "night 5"]
    assert store.decided_run(PIPELINE, "night 0") == DecidedRun("night 0", 1, 3)


def test_an_adopted_ledger_brings_the_last_runs_name_and_takes_those_of_another_history(store: CheckpointStore) -> None:
    generation = store.acquire(PIPELINE, 0)
    write(store, generation, NO_RUN, "mine")
    write(store, generation, at("mine"), "not in the destination")
    store.adopt(generation, LedgerEntry(2, 1, NOW_MS, at("theirs"), "another store"), ("sink",), NOW_MS)
    assert store.decided_run(PIPELINE, "theirs") == DecidedRun("theirs", 2, 0)
    assert store.decided_run(PIPELINE, "mine") == DecidedRun("mine", 1, 3)
    assert store.decided_run(PIPELINE, "not in the destination") is None


def test_a_store_from_before_there_were_runs_learns_to_remember_them(store: CheckpointStore, tmp_path: Path) -> None:
    generation = store.acquire(PIPELINE, 0)
    with store.database.transaction() as transaction:
        transaction.rows("DROP TABLE onefold_runs")
    newer = CheckpointStore(f"sqlite:///{tmp_path / 'store.db'}")
    assert newer.decided_run(PIPELINE, "a") is None
    write(newer, generation, NO_RUN, "a")
    assert newer.decided_run(PIPELINE, "a") == DecidedRun("a", 1, 3)

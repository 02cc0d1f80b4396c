"""Hops: each bundle is one transaction, whatever is struck; and what their database does."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import SinkKind
from onefold.core.errors import ConfigError, DataLoss, Retriable
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.driver.flow_run import FlowRun
from onefold.engine.mechanisms.transaction import database, hop
from onefold.engine.mechanisms.transaction.channels import HopChannel
from onefold.engine.mechanisms.transaction.database import FilesInDatabase, HopDatabase, View
from onefold.engine.mechanisms.transaction.driver import RUN
from onefold.engine.mechanisms.transaction.hop import HopInput, SplitsInput, _without
from onefold.engine.testing.proof import TRANSACTION
from onefold.engine.testing.schedules import FlowSchedule, explore, explore_to_failure, sample, simulate
from onefold.engine.testing.transaction_mutants import MUTANTS_OF_TRANSACTION
from onefold.engine.testing.transaction_world import OF_HOPS
from onefold.engine.workers.frames import encoded_item

TP = SinkKind.TWO_PHASE
WAY = HopChannel("0/0/1", "0", "1")


def test_hops_that_nothing_strikes_are_exact() -> None:
    outcome = simulate((TP,), {}, job=TRANSACTION)
    assert outcome.wrong == [] and len(outcome.options) > 100


@pytest.mark.parametrize("point", range(1, 150, 13))
def test_two_strikes_close_to_each_other_leave_every_row_once(point: int) -> None:
    for second in (1, 4):
        script = {point: 1, point + second: 99}
        assert simulate((TP,), script, job=TRANSACTION).wrong == [], script


@pytest.mark.proof
@pytest.mark.slow
def test_whatever_happens_to_hops_once_every_row_comes_once() -> None:
    report = explore((TP,), 1, job=TRANSACTION)
    assert report.failed == []
    assert min(report.taken[what] for what in OF_HOPS) > 10


@pytest.mark.proof
@pytest.mark.slow
def test_hops_at_any_pace_give_every_row_once() -> None:
    for seed in range(40):
        assert sample((TP,), seed, job=TRANSACTION).wrong == [], seed


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS_OF_TRANSACTION)
def test_a_mutant_of_transaction_is_noticed(name: str) -> None:
    report = explore_to_failure((TP,), MUTANTS_OF_TRANSACTION[name], TRANSACTION)
    assert report.failed, f"{report.schedules} schedules did not notice that {name}"


def test_a_schedule_of_hops_runs_again_from_its_text() -> None:
    schedule = FlowSchedule((TP,), ((20, 1),), TRANSACTION)
    again = FlowSchedule.from_json(schedule.to_json())
    assert again == schedule and simulate(again.kinds, dict(again.script), job=again.job).taken == {20: 1}


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """A sender and a receiver."""
    receiver = HopDatabase(tmp_path, "1")
    sender = HopDatabase(tmp_path, "0", [WAY])
    yield sender, receiver
    sender.close()
    receiver.close()


def test_a_receiver_sees_what_is_sent_once_it_is_committed_and_not_what_was_taken_back(pair: Any) -> None:
    sender, receiver = pair
    with sender.writing():
        sender.send(WAY, (0, b"one"))
        sender.send(WAY, (0, b"two"))
        assert receiver.sent_after(WAY, 0, 1 << 20) == []
    with suppress(ZeroDivisionError), sender.writing():
        sender.send(WAY, (0, b"never"))
        raise ZeroDivisionError
    assert receiver.sent_after(WAY, 0, 1 << 20) == [(1, (0, b"one")), (2, (0, b"two"))]
    assert receiver.sent_after(WAY, 0, 1) == [(1, (0, b"one"))] and receiver.waiting(WAY) == 2
    with sender.writing():
        sender.send(WAY, (0, b"three"))
    assert receiver.sent_after(WAY, 2, 1 << 20) == [(3, (0, b"three"))]


def test_a_sender_forgets_what_its_receiver_has_committed_and_its_numbers_go_on(pair: Any) -> None:
    sender, receiver = pair
    for number in range(3):
        with sender.writing():
            sender.send(WAY, (0, b"%d" % number))
    with receiver.writing():
        receiver.put("taken 0/0/1", (2, 0, 0))
        with sender.writing():
            pass
        assert len(sender.outbox(WAY.name, 0, 9, 1 << 20)) == 3  # it is not committed
    with sender.writing():
        sender.send(WAY, (0, b"4"))
    assert [number for number, _ in sender.outbox(WAY.name, 0, 9, 1 << 20)] == [3, 4]
    assert receiver.waiting(WAY) == 2


def test_a_channel_with_a_gap_is_a_loss_by_name(pair: Any) -> None:
    sender, receiver = pair
    for _ in range(2):
        with sender.writing():
            sender.send(WAY, encoded_item(pa.record_batch({"n": [1]})))
    source: Any = None  # no split is read
    for left in (1, 0):
        sender.run("DELETE FROM outbox WHERE number <= ?", 2 - left)
        with raises(DataLoss, "hops-lost"):
            [*HopInput(receiver, WAY, 0, pa.schema({"n": pa.int64()})).take(1 << 20)]
        with raises(DataLoss, "hops-lost"):
            [*SplitsInput(receiver, WAY, source).take(1 << 20)]


def test_every_transaction_is_synced_and_a_second_process_is_kept_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_S", 0.1)
    first = HopDatabase(tmp_path, "0")
    assert first.run("PRAGMA synchronous") == [(2,)] and first.run("PRAGMA journal_mode") == [("wal",)]
    with raises(Retriable, "hops-in-use"):
        HopDatabase(tmp_path, "0")
    first.close()
    HopDatabase(tmp_path, "0").close()


def test_a_database_that_is_damaged_or_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0/hops.db").write_bytes(b"no database" * 100)
    with raises(DataLoss, "hops-damaged"):
        HopDatabase(tmp_path, "0")
    (tmp_path / "1").write_text("")
    with raises(ConfigError, "hops-refused"):
        HopDatabase(tmp_path, "1")
    with raises(ConfigError, "hops-refused"):
        View(tmp_path / "2")


def test_files_of_state_are_there_with_their_transaction_and_are_read_in_part(tmp_path: Path) -> None:
    opened = HopDatabase(tmp_path, "0")
    files = FilesInDatabase(opened, 3)
    with suppress(ZeroDivisionError), opened.writing():
        files.write("1/1-a", [b"lost"])
        raise ZeroDivisionError
    assert files.sizes(["1/1-a"]) == {"1/1-a": None}
    with pytest.raises(FileNotFoundError):
        files.read("1/1-a")
    with opened.writing():
        files.write("1/2-b", [b"some", pa.py_buffer(b"thing")])
    assert files.sizes(["1/2-b"]) == {"1/2-b": 9} and files.read("1/2-b") == b"something"
    assert (files.read("1/2-b", 2, 3), files.read("1/2-b", -3), files.read("1/2-b", -99)) == (
        b"met",
        b"ing",
        b"something",
    )
    opened.close()
    with sqlite3.connect(tmp_path / "0/hops.db") as found:
        assert found.execute("SELECT name FROM kept").fetchall() == [("file 3 1/2-b",)]


@pytest.mark.parametrize(("rows", "bad", "left"), [(0, 0, [(3, 1), (2, 0)]), (4, 0, [(0, 1), (1, 0)]), (5, 1, [])])
def test_a_split_goes_on_behind_the_rows_and_bad_records_that_were_taken(
    rows: int, bad: int, left: list[tuple[int, int]]
) -> None:
    one = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in BAD_COLUMNS], schema=BAD_COLUMNS)
    parts = [
        Part(pa.record_batch({"n": [1, 2, 3]}), one),
        Part(pa.record_batch({"n": [4, 5]}), empty_batch(BAD_COLUMNS)),
    ]
    found = [*_without(iter(parts), rows, bad)]
    assert [(part.rows.num_rows, part.bad.num_rows) for part in found] == left
    taken = [n for part in found for n in part.rows.column(0).to_pylist()]
    assert taken == [1, 2, 3, 4, 5][rows:]


def test_hops_that_wait_for_what_the_last_driver_has_decided_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop, "WAITING_MAX", 1)
    points = simulate((TP,), {}, job=TRANSACTION).options
    decided = [number for number, (name, *_) in enumerate(points) if name == "an epoch is decided"]
    assert decided
    for point in decided:
        assert simulate((TP,), {point: 1}, job=TRANSACTION).wrong == [], point


def test_a_run_tells_its_hops_first_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(FlowRun, "_epochs", lambda *_: told.append("epochs"))
    run: Any = RUN.__new__(RUN)
    run._epochs(SimpleNamespace(completed=told.append), None, SimpleNamespace(at="here"), "")
    assert told == ["here", "epochs"]

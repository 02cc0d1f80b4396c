"""What a flow has beside its sinks: totals of each account, and files that the notes of its epochs name."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from onefold.core import Committable, SinkKind
from onefold.trials.torture.destinations.destination import DueRecords
from onefold.trials.torture.destinations.flow_tables import (
    compare_accounts,
    compare_late,
    compare_pairs,
    compare_seconds,
    compare_sessions,
    compare_windows,
)
from onefold.trials.torture.destinations.state_files import StateFiles
from onefold.trials.torture.destinations.table_comparison import RecordId, Row
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import Job

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_an_account_has_the_sum_and_the_number_of_all_its_orders_once() -> None:
    def order(id: int, account: int | None, amount: str) -> MixedOrder:
        return MixedOrder(id, 0, account, Decimal(amount), AT, False, "")

    orders: dict[RecordId, MixedOrder] = {
        (0, 0): order(1, 7, "1.50"),
        (0, 1): replace(order(1, 7, "2.00"), version=4, is_deletion=True),
        (1, 0): replace(order(2, 8, "3.00"), note="\0"),
        (1, 1): order(3, None, "4.00"),
        (1, 2): order(4, 0, "5.00"),
    }
    right: dict[Hashable, list[Row]] = {7: [(7, Decimal("3.50"), 2)], 8: [(8, Decimal("3.00"), 1)]}
    assert compare_accounts(orders, right).samples == {}
    assert compare_accounts(orders, {**right, 7: [(7, Decimal("5.00"), 3)]}).changed == 1, "one counts twice"
    assert compare_accounts(orders, {7: right[7]}).lost == 1
    assert compare_accounts(orders, {**right, 0: [(0, Decimal("5.00"), 1)]}).unexpected == 1


def test_parts_of_windows_and_late_orders_are_together_each_order_once() -> None:
    def order(id: int, amount: str, seconds: float) -> MixedOrder:
        return MixedOrder(id, 0, 65, Decimal(amount), AT + timedelta(seconds=seconds), False, "")

    orders: dict[RecordId, MixedOrder] = {
        (0, 0): order(1, "100", 4.1),
        (0, 1): order(2, "50", 5.2),  # a second younger than it says: of the same window
        (0, 2): order(3, "10", 8.3),  # four seconds: too late
        (0, 3): order(4, "70", 9),  # nothing says that its window is over
        **{(partition, 0): replace(order(partition, "70", 9), account=0) for partition in (1, 2, 3)},
    }
    window = (1, AT + timedelta(seconds=4))

    def later(seconds: float) -> datetime:
        return AT + timedelta(seconds=seconds)

    parts = [(*window, Decimal(100), 1, 1), (*window, Decimal(50), 1, 2)]
    late = {window: (Decimal(10), 1)}
    assert compare_windows(orders, parts, late).samples == {}
    assert compare_windows(orders, [(*window, Decimal(160), 3, 1)], {}).samples == {}, "none came late"
    assert compare_windows(orders, parts, {}).changed == 1, "one is missing"
    assert compare_windows(orders, [(*window, Decimal(160), 3, 1)], late).changed == 1, "one is late, and in a part"
    assert compare_windows(orders, [*parts, parts[0]], late).duplicated == 1, "a part is there twice"
    assert compare_windows(orders, [], {}).lost == 1
    assert compare_windows({**orders, (3, 1): order(5, "70", 9)}, [], {}).lost == 1, "the other window is open"
    spans = [(1, *map(later, (4.1, 4.3)), Decimal(150), 2)]
    for_sessions = [(1, later(4.3), Decimal(10))]
    assert compare_sessions(orders, spans, for_sessions).samples == {}
    assert compare_sessions(orders, spans, []).lost == 1, "it is in no session"
    assert compare_sessions(orders, [], for_sessions).lost == 2
    goes_on = {(0, 9 + tenth): order(6, "70", 4.2 + tenth / 10) for tenth in range(1, 49)}
    assert compare_sessions({**orders, **goes_on}, [], for_sessions).samples == {}, "it may be open to its begin"
    assert compare_sessions(orders, [*spans, *spans], for_sessions).duplicated == 1
    assert compare_sessions(orders, [(*spans[0][:3], Decimal(160), 3)], for_sessions).changed == 1
    assert compare_sessions(orders, [*spans, (2, AT, later(1), Decimal(1), 1)], for_sessions).unexpected == 1
    del orders[1, 0]
    assert compare_windows(orders, [], {}).samples == {}, "a partition of which there is nothing says nothing"
    assert compare_windows(orders, [(2, AT, Decimal(1), 1, 1)], {}).unexpected == 1

    row = (1, AT + timedelta(seconds=4.3), Decimal(10))
    assert compare_late(orders, [row]).samples == {}
    assert compare_late(orders, [row, row]).duplicated == 1
    assert compare_late(orders, [(2, *row[1:])]).unexpected == 1


def test_small_orders_are_there_with_each_that_comes_soon_after() -> None:
    def order(account: int, amount: str, ms: int) -> MixedOrder:
        return MixedOrder(0, 0, account, Decimal(amount), AT + timedelta(milliseconds=ms), False, "")

    orders: dict[RecordId, MixedOrder] = {
        (0, 0): order(1, "50", 0),
        (0, 1): order(65, "70", 100),  # of the same bucket
        (1, 0): order(1, "80", 101),
        (1, 1): order(2, "90", 50),
        (1, 2): order(1, "-1", 50),  # a refund
    }
    first = (1, AT, Decimal(50))
    right = [(*first, *first[1:]), (*first, AT + timedelta(milliseconds=100), Decimal(70))]
    assert compare_pairs(orders, right).samples == {}
    assert compare_pairs(orders, right[:1]).lost == 1
    assert compare_pairs(orders, [*right, right[0]]).duplicated == 1
    assert compare_pairs(orders, [*right, (2, *right[0][1:])]).unexpected == 1


def test_each_second_of_a_bucket_is_counted_once_when_it_is_surely_over() -> None:
    def order(partition: int, account: int, seconds: float, amount: str = "7") -> MixedOrder:
        return MixedOrder(partition, 0, account, Decimal(amount), AT + timedelta(seconds=seconds), False, "")

    begin = int(AT.timestamp())
    orders: dict[RecordId, MixedOrder] = {
        (0, 0): order(0, 1, 0.5),
        (0, 1): order(0, 65, 0.9),  # of the same bucket
        (0, 2): order(0, 1, 0.9, "-1"),  # a refund
        (0, 3): order(0, 1, 2.5),
        **{(partition, 0): order(partition, 0, 2.5) for partition in (1, 2, 3)},
    }
    right = [(1, begin + 1, 2)]
    assert compare_seconds(orders, right).samples == {}
    assert compare_seconds(orders, []).lost == 1
    assert compare_seconds(orders, [*right, *right]).duplicated == 1
    assert compare_seconds(orders, [(1, begin + 1, 3)]).changed == 1
    assert compare_seconds(orders, [*right, (1, begin + 3, 1)]).samples == {}, "its second may be over"
    assert compare_seconds(orders, [*right, (2, begin + 1, 1)]).unexpected == 1


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    """Of two epochs, which name a file together."""
    folder = tmp_path / "torture"
    for epoch, names in ((7, ["1/7-a", "1/5-b"]), (8, ["1/8-c", "1/5-b", "1/8-c.000012.sst"])):
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"rows")
        (folder / "epochs").mkdir(exist_ok=True)
        note = {"epoch": epoch, "generation": 1, "timestamp_ms": 5, "handles": [names[0]], "files": names}
        (folder / f"epochs/{epoch}.json").write_text(json.dumps(note))
    for own in ("ledger.json", "lock"):
        (folder / own).touch()
    return StateFiles(Job("kafka", "", str(tmp_path), str(tmp_path), ("two_phase",), 10, exactly_once=True, workers=2))


def lost(files: StateFiles) -> int:
    return files.look(DueRecords({}, {})).comparison.lost


def test_where_each_file_is_named_and_each_named_file_is_there_nothing_is_wrong(files: StateFiles) -> None:
    assert (files.leftovers(), lost(files)) == ((), 0)
    found = files.committed((), None)
    assert found is not None
    assert ([(part.epoch, part.handle) for part in found.parts], found.since) == ([(7, "1/7-a"), (8, "1/8-c")], 7)


@pytest.mark.parametrize("name", ["2/9-d", "1/7-a.000003.sst", "epochs/9.json.tmp", "other"])
def test_a_file_that_no_epoch_names_is_left_over(files: StateFiles, name: str) -> None:
    path = Path(files.job.checkpoint) / "torture" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert files.leftovers() == (Committable("state", SinkKind.TWO_PHASE, name, 0, 0, 0),)


def test_a_file_that_a_kept_epoch_names_and_that_is_gone_is_lost(files: StateFiles) -> None:
    (Path(files.job.checkpoint) / "torture" / "1/5-b").unlink()
    assert (files.leftovers(), lost(files)) == ((), 1)

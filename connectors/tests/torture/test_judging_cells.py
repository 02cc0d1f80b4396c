"""What an HBase table must have, of orders that were struck: the newest of the last epoch, and what orders come to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from onefold.core import EpochRecord, EpochState, Positions, Range
from onefold.trials.torture.destinations.hbase_comparison import ROWS, compare_newest_of_epochs, compare_totals
from onefold.trials.torture.destinations.table_comparison import RecordId, Row
from onefold.trials.workload.mixed import MixedOrder

AT = datetime(2026, 1, 1, tzinfo=UTC)


def order(id: int, version: int = 0, account: int = 7, amount: str = "1.50", gone: bool = False) -> MixedOrder:
    return MixedOrder(id, version, account, Decimal(amount), AT, gone, "")


def epoch(number: int, start: int, end: int) -> EpochRecord:
    positions = [Positions.of({"orders/0": offset}) for offset in (start, end)]
    return EpochRecord("p", number, 1, EpochState.COMPLETE, Range(*positions), 5, "q", number, "f")


def row(of: MixedOrder, offset: int) -> dict[Hashable, list[Row]]:
    return {of.id: [(of.id, of.version, of.account, of.amount, of.at, 0, offset)]}


ORDERS: dict[RecordId, MixedOrder] = {
    (0, 0): order(1, version=9),
    (0, 1): order(1, version=4),
    (0, 2): order(1, version=3),
    (0, 3): order(1, version=3, amount="2.00"),
}


def test_an_older_version_in_a_later_epoch_stays_and_within_an_epoch_the_highest_then_the_last() -> None:
    one, two = [epoch(1, 0, 4)], [epoch(1, 0, 2), epoch(2, 2, 4)]
    assert compare_newest_of_epochs(one, ORDERS, row(ORDERS[0, 0], 0)).samples == {}
    assert compare_newest_of_epochs(two, ORDERS, row(ORDERS[0, 3], 3)).samples == {}
    assert compare_newest_of_epochs(two, ORDERS, row(ORDERS[0, 0], 0)).changed == 1
    assert compare_newest_of_epochs(two, ORDERS, row(ORDERS[0, 2], 2)).changed == 1
    assert compare_newest_of_epochs(two, ORDERS, {}).lost == 1


def test_a_row_whose_last_epoch_deleted_it_is_not_there_and_comes_back_with_the_next() -> None:
    orders = {**ORDERS, (0, 4): order(1, version=12, gone=True), (0, 5): order(1, version=2)}
    gone = [epoch(1, 0, 4), epoch(2, 4, 5)]
    assert compare_newest_of_epochs(gone, orders, {}).samples == {}
    assert compare_newest_of_epochs(gone, orders, row(ORDERS[0, 0], 0)).unexpected == 1
    assert compare_newest_of_epochs([*gone, epoch(3, 5, 6)], orders, row(orders[0, 5], 5)).samples == {}


@pytest.mark.parametrize("by_partition", [False, True])
def test_the_orders_of_an_account_come_to_a_sum_the_largest_their_number_and_the_latest(by_partition: bool) -> None:
    orders = {(0, 0): order(1, amount="1.50"), (0, 9): order(2, amount="3.00"), (1, 0): order(3, amount="2.25")}
    late = AT.replace(hour=5)
    orders[0, 9] = replace(orders[0, 9], at=late)
    of_0, of_1 = (Decimal("4.50"), Decimal("3.00"), 2, late), (Decimal("2.25"), Decimal("2.25"), 1, AT)
    right: list[Row] = (
        [(7, 0, *of_0), (7, 1, *of_1)] if by_partition else [(7, Decimal("6.75"), Decimal("3.00"), 3, late)]
    )
    assert len(right[0]) == len(ROWS["incremental" if by_partition else "rolling"])
    assert compare_totals(orders, {7: right}, by_partition=by_partition).samples == {}
    twice = [(*right[0][:-2], 99, late), *right[1:]]
    assert compare_totals(orders, {7: twice}, by_partition=by_partition).changed == len(right)
    assert compare_totals(orders, {}, by_partition=by_partition).lost == len(right)

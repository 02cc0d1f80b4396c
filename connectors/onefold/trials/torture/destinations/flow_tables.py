"""The tables that a flow has beside those of its orders, as an audit asks Postgres: what the orders of each account
come to, those of each bucket of accounts by windows of time, and the orders that came too late for theirs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

from onefold.core import Committable, EpochRecord, LedgerEntry
from onefold.core.invariants import Comparison
from onefold.sinks import PostgresSink
from onefold.trials.torture.destinations import postgres_server
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.destinations.table_comparison import RecordId, Row, compare_rows
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.flow_job import AGES, BUCKETS, DISORDER_MS, WINDOW_S
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import LATE, PARTITIONS, TOTALS, WINDOWS, Job

__all__ = ["LateTable", "TotalsTable", "WindowsTable", "compare_accounts", "compare_late", "compare_windows"]

Window = tuple[int, datetime]  # a bucket of accounts, and the window's start
Part = tuple[int, datetime, Decimal, int, int]  # the bucket, the start, what it comes to, of how many; which part


def compare_accounts(orders: Mapping[RecordId, MixedOrder], actual: Mapping[Hashable, list[Row]]) -> Comparison:
    """Every account has one row: the sum and the number of its orders, of every version. An account is a number above
    0."""
    totals: dict[int, tuple[Decimal, int]] = {}
    for order in orders.values():
        if order.account is not None and order.account > 0:
            total, number = totals.get(order.account, (Decimal(0), 0))
            totals[order.account] = (total + order.amount, number + 1)
    return compare_rows({account: [(account, *values)] for account, values in totals.items()}, actual)


def compare_windows(
    orders: Mapping[RecordId, MixedOrder], parts: Iterable[Part], late: Mapping[Window, tuple[Decimal, int]]
) -> Comparison:
    """The parts of a window's result and its late orders are together all of its orders, whichever came late. A window
    that the watermark has surely come to has fired."""
    due = _sums((window, order.amount) for order, window in _placed(orders))
    numbers = Counter((part[:2], part[4]) for part in parts)
    found: dict[Window, list[tuple[Decimal, int]]] = defaultdict(list)
    for bucket, start, total, number, _ in parts:
        found[bucket, start].append((total, number))
    for window, sums in late.items():
        found[window].append(sums)
    latest: dict[int, datetime] = {}
    for (partition, _), order in orders.items():
        latest[partition] = max(order.at, latest.get(partition, order.at))
    come_to = min(latest.values()) - timedelta(milliseconds=DISORDER_MS) if len(latest) == PARTITIONS else None
    expected: dict[Hashable, list[Row]] = {
        window: [(window, *sums)]
        for window, sums in due.items()
        if window in found or (come_to is not None and window[1] + timedelta(seconds=WINDOW_S) < come_to)
    }
    actual: dict[Hashable, list[Row]] = {
        window: [(window, sum(total for total, _ in sums), sum(number for _, number in sums))]
        for window, sums in found.items()
    }
    for (window, _), times in numbers.items():
        actual[window] += actual[window] * (times - 1)  # a part that is there twice
    return compare_rows(expected, actual)


def compare_late(orders: Mapping[RecordId, MixedOrder], late: Iterable[tuple[int, datetime, Decimal]]) -> Comparison:
    """Every late row is one of the orders, and is there as often as that is."""
    due = Counter((bucket, at, order.amount) for order, (bucket, at) in _timed(orders))
    rows = Counter(late)
    expected: dict[Hashable, list[Row]] = {
        row: [row] * min(times, due[row]) for row, times in rows.items() if row in due
    }
    return compare_rows(expected, {row: [row] * times for row, times in rows.items()})


def _timed(orders: Mapping[RecordId, MixedOrder]) -> Iterable[tuple[MixedOrder, Window]]:
    """The orders that have a bucket, with it and with the time by which they go into a window."""
    for order in orders.values():
        if order.account is not None and order.account > 0:
            age = next((age for below, age in sorted(AGES.items()) if order.amount < below), timedelta())
            yield order, (order.account % BUCKETS, order.at - age)


def _placed(orders: Mapping[RecordId, MixedOrder]) -> Iterable[tuple[MixedOrder, Window]]:
    for order, (bucket, at) in _timed(orders):
        yield order, (bucket, _start(at))


def _start(at: datetime) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // WINDOW_S * WINDOW_S, UTC)


def _sums(amounts: Iterable[tuple[Window, Decimal]]) -> dict[Window, tuple[Decimal, int]]:
    sums: dict[Window, tuple[Decimal, int]] = {}
    for window, amount in amounts:
        total, number = sums.get(window, (Decimal(0), 0))
        sums[window] = (total + amount, number + 1)
    return sums


@dataclass
class _FlowTable:
    """A Destination, but for `look`: a table of Postgres that its sink makes."""

    job: Job
    sink: PostgresSink
    name: str
    writes_through: bool = False

    def create(self) -> None:
        """The sink makes it."""

    def ledger(self) -> LedgerEntry | None:
        committer = self.sink.recover(PIPELINE)
        try:
            return committer.ledger()
        finally:
            committer.close()

    def leftovers(self) -> tuple[Committable, ...]:
        return postgres_server.leftovers(self.job.postgres_url)

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        del epochs
        return postgres_server.committed_parts(self.job.postgres_url, self.name, ledger)

    def close(self) -> None:
        """Nothing is kept open."""

    def rows(self, columns: str, table: str) -> list[Any]:
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            return connection.execute(f"SELECT {columns} FROM {table}".encode()).fetchall()


class TotalsTable(_FlowTable):
    """Of each account."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.totals(), TOTALS)

    def look(self, due: DueRecords) -> Compared:
        found: dict[Hashable, list[Row]] = {}
        for row in self.rows("account, total, orders", TOTALS):
            found.setdefault(row[0], []).append(row)
        return Compared(compare_accounts(due.orders, found))


class WindowsTable(_FlowTable):
    """Of each bucket and window, in parts."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.windows(), WINDOWS)

    def look(self, due: DueRecords) -> Compared:
        parts = self.rows("bucket, window_start, total, orders, emission", WINDOWS)
        late = self.rows("bucket, at, amount", LATE)
        sums = _sums(((row[0], _start(row[1])), row[2]) for row in late)
        return Compared(compare_windows(due.orders, parts, sums))


class LateTable(_FlowTable):
    """Of the orders that came too late."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.late(), LATE)

    def look(self, due: DueRecords) -> Compared:
        return Compared(compare_late(due.orders, self.rows("bucket, at, amount", LATE)))

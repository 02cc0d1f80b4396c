"""The tables that a flow has beside those of its orders, as an audit asks Postgres: what the orders of each account
come to, those of each bucket of accounts by windows, sessions and seconds, the orders that came too late, and pairs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import psycopg

from onefold.core import Committable, EpochRecord, LedgerEntry
from onefold.core.invariants import Comparison
from onefold.sinks import PostgresSink
from onefold.trials.torture.destinations import postgres_server
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.destinations.table_comparison import RecordId, Row, compare_rows
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.flow_job import AGES, BUCKETS, DISORDER_MS, GAP_MS, PAIRED_BELOW, WINDOW_S
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import LATE, PAIRS, PARTITIONS, SECONDS, SESSIONS, TOTALS, WINDOWS, Job

Window = tuple[int, datetime]  # a bucket of accounts, and the window's start
Part = tuple[int, datetime, Decimal, int, int]  # the bucket, the start, what it comes to, of how many; which part
Span = tuple[int, datetime, datetime, Decimal, int]  # of a session: the bucket, start and end, what it comes to
Pair = tuple[int, datetime, Decimal, datetime, Decimal]  # a bucket, and the times and amounts of two of its orders
Timed = tuple[int, datetime, Decimal]  # an order: its bucket, the time by which it goes into a window, and the amount


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
    come_to = _come_to(orders)
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


def compare_sessions(
    orders: Mapping[RecordId, MixedOrder], sessions: Iterable[Span], late: Iterable[Timed]
) -> Comparison:
    """A session has all orders of its bucket from its start to its end, but for those that came too late. An order of
    which the watermark surely says that its session is over is in one, or late."""
    due = Counter((bucket, at, order.amount) for order, (bucket, at) in _timed(orders)) - Counter(late)
    spans = sorted(sessions)
    is_over = _over(orders)
    expected: dict[Hashable, list[Row]] = {}
    sums: dict[tuple[int, datetime], tuple[Decimal, int]] = {}
    for (bucket, at, amount), times in due.items():
        place = bisect_right(spans, (bucket, at), key=itemgetter(0, 1)) - 1
        if place >= 0 and spans[place][0] == bucket and at < spans[place][2]:
            total, number = sums.get(spans[place][:2], (Decimal(0), 0))
            sums[spans[place][:2]] = (total + times * amount, number + times)
        elif is_over(bucket, at):
            expected.setdefault((bucket, at), []).append((bucket, at, amount))  # in none
    expected |= {span: [(span, *of)] for span, of in sums.items()}
    actual: dict[Hashable, list[Row]] = {}
    for bucket, start, _, total, number in spans:
        actual.setdefault((bucket, start), []).append(((bucket, start), total, number))
    return compare_rows(expected, actual)


def compare_late(orders: Mapping[RecordId, MixedOrder], late: Iterable[Timed]) -> Comparison:
    """Every late row is one of the orders, and is there as often as that is."""
    due = Counter((bucket, at, order.amount) for order, (bucket, at) in _timed(orders))
    rows = Counter(late)
    expected: dict[Hashable, list[Row]] = {
        row: [row] * min(times, due[row]) for row, times in rows.items() if row in due
    }
    return compare_rows(expected, {row: [row] * times for row, times in rows.items()})


def compare_pairs(orders: Mapping[RecordId, MixedOrder], pairs: Iterable[Pair]) -> Comparison:
    """Each small order is there with every one of its bucket that is not before it, and at most the gap after it. Their
    times keep what the source is told of them, so that none is late."""
    timed: dict[int, list[tuple[datetime, Decimal]]] = defaultdict(list)
    for order in orders.values():
        if order.account is not None and order.account > 0 and order.amount > 0:
            timed[order.account % BUCKETS].append((order.at, order.amount))
    expected: dict[Hashable, list[Row]] = defaultdict(list)
    for bucket, of in timed.items():
        of.sort()
        for at, amount in of:
            if amount < PAIRED_BELOW:
                last = bisect_right(of, at + timedelta(milliseconds=GAP_MS), key=itemgetter(0))
                found = of[bisect_left(of, at, key=itemgetter(0)) : last]
                expected[bucket, at, amount] += [(bucket, at, amount, *other) for other in found]
    actual: dict[Hashable, list[Row]] = defaultdict(list)
    for pair in pairs:
        actual[pair[:3]].append(pair)
    return compare_rows(expected, actual)


def compare_seconds(orders: Mapping[RecordId, MixedOrder], seconds: Iterable[tuple[int, int, int]]) -> Comparison:
    """Each bucket and second, by its end, has one row with the number of its orders once the watermark has surely come
    there. None is late, as of pairs."""
    due = Counter(
        (order.account % BUCKETS, int(order.at.timestamp()) + 1)
        for order in orders.values()
        if order.account is not None and order.account > 0 and order.amount > 0
    )
    actual: dict[Hashable, list[Row]] = defaultdict(list)
    for bucket, end_s, number in seconds:
        actual[bucket, end_s].append((bucket, end_s, number))
    come_to = _come_to(orders)
    come_to_s = 0 if come_to is None else come_to.timestamp()
    expected: dict[Hashable, list[Row]] = {
        second: [(*second, number)] for second, number in due.items() if second in actual or second[1] < come_to_s
    }
    return compare_rows(expected, actual)


def _over(orders: Mapping[RecordId, MixedOrder]) -> Callable[[int, datetime], bool]:
    """Whether the watermark has surely come to the end of the session of such an order."""
    come_to, gap = _come_to(orders), timedelta(milliseconds=GAP_MS)
    begins: dict[int, datetime] = {}  # of each bucket: where the session begins that may be open
    if come_to is not None:
        for bucket, at in sorted((timed for _, timed in _timed(orders)), reverse=True):
            if at + gap >= min(come_to, begins.get(bucket, come_to)):
                begins[bucket] = at
    return lambda bucket, at: come_to is not None and at < begins.get(bucket, come_to - gap)


def _come_to(orders: Mapping[RecordId, MixedOrder]) -> datetime | None:
    """Where the watermark is at least."""
    latest: dict[int, datetime] = {}
    for (partition, _), order in orders.items():
        latest[partition] = max(order.at, latest.get(partition, order.at))
    return min(latest.values()) - timedelta(milliseconds=DISORDER_MS) if len(latest) == PARTITIONS else None


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

    def late(self, table: str) -> list[Timed]:
        return self.rows("bucket, at, amount", table)


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
        super().__init__(job, job.appended(WINDOWS), WINDOWS)

    def look(self, due: DueRecords) -> Compared:
        parts = self.rows("bucket, window_start, total, orders, emission", WINDOWS)
        sums = _sums(((bucket, _start(at)), amount) for bucket, at, amount in self.late(LATE[0]))
        return Compared(compare_windows(due.orders, parts, sums))


class SessionsTable(_FlowTable):
    """Of each bucket and session."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.appended(SESSIONS), SESSIONS)

    def look(self, due: DueRecords) -> Compared:
        sessions = self.rows("bucket, window_start, window_end, total, orders", SESSIONS)
        return Compared(compare_sessions(due.orders, sessions, self.late(LATE[1])))


class PairsTable(_FlowTable):
    """Of small orders and those that come soon after them."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.appended(PAIRS), PAIRS)

    def look(self, due: DueRecords) -> Compared:
        return Compared(compare_pairs(due.orders, self.rows("bucket, at, amount, at_right, amount_right", PAIRS)))


class SecondsTable(_FlowTable):
    """Of each bucket and second."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, job.appended(SECONDS), SECONDS)

    def look(self, due: DueRecords) -> Compared:
        return Compared(compare_seconds(due.orders, self.rows("bucket, end_s, orders", SECONDS)))


class LateTable(_FlowTable):
    """Of the orders that came too late for windows, or for sessions."""

    def __init__(self, job: Job, table: str) -> None:
        super().__init__(job, job.appended(table), table)

    def look(self, due: DueRecords) -> Compared:
        return Compared(compare_late(due.orders, self.late(self.name)))

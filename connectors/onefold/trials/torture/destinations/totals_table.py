"""The table of what the orders of each account come to, which a flow keeps as its state, as an audit asks Postgres."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import psycopg

from onefold.core import Committable, EpochRecord, LedgerEntry
from onefold.core.invariants import Comparison
from onefold.trials.torture.destinations import postgres_server
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.destinations.table_comparison import RecordId, Row, compare_rows
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import TOTALS, Job

__all__ = ["TotalsTable", "compare_accounts"]


def compare_accounts(orders: Mapping[RecordId, MixedOrder], actual: Mapping[Hashable, list[Row]]) -> Comparison:
    """Every account has one row: the sum and the number of its orders, of every version. An account is a number above
    0."""
    totals: dict[int, tuple[Decimal, int]] = {}
    for order in orders.values():
        if order.account is not None and order.account > 0:
            total, number = totals.get(order.account, (Decimal(0), 0))
            totals[order.account] = (total + order.amount, number + 1)
    return compare_rows({account: [(account, *values)] for account, values in totals.items()}, actual)


@dataclass
class TotalsTable:
    """A Destination."""

    job: Job
    name: ClassVar[str] = TOTALS
    writes_through: ClassVar[bool] = False

    def create(self) -> None:
        """The sink makes it."""

    def ledger(self) -> LedgerEntry | None:
        committer = self.job.totals().recover(PIPELINE)
        try:
            return committer.ledger()
        finally:
            committer.close()

    def look(self, due: DueRecords) -> Compared:
        found: dict[Hashable, list[Row]] = {}
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            for row in connection.execute(f"SELECT account, total, orders FROM {TOTALS}".encode()):
                found.setdefault(row[0], []).append(tuple(row))
        return Compared(compare_accounts(due.orders, found))

    def leftovers(self) -> tuple[Committable, ...]:
        return postgres_server.leftovers(self.job.postgres_url)

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        del epochs
        return postgres_server.committed_parts(self.job.postgres_url, TOTALS, ledger)

    def close(self) -> None:
        """Nothing is kept open."""

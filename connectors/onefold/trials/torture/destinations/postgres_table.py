"""The table that the pipeline writes to, as an audit asks Postgres about it."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import ClassVar

import psycopg

from onefold.core import Committable, EpochRecord, LedgerEntry
from onefold.trials.torture.destinations import postgres_server
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.destinations.table_comparison import RecordId, Row, compare_appended, compare_newest
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.mixed import TABLES
from onefold.trials.workload.workload_settings import TABLE, Job

_DEAD = """
SELECT (position->>'kafka_partition')::int, (position->>'kafka_offset')::bigint, count(*)
FROM onefold_sinks.onefold_dead_letters GROUP BY 1, 2
"""


@dataclass
class PostgresTable:
    """A Destination."""

    job: Job
    name: ClassVar[str] = TABLE
    writes_through: ClassVar[bool] = False

    def create(self) -> None:
        if self.job.has_letters_table:
            with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
                connection.execute(TABLES[self.job.mode].format(table=TABLE).encode())

    def ledger(self) -> LedgerEntry | None:
        committer = self.job.table().recover(PIPELINE)
        try:
            return committer.ledger()
        finally:
            committer.close()

    def look(self, due: DueRecords) -> Compared:
        compare = compare_newest if self.job.mode == "upsert" else compare_appended
        return Compared(compare(due.orders, self._rows(), self._dead()))

    def leftovers(self) -> tuple[Committable, ...]:
        return postgres_server.leftovers(self.job.postgres_url)

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        """Merges leave no parts."""
        if self.job.into_postgres != "two_phase":
            return None
        return postgres_server.committed_parts(self.job.postgres_url, TABLE, ledger)

    def close(self) -> None:
        """Nothing is kept open."""

    def _rows(self) -> dict[Hashable, list[Row]]:
        found: dict[Hashable, list[Row]] = {}
        with psycopg.connect(self.job.postgres_url, autocommit=True, options="-c timezone=UTC") as connection:
            columns = "id, version, account, amount, at" if self.job.mode == "upsert" else "id, account, amount, at"
            for row in connection.execute(f"SELECT {columns} FROM {TABLE}".encode()):
                found.setdefault(row[0], []).append(tuple(row))
        return found

    def _dead(self) -> dict[RecordId, int]:
        if not self.job.has_letters_table:
            return {}
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            return {(partition, offset): times for partition, offset, times in connection.execute(_DEAD)}

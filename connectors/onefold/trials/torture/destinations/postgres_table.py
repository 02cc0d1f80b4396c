"""The table that the pipeline writes to, as an audit asks Postgres about it."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import ClassVar

import psycopg

from onefold.core import Committable, EpochRecord, LedgerEntry, SinkKind
from onefold.trials.torture.destinations.comparison import RecordId, Row, compare_appended, compare_newest
from onefold.trials.torture.destinations.destination import Committed, Due, Found
from onefold.trials.torture.settings import PIPELINE
from onefold.trials.workload.mixed import TABLES
from onefold.trials.workload.settings import TABLE, Job

__all__ = ["PostgresTable"]

_IN_DOUBT = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
_OPEN = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND application_name <> 'torture' AND xact_start < now() - interval '5 seconds'
"""
_PARTS = "SELECT epoch, generation, gid, rows FROM onefold_sinks.onefold_parts WHERE pipeline = %s AND sink = %s"
_DEAD = """
SELECT (position->>'kafka_partition')::int, (position->>'kafka_offset')::bigint, count(*)
FROM onefold_sinks.onefold_dead_letters GROUP BY 1, 2
"""
_STAGES = """
SELECT relname FROM pg_class WHERE relnamespace = 'onefold_sinks'::regnamespace AND relname LIKE 'onefold\\_stage\\_%'
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

    def look(self, due: Due) -> Found:
        compare = compare_newest if self.job.mode == "upsert" else compare_appended
        return Found(compare(due.orders, self._rows(), self._dead()))

    def leftovers(self) -> tuple[Committable, ...]:
        """Prepared and open transactions of anybody in the pipeline's database, and every row in a stage."""
        found = []
        with psycopg.connect(self.job.postgres_url, autocommit=True, application_name="torture") as connection:
            for query, what in ((_IN_DOUBT, ""), (_OPEN, "open transaction of backend ")):
                for (name,) in connection.execute(query):
                    found.append(Committable(TABLE, SinkKind.TWO_PHASE, f"{what}{name}", 0, 0, 0))
            for (stage,) in connection.execute(_STAGES).fetchall():
                query = f'SELECT onefold_attempt, count(*) FROM onefold_sinks."{stage}" GROUP BY 1'
                for attempt, rows in connection.execute(query.encode()):
                    found.append(Committable(TABLE, SinkKind.LAST_RESOURCE, f"{stage}/{attempt}", 0, 0, rows))
            listed = "SELECT stage, attempt, generation, epoch FROM onefold_sinks.onefold_staged"
            for stage, attempt, generation, epoch in connection.execute(listed):
                handle = f"listed {stage}/{attempt}"
                found.append(Committable(TABLE, SinkKind.LAST_RESOURCE, handle, generation, epoch, 0))
        return tuple(found)

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> Committed | None:
        """What two_phase has noted of its parts, as far as the ledger row keeps it; merges leave no parts."""
        if self.job.into_postgres != "two_phase":
            return None
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            parts = connection.execute(_PARTS, (PIPELINE, TABLE)).fetchall()
        found = tuple(
            Committable(TABLE, SinkKind.TWO_PHASE, gid, generation, epoch, rows)
            for epoch, generation, gid, rows in parts
        )
        return Committed(found, since=ledger.epoch if ledger else 0)

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

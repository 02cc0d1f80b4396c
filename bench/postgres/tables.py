"""Tables and rows of the Postgres benchmark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from onefold.local import PostgresServer

__all__ = ["SCHEMA", "Case", "Tables", "make_rows"]

Case = Literal["append", "append with a key", "new", "existing", "mixed"]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("account", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_DDL = "id bigint, account bigint, amount numeric(12,2), at timestamptz"
_2026_US = 1_767_225_600_000_000
SPLITS = 2  # as many connections as everybody gets


def make_rows(directory: Path, case: Case, rows: int, seed: int) -> list[Path]:
    """The rows as Parquet files, one for each connection. Even ids are in the table already, odd ones are new."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{case.replace(' ', '-')}-{rows}-{seed}-{number}.parquet" for number in range(SPLITS)]
    if all(path.exists() for path in paths):
        return paths
    chance = np.random.default_rng(seed)
    numbers = np.arange(rows, dtype=np.int64)
    ids = {"existing": numbers * 2, "mixed": numbers * 2 + numbers % 2}.get(case, numbers * 2 + 1)
    chance.shuffle(ids)
    table = pa.table(
        [
            pa.array(ids),
            pa.array(chance.integers(0, 1_000_000, rows)),
            pa.array(chance.integers(0, 10_000_000, rows)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)),
            pa.array(numbers + _2026_US).cast(pa.timestamp("us", "UTC")),
        ],
        names=SCHEMA.names,
    ).cast(SCHEMA)
    share = -(-rows // SPLITS)
    for number, path in enumerate(paths):
        pq.write_table(table.slice(number * share, share), path)
    return paths


@dataclass(frozen=True)
class Tables:
    """Fresh tables on one server; those that are merged into hold as many rows as will come."""

    server: PostgresServer
    rows: int

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def table(self, case: Case) -> Iterator[str]:
        """A table for the case; at the end it must have the rows that the case leads to, and it is dropped."""
        name = f"bench_{uuid.uuid4().hex[:8]}"
        self.sql(f"CREATE TABLE {name} ({_DDL})")
        expected = self.rows
        if case == "append with a key":
            self.sql(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        elif case != "append":
            self.sql(
                f"INSERT INTO {name} SELECT i * 2, i % 1000000, i, timestamptz '2025-01-01' + i * interval '1 ms'"
                f" FROM generate_series(0, {self.rows - 1}) i"
            )
            self.sql(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
            self.sql(f"CREATE INDEX ON {name} (account)")
            self.sql(f"CREATE INDEX ON {name} (at)")
            self.sql(f"VACUUM ANALYZE {name}")
            new = {"new": self.rows, "existing": 0, "mixed": self.rows // 2}[case]
            expected += new
        self.sql("CHECKPOINT")
        try:
            yield name
            found, written = self.sql(f"SELECT count(*), count(*) FILTER (WHERE at >= '2026-01-01') FROM {name}")[0]
            if (found, written) != (expected, self.rows):
                raise RuntimeError(
                    f"{case}: {found:,} rows, {written:,} of them new; {expected:,}, {self.rows:,} wanted"
                )
        finally:
            self.sql(f"DROP TABLE {name}")

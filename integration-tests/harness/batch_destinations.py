"""Where the formats of batches write: topics and tables of a test's own, their options, and the rows that are there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from harness.kafka.reading import Reader, open_transactions, stable_and_end
from harness.support import fresh
from pyspark.sql import DataFrame

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping

__all__ = ["FORMATS", "Destination", "destination_of"]

PARTITIONS = 3
FORMATS = [
    "onefold_postgres",
    "onefold_kafka",
    pytest.param("onefold_hbase", marks=pytest.mark.xdist_group("hbase")),
    "onefold_sql sqlite",
    "onefold_sql mariadb",
]


@dataclass(frozen=True)
class Destination:
    """A table or topic with the columns `id` and `n`. `rows` are those that are there, and nothing else is in doubt."""

    format: str
    options: dict[str, str]
    rows: Callable[[], list[tuple[int, int]]]

    @property
    def writes_through(self) -> bool:
        return self.format == "onefold_hbase"

    def save(self, df: DataFrame, run: str, **more: str) -> None:
        df.write.format(self.format).options(**self.options, run=run).options(**more).mode("append").save()


def destination_of(kind: str, request: pytest.FixtureRequest, directory: Path) -> Destination:
    """One of FORMATS, whose server the test's fixtures start."""
    made = _MAKERS[kind](request, directory)
    return replace(made, options={"pipeline": fresh("p"), **made.options})


def _postgres(request: pytest.FixtureRequest, directory: Path) -> Destination:
    del directory
    url = request.getfixturevalue("postgres_url")

    def rows() -> list[tuple[int, int]]:
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT * FROM onefold_sinks.onefold_staged").fetchall() == []
            return connection.execute("SELECT id, n FROM rows ORDER BY id, n").fetchall()

    return Destination("onefold_postgres", {"url": url, "table": "rows"}, rows)


def _kafka(request: pytest.FixtureRequest, directory: Path) -> Destination:
    servers = request.getfixturevalue("kafka_server").bootstrap_servers
    topic = request.getfixturevalue("kafka_topic")(partitions=PARTITIONS)

    def rows() -> list[tuple[int, int]]:
        with closing(Reader(servers, topic, PARTITIONS)) as reader:
            found = reader.rows()
        assert [name for name in open_transactions(servers) if f"/{topic}/" in name] == []
        assert all(stable == end for stable, end in stable_and_end(servers, topic, PARTITIONS))
        return sorted((row["id"], row["n"]) for row in found)

    options = {"topic": topic, "kafka.bootstrap.servers": servers, "key": "id"}
    return Destination("onefold_kafka", {**options, "store": f"sqlite:///{directory / 'kafka.db'}"}, rows)


def _hbase(request: pytest.FixtureRequest, directory: Path) -> Destination:
    servers, table = request.getfixturevalue("hbase_server").servers, fresh("batch")
    cells = {"n": "f:n integer"}
    mapping = TableMapping.of(table, "id integer", cells)

    def rows() -> list[tuple[int, int]]:
        found: list[dict[str, Any]] = []
        for part in HBaseTable(HBaseSettings(servers), table).scan(b"", b"", mapping.cell_columns):
            found += mapping.decode(part.keys, part.values).to_pylist()
        return sorted((row["id"], row["n"]) for row in found)

    options = {"servers": servers, "table": table, "rowKey": "id integer", "columns": "n = f:n integer"}
    store = {"store": f"sqlite:///{directory / 'hbase.db'}"}
    return Destination("onefold_hbase", {**options, **store, "repartition": "false"}, rows)


def _sql(url: str) -> Destination:
    def rows() -> list[tuple[int, int]]:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            found = connection.execute(sa.text("SELECT id, n FROM rows_of_runs ORDER BY id, n")).all()
        return [(row.id, row.n) for row in found]

    return Destination("onefold_sql", {"url": url, "table": "rows_of_runs"}, rows)


_MAKERS: dict[str, Callable[[pytest.FixtureRequest, Path], Destination]] = {
    "onefold_postgres": _postgres,
    "onefold_kafka": _kafka,
    "onefold_hbase": _hbase,
    "onefold_sql sqlite": lambda _, directory: _sql(f"sqlite:///{directory / 'rows.db'}"),
    "onefold_sql mariadb": lambda request, _: _sql(request.getfixturevalue("mariadb_url")),
}

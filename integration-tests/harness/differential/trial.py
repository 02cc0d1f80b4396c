"""One random flow between a topic and tables of its own, and whether the tables are the model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from harness.differential.building import Building, table_of
from harness.differential.drawing import encoded, partition_of
from harness.differential.model import Table, tables
from harness.differential.shapes import Row, Shape
from harness.kafka.topics import in_order
from hypothesis import HealthCheck, Phase, settings

__all__ = ["RUN", "MakeTrial", "Trial"]

MakeTrial = Callable[[Shape], "Trial"]
RUN = settings(
    deadline=None,
    phases=[Phase.generate],  # to shrink an example takes many runs: begin with the printed one
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass
class Trial:
    """`directory` is the trial's own."""

    shape: Shape
    name: str
    servers: str
    topics: tuple[str, ...]
    url: str
    directory: Path
    sent: list[list[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.sent = [[] for _ in self.topics]

    @property
    def building(self) -> Building:
        return Building(self.shape, self.name, self.url)

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    def put(self, rows: Sequence[Row]) -> int:
        """Into each topic in turn. Returns how many the longest part has."""
        parts = [rows[number :: len(self.topics)] for number in range(len(self.topics))]
        producer = in_order(self.servers)
        for topic, part, sent in zip(self.topics, parts, self.sent, strict=True):
            for row in part:
                producer.produce(topic, encoded(row), partition=partition_of(row))
            sent += part
        assert producer.flush(30) == 0
        return len(parts[0])

    def assert_tables(self) -> None:
        """Every table has the rows of the model, each as often, and no transaction is in doubt."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for number, expected in enumerate(tables(self.shape, self.sent)):
                found = _rows(connection, table_of(self.name, number))
                expected, found = _comparable(expected), _comparable(found)
                missing, surplus = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
                assert not missing and not surplus, (
                    f"{self.shape.ends[number]} of {self.shape}: missing {missing}, surplus {surplus}"
                )
            in_doubt = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            assert in_doubt.fetchall() == []


def _comparable(rows: Table) -> Table:
    """NaN as a text, which equals itself."""
    return [tuple("NaN" if value != value else value for value in row) for row in rows]


def _rows(connection: psycopg.Connection[Any], table: str) -> Table:
    """Its rows, without the number of the epoch; none of a table that nothing was written to."""
    if connection.execute("SELECT to_regclass(%s)", [table]).fetchall() == [(None,)]:
        return []
    cursor = connection.execute(f"SELECT * FROM {table}".encode())
    kept = [at for at, column in enumerate(cursor.description or ()) if column.name != "onefold_epoch"]
    return [tuple(row[at] for at in kept) for row in cursor.fetchall()]

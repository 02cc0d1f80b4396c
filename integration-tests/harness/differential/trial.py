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

__all__ = ["MakeTrial", "Trial"]

MakeTrial = Callable[[Shape], "Trial"]


@dataclass
class Trial:
    """`directory` is the trial's own."""

    shape: Shape
    name: str
    servers: str
    topic: str
    url: str
    directory: Path
    sent: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir()

    @property
    def building(self) -> Building:
        return Building(self.shape, self.name, self.url)

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    def put(self, rows: Sequence[Row]) -> None:
        producer = in_order(self.servers)
        for row in rows:
            producer.produce(self.topic, encoded(row), partition=partition_of(row))
        assert producer.flush(30) == 0
        self.sent += rows

    def assert_tables(self) -> None:
        """Every table has the rows of the model, each as often, and no transaction is in doubt."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for number, expected in enumerate(tables(self.shape, self.sent)):
                found = _rows(connection, table_of(self.name, number))
                missing, surplus = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
                assert not missing and not surplus, (
                    f"{self.shape.ends[number]} of {self.shape}: missing {missing}, surplus {surplus}"
                )
            in_doubt = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            assert in_doubt.fetchall() == []


def _rows(connection: psycopg.Connection[Any], table: str) -> Table:
    """Its rows, without the number of the epoch; none of a table that nothing was written to."""
    if connection.execute("SELECT to_regclass(%s)", [table]).fetchall() == [(None,)]:
        return []
    cursor = connection.execute(f"SELECT * FROM {table}".encode())
    kept = [at for at, column in enumerate(cursor.description or ()) if column.name != "onefold_epoch"]
    return [tuple(row[at] for at in kept) for row in cursor.fetchall()]

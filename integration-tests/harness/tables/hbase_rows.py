"""An HBase table as the tests see it: pipelines into it without Spark, and what a reader finds."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness.pipeline_drivers import Epochs

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.core import EpochRecord, SinkWriter, TaskId
from onefold.sinks import HBaseSink

__all__ = ["SCHEMA", "Line", "Row", "rows"]

SCHEMA = pa.schema([("id", pa.string()), ("version", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])
Row = tuple[str, int, int | None, bool]


def rows(*given: Row) -> pa.RecordBatch:
    """Of SCHEMA."""
    columns = list(zip(*given, strict=True)) or [[]] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


class Line:
    """A sink of rows of SCHEMA, its pipeline's lives, and its table."""

    def __init__(self, servers: str, directory: Path, **settings: Any) -> None:
        self.store = f"sqlite:///{directory / 'store.db'}"
        self.servers, self.table = servers, f"test_{uuid.uuid4().hex[:12]}"
        self.settings = {"row_key": "id", "family": "f", "order": "version", "delete_when_true": "gone", **settings}
        self.sink = self.make()

    def make(self, **more: Any) -> HBaseSink:
        return HBaseSink(self.servers, **{"table": self.table, **self.settings, **more})

    def life(self) -> Epochs:
        return Epochs(self.sink, SCHEMA, pipeline=self.table, store=self.store)

    def writer(self, life: Epochs, record: EpochRecord) -> SinkWriter:
        """One more attempt of an epoch."""
        task = TaskId(life.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())
        return self.sink.writer(task)

    def shown(self) -> dict[str, tuple[int, int | None]]:
        """What a reader sees: version and n of each row that is not deleted."""
        given = self.sink.settings
        mapping = given.mode.bound(given.declared, SCHEMA)
        marks = (
            []
            if mapping.tombstone_column is None
            else [(mapping.tombstone_column.family, mapping.tombstone_column.qualifier)]
        )
        found: dict[str, tuple[int, int | None]] = {}
        for part in HBaseTable(HBaseSettings(self.servers), self.table).scan(b"", b"", [*mapping.cell_columns, *marks]):
            batch = mapping.decode(part.keys, part.values[: len(mapping.columns)])
            if marks:
                batch = batch.filter(mapping.living(part.values[-1]))
            found |= {row["id"]: (row["version"], row["n"]) for row in batch.to_pylist()}
        return found

    def timestamps(self, keys: Sequence[str]) -> set[int | None]:
        """Of the newest cells of these rows."""
        found = HBaseTable(HBaseSettings(self.servers), self.table).read(
            pa.array([key.encode() for key in keys], pa.binary()), [(b"f", b"version"), (b"f", b"n")]
        )
        return {stamp for stamps in found.timestamps for stamp in stamps.to_pylist()}

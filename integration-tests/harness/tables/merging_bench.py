"""Tasks that write into an HBase table by hand: killed between two requests, woken late, run again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from onefold.clients.hbase import HBaseSettings
from onefold.clients.hbase.table import HBaseTable
from onefold.core import Committable, TaskId
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.merge import own_cell
from onefold.sinks.hbase.modes import appliers, rolling

__all__ = ["Bench", "Died", "Held", "dies", "held"]


class Died(BaseException):
    """What a SIGKILL is to a writer: no clean-up of its own comes after it."""


class Bench:
    """One sink, opened, and the server's own view of its table."""

    def __init__(self, server: Any, schema: pa.Schema, **settings: Any) -> None:
        table, timeout_s = f"test_{uuid.uuid4().hex[:12]}", settings.pop("timeout_s", 10.0)
        servers = HBaseSettings(server.servers, timeout_s=timeout_s)
        self.sink = HBaseSink(servers, table, row_key="k", family="f", **settings)
        self.schema, self._server = schema, server
        self.sink.open("p", schema).close()
        self.mapping = self.sink.settings.mode.bound(self.sink.settings.declared, schema)
        self.table = HBaseTable(self.sink.settings.hbase, table)

    def flush(self) -> None:
        self._server.flush(self.table.name)

    def major_compact(self) -> None:
        self.flush()
        self._server.major_compact(self.table.name)

    def write(
        self, rows: Sequence[tuple[Any, ...]], epoch: int = 1, generation: int = 1, timestamp_ms: int | None = None
    ) -> Committable | None:
        """One task, from its first row to its end. Its T is the epoch's number, unless it is said."""
        task = TaskId("p", generation, epoch, timestamp_ms or epoch * 1000, uuid.uuid4())
        writer = self.sink.writer(task)
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        writer.write(pa.record_batch(arrays, schema=self.schema))
        return writer.prepare()

    def read(self) -> dict[Any, dict[str, Any]]:
        """Key -> the row's values."""
        found: dict[Any, dict[str, Any]] = {}
        for rows in self.table.scan(b"", b"", self.mapping.cell_columns):
            for row in self.mapping.decode(rows.keys, rows.values).to_pylist():
                found[row.pop("k")] = row
        return found

    def own(self, name: bytes) -> dict[str, bytes | None]:
        """Key -> what the sink's own cell has."""
        cell = own_cell(self.mapping, name)
        return {
            key.decode(): value
            for rows in self.table.scan(b"", b"", [cell])
            for key, value in zip(rows.keys.to_pylist(), rows.values[0].to_pylist(), strict=True)
        }


@contextmanager
def dies(patch: pytest.MonkeyPatch, passes: int) -> Iterator[None]:
    """The writer within dies before it writes a part of its rows, once it has written so many parts."""
    left = passes

    def die(name: str) -> None:
        nonlocal left
        if name == "hbase:read":
            left -= 1
            if left < 0:
                raise Died

    with patch.context() as inside:
        for module in (rolling, appliers):
            inside.setattr(module, "failpoint", die)
        with pytest.raises(Died):
            yield


class Held:
    """A writer that stands still before it writes its first part."""

    def __init__(self) -> None:
        self._came, self._goes = threading.Event(), threading.Event()

    def pass_by(self, name: str) -> None:
        if name == "hbase:read" and not self._came.is_set():
            self._came.set()
            assert self._goes.wait(30)

    def wait(self) -> None:
        assert self._came.wait(30)

    def let_go(self) -> None:
        self._goes.set()


@contextmanager
def held(patch: pytest.MonkeyPatch) -> Iterator[Held]:
    """The first writer that comes there is held; all others pass."""
    one = Held()
    with patch.context() as inside:
        for module in (rolling, appliers):
            inside.setattr(module, "failpoint", one.pass_by)
        yield one
        one.let_go()

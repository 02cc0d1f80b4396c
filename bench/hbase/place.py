"""What the contestants of the HBase benchmark find: servers, an empty table, rows, a clock."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import RowKey
from onefold.clients.hbase.table_admin import create, drop
from onefold.local import HBaseServer

__all__ = ["KEY", "SCHEMA", "Place", "Spent"]

BATCH_ROWS = 10_000  # as Spark hands them out
SCHEMA = pa.schema({"id": pa.int64(), "number": pa.int64(), "amount": pa.int64(), "note": pa.string()})
KEY = RowKey.of("id integer")
REGIONS = 4


@dataclass
class Spent:
    """How many rows, seconds on the clock, CPU seconds of this process and of the servers."""

    rows: int = 0
    seconds: float = 0.0
    client_s: float = 0.0
    servers_s: float = 0.0


@dataclass
class Place:
    directory: Path
    server: HBaseServer
    rows: int
    one_by_one: int
    say: Callable[[str], None]
    settings: HBaseSettings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = HBaseSettings(self.server.servers)

    @property
    def thrift1(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.thrift1.port

    @contextmanager
    def clock(self, rows: int) -> Iterator[Spent]:
        """Times what is done inside."""
        spent = Spent(rows)
        pids = self._pids()
        client, servers, began_s = _cpu_s(os.getpid()), sum(map(_cpu_s, pids)), time.perf_counter()
        yield spent
        spent.seconds = time.perf_counter() - began_s
        spent.client_s, spent.servers_s = _cpu_s(os.getpid()) - client, sum(map(_cpu_s, pids)) - servers

    @contextmanager
    def table(self, keys: int) -> Iterator[str]:
        """An empty table of four regions, cut for so many keys from 0 on; dropped afterwards."""
        name = f"bench_{uuid.uuid4().hex[:8]}"
        cuts = pa.record_batch({"id": pa.array([keys * at // REGIONS for at in range(1, REGIONS)], pa.int64())})
        create(self.settings, name, [ColumnFamily(b"f")], KEY.bound(cuts.schema).encode(cuts).to_pylist())
        yield name
        drop(self.settings, name)

    def check(self, table: str, rows: int, total: int | None = None) -> None:
        """Raise unless the table has so many rows, and their amounts that total: also a benchmark has to be right."""
        found, amount = 0, 0
        for batch in HBaseTable(self.settings, table).scan(b"", b"", [(b"f", b"amount")]):
            found += len(batch.keys)
            amount += sum(int.from_bytes(value or b"", "big") - (1 << 63) for value in batch.values[0].to_pylist())
        if found != rows or (total is not None and amount != total):
            raise RuntimeError(f"{table}: {found:,} rows of {rows:,}, amounts of {amount:,} instead of {total}")

    def batches(self, rows: int, keys: int) -> list[pa.RecordBatch]:
        """`rows` changes of `keys` keys in random order, each key as often as any other; numbers grow."""
        return _batches(rows, keys)

    def _pids(self) -> list[int]:
        servers = (self.server.hbase, self.server.thrift, self.server.thrift1)
        return [pid for server in servers if (pid := server.status().pid) is not None]


@cache
def _batches(rows: int, keys: int) -> list[pa.RecordBatch]:
    ids = np.random.default_rng(7).permutation(np.arange(rows) % keys)
    numbers = np.arange(rows)
    columns = {
        "id": pa.array(ids),
        "number": pa.array(numbers),
        "amount": pa.array(numbers % 1000),
        "note": pa.array([f"{number:08d}" for number in range(rows)]),
    }
    return pa.table(columns, schema=SCHEMA).to_batches(max_chunksize=BATCH_ROWS)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)

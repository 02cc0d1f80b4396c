"""One pipeline into Postgres and HBase, its driver cut off at every place: both say the same, and once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa
import pytest
from lives import Life
from support import CrashError

from onefold.core import Committable, EpochRecord, Sink, driver
from onefold.hbase import HBaseSettings, HBaseTable
from onefold.hbase.mapping import TableMapping
from onefold.local import HBaseServer
from onefold.sinks import HBaseSink, PostgresSink

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ROWS = 10
TASKS = 2


class Pair:
    """A table here and one there."""

    def __init__(self, servers: str, url: str) -> None:
        self.servers, self.url, self.table = servers, url, f"test_{uuid.uuid4().hex[:12]}"
        self.at = 0  # how many epochs were begun

    @contextmanager
    def life(self) -> Iterator[Life[Sink]]:
        postgres = PostgresSink(self.url, self.table, delivery="two_phase", name="postgres")
        hbase = HBaseSink(self.servers, self.table, row_key="id", family="f", name="hbase")
        with Life[Sink]([postgres, hbase], self.table) as life:
            life.recover(from_ledger=True)
            life.open(SCHEMA)
            yield life

    def run(self, life: Life[Sink]) -> None:
        """The epoch from where the pipeline stands."""
        assert life.started is not None and life.started.start is not None
        self.at = max(dict(life.started.start.items).values(), default=0)

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            ids = list(range(self.at * ROWS, self.at * ROWS + ROWS))
            prepared: list[Committable] = []
            for task in range(TASKS):
                mine = pa.array(ids[task::TASKS], pa.int64())
                batch = pa.RecordBatch.from_arrays([mine, mine], schema=SCHEMA)
                for sink in life.sinks:
                    prepared += life.task(sink, record, [batch])
            return tuple(prepared)

        life.process(self.at, self.at + 1, self.at, write, continues=self.at > 0)
        self.at += 1

    def assert_equal(self, life: Life[Sink]) -> None:
        """Both have all rows once, and stand at one place."""
        mapping = TableMapping.of(self.table, "id integer", {"n": "f:n integer"})
        parts = HBaseTable(HBaseSettings(self.servers), self.table).scan(b"", b"", mapping.cell_columns)
        there = [row["id"] for part in parts for row in mapping.decode(part.keys, part.values).to_pylist()]
        with psycopg.connect(self.url, autocommit=True) as connection:
            here = [id for (id,) in connection.execute(f"SELECT id FROM {self.table} ORDER BY id".encode())]
            assert connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall() == []
        assert here == there == list(range(self.at * ROWS))
        entries = [committer.ledger() for committer in life.driver.committers.values()]
        assert [entry and dict(entry.positions.items) for entry in entries] == [{"t/0": self.at}] * 2


def test_both_sinks_have_each_row_once_wherever_the_driver_dies(
    hbase_server: HBaseServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each life finishes, or gives up, what the one before it left, and dies one step later in its own epoch."""
    pair = Pair(hbase_server.servers, postgres_url)
    places: list[str] = []
    while True:
        passed: list[str] = []

        def failpoint(name: str, passed: list[str] = passed) -> None:
            passed.append(name)
            if name.startswith("after:") and len(passed) > 2 * len(places) + 1:
                raise CrashError

        with pair.life() as life:
            with monkeypatch.context() as patched, suppress(CrashError):
                patched.setattr(driver, "failpoint", failpoint)
                pair.run(life)
                break
            places.append(passed[-1])
    with pair.life() as life:
        pair.assert_equal(life)
    assert {f"after:{name}" for name in ("Announce", "RunWriters", "Verify", "Decide", "Complete")} <= {*places}
    assert places.count("after:Commit") == places.count("after:WriteLedger") == 2
    print(f"\n{pair.at} epochs; the driver died at {', '.join(places)}")

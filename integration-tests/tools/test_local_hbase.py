"""The local HBase: its processes can die one by one, and what was acknowledged is there afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.hbase import Cells, HBaseTable
from onefold.local import HBaseServer, LocalServerError
from onefold.local.hbase.parts import ThriftProcess

pytestmark = [
    pytest.mark.servers,
    pytest.mark.xdist_group("hbase"),
    pytest.mark.only_with_servers("local", reason="it is a test of onefold.local"),
]

KEYS = pa.array([b"a", b"n", b"z"], pa.binary())
VALUE = (b"f", b"q")


def values(table: HBaseTable) -> list[bytes | None]:
    found: list[bytes | None] = table.get(KEYS, [VALUE])[0].to_pylist()
    return found


def put(table: HBaseTable, *written: bytes, at: int) -> None:
    table.put(KEYS, [Cells(*VALUE, pa.array(written, pa.binary()))], at)


def files_of(server: HBaseServer, table: HBaseTable) -> list[Path]:
    return [path for path in (server.hbase.home / "data/data/default" / table.name).glob("*/f/*") if path.is_file()]


@pytest.mark.slow
def test_what_was_acknowledged_outlives_sigkill_of_all_processes_or_of_one(
    hbase_server: HBaseServer, hbase_table: Callable[..., HBaseTable]
) -> None:
    table = hbase_table(split_keys=[b"m"])
    put(table, b"1", b"2", b"3", at=1)
    address = hbase_server.servers
    hbase_server.kill()
    assert not hbase_server.status().running
    assert "had died, its data are kept" in hbase_server.start().detail
    assert hbase_server.servers == address
    assert values(table) == [b"1", b"2", b"3"]

    put(table, b"4", b"5", b"6", at=2)
    hbase_server.thrift.kill()
    assert "but its Thrift server does not" in hbase_server.status().detail
    hbase_server.start()
    assert values(table) == [b"4", b"5", b"6"]


def test_a_flush_writes_files_and_a_major_compaction_removes_what_nobody_can_read(
    hbase_server: HBaseServer, hbase_table: Callable[..., HBaseTable]
) -> None:
    table = hbase_table(versions_max=1, split_keys=[b"m"])
    assert not files_of(hbase_server, table)
    put(table, b"old", b"old", b"old", at=1)
    hbase_server.flush(table.name)
    assert len(files_of(hbase_server, table)) == 2  # one of each region
    table.delete(KEYS, [VALUE], 5)
    hbase_server.flush(table.name)
    put(table, b"hidden", b"hidden", b"hidden", at=3)
    assert values(table) == [None] * 3  # below the deletion
    hbase_server.flush(table.name)
    hbase_server.major_compact(table.name)
    assert values(table) == [None] * 3
    put(table, b"seen", b"seen", b"seen", at=3)
    assert values(table) == [b"seen"] * 3  # the deletion itself is gone


def test_a_hundred_regions_fit_into_its_heap(hbase_table: Callable[..., HBaseTable]) -> None:
    keys = [b"%03d" % number for number in range(100)]
    table = hbase_table(split_keys=keys[1:])
    column = pa.array(keys, pa.binary())
    table.put(column, [Cells(*VALUE, column)], 1)
    assert table.get(column, [VALUE])[0].to_pylist() == keys


def test_what_is_not_there_cannot_be_flushed_or_paused_or_served(hbase_server: HBaseServer, tmp_path: Path) -> None:
    with raises(LocalServerError, "local-table-missing"):
        hbase_server.flush("missing")
    with raises(LocalServerError, "server-not-running"):
        HBaseServer(tmp_path).thrift.pause()
    with raises(LocalServerError, "server-never-started"):
        _ = HBaseServer(tmp_path).servers
    with raises(LocalServerError, "server-already-running"):
        HBaseServer(hbase_server.directory, port=1).start()
    with raises(LocalServerError, "server-never-started"):
        ThriftProcess(tmp_path).start()

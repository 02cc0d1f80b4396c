"""HBaseSource against a real HBase: parts by region, deletions, time ranges, and what is refused."""

from __future__ import annotations

import datetime as dt
import pickle
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import RowKey, TableMapping
from onefold.clients.hbase.table_admin import create
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.core.testing import Promise, check_source
from onefold.sources import HBaseSource

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

SCHEMA = pa.schema([("who", pa.string()), ("id", pa.int32()), ("amount", pa.decimal128(12, 2)), ("note", pa.string())])
KEY = RowKey.of("who, id", salt=16)


@pytest.fixture(scope="module")
def settings(hbase_server: Any) -> HBaseSettings:
    return HBaseSettings(hbase_server.servers)


@pytest.fixture(scope="module")
def table(settings: HBaseSettings) -> str:
    """4 regions, 600 rows, of which those up to 99 were written again at 2000, and then a third of these deleted."""
    name = f"source_{uuid.uuid4().hex[:12]}"
    create(settings, name, [ColumnFamily(b"f")], KEY.split_keys(4))
    mapping, there = bound(name), HBaseTable(settings, name)
    first, again = rows(range(600)), rows(range(100), note="again")
    there.put(mapping.keys(first), mapping.cells(first), 1000)
    gone = pa.array([i % 3 == 0 for i in range(100)])
    there.put(mapping.keys(again), mapping.cells(again, gone), 2000)
    return name


def declared(name: str, **more: Any) -> TableMapping:
    return TableMapping.of(name, KEY, {"amount": "f:a"}, family="f", tombstone_column="f:_deleted", **more)


def bound(name: str) -> TableMapping:
    return declared(name).bound(SCHEMA)


def rows(ids: range, note: str | None = None) -> pa.RecordBatch:
    lines = [
        {"who": f"w{i % 7}\0", "id": i, "amount": None if i % 5 == 0 else Decimal(i) / 4, "note": note} for i in ids
    ]
    return pa.RecordBatch.from_pylist(lines, schema=SCHEMA)


def found(source: HBaseSource, schema: pa.Schema | None = SCHEMA) -> dict[int, dict[str, Any]]:
    lines = [line for part in source.parts(schema) for batch in source.batches(part) for line in batch.to_pylist()]
    by_id = {line["id"]: line for line in lines}
    assert len(by_id) == len(lines)
    return by_id


def test_salted_rows_of_all_regions_come_back_once_and_deleted_ones_do_not(settings: HBaseSettings, table: str) -> None:
    source = HBaseSource(settings, declared(table))
    parts = source.parts(SCHEMA)
    assert [(part.start, part.stop) for part in parts] == [
        (b"", b"\x04"),
        (b"\x04", b"\x08"),
        (b"\x08", b"\x0c"),
        (b"\x0c", b""),
    ]
    assert pickle.loads(pickle.dumps(parts)) == parts
    assert all(sum(batch.num_rows for batch in source.batches(part)) for part in parts)
    expected = rows(range(600)).to_pylist()
    for i in range(100):
        expected[i]["note"] = "again"
    assert found(source) == {line["id"]: line for line in expected if line["id"] >= 100 or line["id"] % 3}


def test_deleted_rows_come_where_they_are_asked_for(settings: HBaseSettings, table: str) -> None:
    source = HBaseSource(settings, declared(table), deleted_as="gone")
    whole = found(source, pa.schema([("gone", pa.bool_()), *SCHEMA]))
    assert len(whole) == 600
    assert {i for i, line in whole.items() if line["gone"]} == {i for i in range(100) if i % 3 == 0}
    assert whole[3] == {"who": "w3\0", "id": 3, "amount": None, "note": None, "gone": True}


def test_a_time_range_has_the_cells_of_that_time(settings: HBaseSettings, table: str) -> None:
    def between(since: int | dt.datetime | None, until: int | dt.datetime | None) -> set[int]:
        return set(found(HBaseSource(settings, declared(table), since=since, until=until, deleted_as="gone")))

    second = dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)
    assert between(2000, None) == between(second, 2001) == set(range(100))
    assert between(None, 2001) == set(range(600))
    assert between(1000, 1001) >= set(range(100, 600))
    assert between(2001, None) == set()


def test_what_is_declared_is_enough_to_read_and_some_columns_may_be_asked_for(
    settings: HBaseSettings, table: str
) -> None:
    source = HBaseSource(
        settings.servers,
        table,
        row_key="who string, id integer",
        salt=16,
        columns="amount = f:a decimal(20,2)",
        tombstone_column="f:_deleted",
    )
    line = found(source, None)[101]
    assert line == {"who": "w3\0", "id": 101, "amount": Decimal("25.25")}
    assert found(source, pa.schema([("amount", pa.decimal128(12, 2)), ("id", pa.int64())]))[101] == {
        "amount": Decimal("25.25"),
        "id": 101,
    }
    assert HBaseSource.from_options(source.options()).options() == source.options()


def test_rows_that_the_mapping_did_not_write_are_named(settings: HBaseSettings, table: str) -> None:
    with raises(BadRecord, "row-key-mismatch", f"{table}"):
        found(HBaseSource(settings, table, row_key="who, id", family="f"))
    with raises(BadRecord, "cell-not-decodable", "'amount'"):
        found(
            HBaseSource(settings, table, row_key="who, id", salt=16, columns={"amount": "f:a"}),
            pa.schema([*list(SCHEMA)[:2], ("amount", pa.int64())]),
        )


def test_what_cannot_be_read_is_refused_before_any_row(settings: HBaseSettings, table: str) -> None:
    with raises(ConfigError, "hbase-table-missing"):
        HBaseSource(settings, "there_is_none", row_key="id integer", columns="n = f:n integer").parts()
    with raises(ConfigError, "hbase-column-family-missing", "'g'"):
        HBaseSource(settings, table, row_key="id integer", columns="n = g:n integer").parts()
    with raises(SchemaMismatch, "column-not-mapped", "'gone'"):
        HBaseSource(settings, table, row_key="id", columns="n = f:n").parts(
            pa.schema([("id", pa.int64()), ("gone", pa.bool_())])
        )
    with raises(ConfigError, "schema-missing", "'n'"):
        HBaseSource(settings, table, row_key="id integer", columns="n = f:n").parts()
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"deleted_as": "gone"}, "deleted_as= needs"),
        ({"since": 5, "until": 5}, "must be later than"),
        ({"since": dt.datetime(2026, 1, 1)}, "no time zone"),
        ({"row_key": None}, "row_key= names"),
    )
    for told, message in wrong:
        with pytest.raises(ConfigError, match=message):
            HBaseSource(settings, **{"table": table, "row_key": "id", "family": "f", **told})
    for options, message in (
        ({"server": "x:1"}, "did you mean 'servers'"),
        ({"table": "t"}, "'servers' is missing"),
        ({"servers": "x:1", "table": "t"}, "'rowKey' is missing"),
        ({"servers": "x:1", "table": "t", "rowKey": "id", "since": "soon"}, "since is a number"),
    ):
        with pytest.raises(ConfigError, match=message):
            HBaseSource.from_options(options)


def test_it_keeps_every_promise_of_a_source_that_is_read_once(settings: HBaseSettings) -> None:
    name = f"source_{uuid.uuid4().hex[:12]}"
    source = HBaseSource(settings, name, row_key="id long", columns={"note": "f:note string"})
    schema = source.arrow_schema()
    mapping, there = source.mapping.bound(schema), HBaseTable(settings, name)
    create(settings, name, [ColumnFamily(b"f")], [(2**63 + 20).to_bytes(8)])

    def make(on_error: str, bad_records_max: int) -> HBaseSource:
        assert (on_error, bad_records_max) == ("fail", 0)
        return source

    def put(ids: Sequence[int]) -> None:
        batch = pa.RecordBatch.from_pylist([{"id": i, "note": "x"} for i in ids], schema=schema)
        there.put(mapping.keys(batch), mapping.cells(batch), 1000)

    assert Promise.SOURCE_ONCE in check_source(make, put).promises

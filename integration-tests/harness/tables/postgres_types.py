"""Values of every Arrow type that Spark can produce, and an epoch that puts them into a table."""

# ruff: noqa: E501 - one line for each type
from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import Any

import pyarrow as pa

from onefold.clients.postgres import sessions as pool
from onefold.core.contract import Committable, Decided, EpochRecord, EpochState, LastResource, LedgerEntry, TaskId
from onefold.core.positions import Positions, Range
from onefold.sinks import PostgresSink

UTC = dt.UTC
D = decimal.Decimal

NESTED = pa.struct(
    [("a", pa.int64()), ("d", pa.decimal128(38, 18)), ("t", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.string()))]
)
NESTED_VALUE = {
    "a": 2**63 - 1,
    "d": D("1.000000000000000001"),
    "t": dt.datetime(2024, 2, 29, 1, 2, 3, 4, UTC),
    "l": ['é"\\\n', None],
}
NESTED_JSON = {
    "a": 2**63 - 1,
    "d": D("1.000000000000000001"),
    "t": "2024-02-29T01:02:03.000004Z",
    "l": ['é"\\\n', None],
}

# name, Arrow type, values, the type of the column that is created, what is read back (None: the values themselves)
CASES: list[tuple[str, pa.DataType, list[Any], str, list[Any] | None]] = [
    ("boolean", pa.bool_(), [True, False, None], "boolean", None),
    ("byte", pa.int8(), [-128, 127, None], "smallint", None),
    ("short", pa.int16(), [-(2**15), 2**15 - 1, None], "smallint", None),
    ("integer", pa.int32(), [-(2**31), 2**31 - 1, None], "integer", None),
    ("long", pa.int64(), [-(2**63), 2**63 - 1, None], "bigint", None),
    ("uint64", pa.uint64(), [0, 2**64 - 1, None], "numeric(20,0)", None),
    ("float", pa.float32(), [1.5, -0.0, math.inf, None], "real", None),
    ("double", pa.float64(), [0.1, 5e-324, -math.inf, None], "double precision", None),
    ("decimal", pa.decimal128(38, 18), [D("99999999999999999999.999999999999999999"), D("-0.000000000000000001"), D(0), None], "numeric(38,18)", None),
    ("money", pa.decimal128(12, 2), [D("1234567890.12"), D("-0.01"), None], "numeric(12,2)", None),
    ("decimal0", pa.decimal128(38, 0), [D("9" * 38), None], "numeric(38,0)", None),
    ("string", pa.string(), ["", "naïve ☃ 🙂", "a\tb\nc\\", None], "text", None),
    ("large_string", pa.large_string(), ["x" * 100_000, None], "text", None),
    ("binary", pa.binary(), [b"", b"\x00\xff", None], "bytea", None),
    ("large_binary", pa.large_binary(), [b"x", None], "bytea", None),
    ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), None], "date", None),
    ("timestamp", pa.timestamp("us", "UTC"), [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 3, 31, 1, 30, 0, 123456, UTC), None], "timestamp with time zone", None),
    ("zoned", pa.timestamp("us", "America/New_York"), [dt.datetime(2024, 3, 31, 1, 30, 0, 123456, UTC), None], "timestamp with time zone", None),
    ("timestamp_ntz", pa.timestamp("us"), [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1969, 12, 31), None], "timestamp without time zone", None),
    ("time", pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0), None], "time without time zone", None),
    ("interval", pa.duration("us"), [dt.timedelta(40, 1, 7), dt.timedelta(microseconds=-3), None], "interval", None),
    ("void", pa.null(), [None, None], "text", None),
    ("longs", pa.list_(pa.int64()), [[1, None, 2**63 - 1], [], None], "bigint[]", None),
    ("strings", pa.list_(pa.string()), [["a", None, "{\"}"], [], None], "text[]", None),
    ("decimals", pa.list_(pa.decimal128(10, 2)), [[D("1.20"), None], [], None], "numeric[]", None),
    ("dates", pa.list_(pa.date32()), [[dt.date(2020, 1, 1), None], None], "date[]", None),
    ("instants", pa.list_(pa.timestamp("us", "UTC")), [[dt.datetime(2020, 1, 1, 0, 0, 0, 5, UTC), None, dt.datetime(1900, 1, 1, tzinfo=UTC)], [], None, [None]], "timestamp with time zone[]", None),
    ("times_ntz", pa.list_(pa.timestamp("us")), [[dt.datetime(2020, 1, 1), None], []], "timestamp without time zone[]", None),
    ("binaries", pa.list_(pa.binary()), [[b"\x00", None], []], "bytea[]", None),
    ("bools", pa.list_(pa.bool_()), [[True, None, False]], "boolean[]", None),
    ("doubles", pa.large_list(pa.float64()), [[0.5, None]], "double precision[]", None),
    ("struct", NESTED, [NESTED_VALUE, None], "jsonb", [NESTED_JSON, None]),
    ("map", pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], [], None], "jsonb", [{"k": 1, "l": None}, {}, None]),
    ("structs", pa.list_(NESTED), [[NESTED_VALUE, None], [], None], "jsonb", [[NESTED_JSON, None], [], None]),
    ("matrix", pa.list_(pa.list_(pa.int32())), [[[1], [], None]], "jsonb", [[[1], [], None]]),
    ("dictionary", pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a", None], "text", None),
]  # fmt: skip


def load(url: str, table: str, batch: pa.RecordBatch, delivery: str, batches: int = 1) -> PostgresSink:
    """One whole epoch of one task, up to visible rows."""
    sink = PostgresSink(url, table, delivery=delivery)
    committer = sink.open("types", batch.schema)
    writer = sink.writer(TaskId("types", 1, 1, 1000, uuid.uuid4()))
    for _ in range(batches):
        writer.write(batch)
    prepared = writer.prepare()
    assert prepared is not None
    assert prepared.rows == batch.num_rows * batches
    committer.verify([prepared])
    record = _record(prepared)
    entry = LedgerEntry(1, 1, 1000, Positions(), "store")
    if delivery == "staged":
        assert isinstance(committer, LastResource)
        with pool.borrow(sink.settings.conninfo("decides"), "deciding") as connection, connection.transaction():
            committer.merge(connection, record, record.manifest, entry)
    committer.commit(Decided(record), record.manifest)
    committer.write_ledger(entry)
    committer.close()
    return sink


def _record(prepared: Committable) -> EpochRecord:
    range_ = Range(Positions(), Positions.of({"t/0": 5}))
    return EpochRecord("types", 1, 1, EpochState.DECIDED, range_, 1000, "q", 0, "f", (prepared,), (prepared.sink,))

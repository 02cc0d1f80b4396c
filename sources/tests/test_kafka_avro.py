"""Avro records parsed as Arrow: exact, each exactly once or refused with its reason. No server."""

from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
import uuid
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import ConfigError, OnefoldError
from onefold.sources import KafkaSource
from onefold.sources.formats.values import TooManyBad, Unparsable, separate
from onefold.sources.kafka.formats.avro import decoding
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.avro.parser import AvroParser
from onefold.sources.kafka.formats.avro.schema_registry import Registry

UTC = dt.UTC
Json = Any


def record(*fields: tuple[str, Json] | tuple[str, Json, Json], name: str = "Order") -> str:
    parts = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": parts})


def logical(kind: str, name: str, **more: Json) -> Json:
    return {"type": kind, "logicalType": name, **more}


def encoded(text: str, *values: Json) -> list[bytes]:
    """As fastavro's writer, logical types included, makes them: another implementation than what reads them."""
    schema, out = fastavro.parse_schema(json.loads(text)), []
    for value in values:
        data = BytesIO()
        fastavro.schemaless_writer(data, schema, value)
        out.append(data.getvalue())
    return out


def parse(values: list[bytes], reader: str, writer: str | None = None) -> list[Json]:
    schema = AvroSchema(reader)
    parser = AvroParser(schema.arrow, schema, AvroSchema(writer or reader))
    rows: list[Json] = parser.parse(values).to_pylist()
    return rows


def is_vectorised(reader: str, writer: str | None = None) -> bool:
    schema = AvroSchema(reader)
    columns = [(field, node) for field, node in zip(schema.arrow, schema.node.inside, strict=True)]
    return decoding._vectorised(AvroSchema(writer or reader).stripped, schema, columns) is not None


@pytest.mark.parametrize(
    ("kind", "values", "arrow"),
    [
        ("boolean", [True, False], pa.bool_()),
        ("int", [0, 2**31 - 1, -(2**31)], pa.int32()),
        ("long", [2**63 - 1, -(2**63), 9007199254740993], pa.int64()),
        ("float", [0.5, -1.25], pa.float32()),
        ("double", [0.1, math.inf], pa.float64()),
        ("string", ["", "é\0\U0001f600"], pa.string()),
        ("bytes", [b"", b"\0\xff"], pa.binary()),
        ({"type": "fixed", "name": "F", "size": 3}, [b"\0ab"], pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}, ["PAID", "NEW"], pa.string()),
        (logical("int", "date"), [dt.date(2026, 2, 28), dt.date(1969, 12, 31)], pa.date32()),
        (
            logical("long", "timestamp-millis"),
            [dt.datetime(2026, 1, 1, 0, 0, 0, 123000, UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)],
            pa.timestamp("us", "UTC"),
        ),
        (
            logical("long", "timestamp-micros"),
            [dt.datetime(2026, 1, 1, 0, 0, 0, 123457, UTC)],
            pa.timestamp("us", "UTC"),
        ),
        (logical("long", "local-timestamp-micros"), [dt.datetime(2026, 1, 1, 0, 0, 0, 1)], pa.timestamp("us")),
        (
            logical("bytes", "decimal", precision=38, scale=2),
            [Decimal("-0.01"), Decimal("123456789012345678901234567890123456.78"), Decimal(0)],
            pa.decimal128(38, 2),
        ),
        (
            {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 3},
            [Decimal("-1.500"), Decimal("9999999.999")],
            pa.decimal128(10, 3),
        ),
        ({"type": "array", "items": ["null", "string"]}, [[], ["a", None]], pa.list_(pa.string())),
        ({"type": "array", "items": logical("int", "date")}, [[dt.date(2026, 1, 1)]], pa.list_(pa.date32())),
        (["int", "long"], [1, 2**40], pa.int64()),
    ],
)
@pytest.mark.parametrize("optional", [False, True])
def test_every_type_comes_back_as_it_was_written(
    kind: Json, values: list[Json], arrow: pa.DataType, optional: bool
) -> None:
    if optional and not isinstance(kind, list):
        kind, values = ["null", kind], [*values, None]
    text = record(("a", kind))
    assert AvroSchema(text).arrow.field("a").type == arrow
    assert [row["a"] for row in parse(encoded(text, *({"a": value} for value in values)), text)] == values


def test_uuids_are_texts_whether_they_were_texts_or_sixteen_bytes() -> None:
    one = uuid.uuid4()
    text = record(("a", logical("string", "uuid")))
    assert parse(encoded(text, {"a": one}), text) == [{"a": str(one)}]
    packed = record(("a", {"type": "fixed", "name": "U", "size": 16}))
    read_as = record(("a", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}))
    assert parse(encoded(packed, {"a": one.bytes}), read_as) == [{"a": str(one)}]


def test_records_lists_and_maps_nest_and_may_be_null() -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "at", "type": logical("long", "timestamp-millis")}]}
    text = record(
        ("lines", {"type": "array", "items": line}),
        ("last", ["null", "Line"]),
        ("tags", {"type": "map", "values": ["null", logical("bytes", "decimal", precision=4, scale=1)]}),
    )
    at = dt.datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"lines": [{"at": at}, {"at": at}], "last": None, "tags": {"x": Decimal("1.5"), "y": None}},
        {"lines": [], "last": {"at": at}, "tags": {}},
    ]
    found = parse(encoded(text, *rows), text)
    assert [{**row, "tags": dict(row["tags"])} for row in found] == rows


OLD = record(("id", "int"), ("gone", "string"), ("amount", "float"))
NEW = record(("amount", "double"), ("id", ["null", "long"]), ("note", ["null", "string"], None), ("n", "int", 7))


def test_records_of_an_older_schema_are_read_as_the_new_one() -> None:
    values = encoded(OLD, {"id": 1, "gone": "x", "amount": 0.5}, {"id": 2, "gone": "y", "amount": -1.0})
    assert is_vectorised(NEW, OLD)
    assert parse(values, NEW, OLD) == [
        {"amount": 0.5, "id": 1, "note": None, "n": 7},
        {"amount": -1.0, "id": 2, "note": None, "n": 7},
    ]


def test_renamed_fields_new_symbols_and_defaults_of_bytes_are_resolved_too() -> None:
    old = record(("ident", "long"), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}))
    new = json.loads(
        record(
            ("id", "long"),
            ("e", {"type": "enum", "name": "E", "symbols": ["A", "Z"], "default": "Z"}),
            ("d", logical("bytes", "decimal", precision=4, scale=1), "\u00ff"),
        )
    )
    new["fields"][0]["aliases"] = ["ident"]
    rows = parse(encoded(old, {"ident": 5, "e": "A"}, {"ident": 6, "e": "B"}), json.dumps(new), old)
    assert rows == [{"id": 5, "e": "A", "d": Decimal("-0.1")}, {"id": 6, "e": "Z", "d": Decimal("-0.1")}]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (logical("long", "timestamp-micros"), logical("long", "timestamp-millis")),
        (logical("long", "timestamp-nanos"), logical("long", "timestamp-micros")),
        (logical("long", "timestamp-micros"), logical("long", "timestamp-nanos")),
        (logical("int", "time-millis"), logical("long", "time-micros")),
        (["null", logical("long", "local-timestamp-millis")], logical("long", "timestamp-millis")),
        (logical("bytes", "decimal", precision=9, scale=2), logical("bytes", "decimal", precision=9, scale=3)),
    ],
)
def test_a_time_of_another_unit_and_a_decimal_of_another_scale_are_refused(written: Json, wanted: Json) -> None:
    for wrap in (lambda kind: kind, lambda kind: {"type": "array", "items": kind}):
        with pytest.raises(Unparsable, match=r"the field 'a(\[\])?' was written as .*, and is to be read as"):
            parse([b""], record(("a", wrap(wanted))), record(("a", wrap(written))))


def test_a_number_that_was_written_without_a_meaning_gets_the_readers() -> None:
    old, new = record(("a", "long")), record(("a", logical("long", "timestamp-millis")))
    assert parse(encoded(old, {"a": 1000}), new, old) == [{"a": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]
    assert parse(encoded(new, {"a": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}), old, new) == [{"a": 1000}]


def test_a_null_where_the_reader_has_none_is_refused() -> None:
    old, new = record(("a", ["null", "long"])), record(("a", "long"))
    values = encoded(old, {"a": 1}, {"a": None})
    with pytest.raises(Unparsable):
        parse(values, new, old)
    assert parse(values[:1], new, old) == [{"a": 1}]


@pytest.mark.parametrize("bad", [b"", b"\x02", b"\x02\x06ab", b"\x02\x04ab\x00", b"\x02\x04\xff\xfe", b"\xff" * 12])
@pytest.mark.parametrize("more", [[], [("d", "bytes", "")]])
def test_a_value_that_is_no_whole_record_and_nothing_else_is_refused_alone(bad: bytes, more: list[Any]) -> None:
    text = record(("id", "long"), ("s", "string"))
    reader = record(("id", "long"), ("s", "string"), *more)
    values = encoded(text, *({"id": i, "s": "ab"} for i in range(20)))
    values[7] = bad
    schema = AvroSchema(reader)
    assert is_vectorised(reader, text)
    found = separate(values, AvroParser(schema.arrow, schema, AvroSchema(text)), 1)
    assert [value.index for value in found.bad] == [7]
    rows = pa.Table.from_batches(found.rows)
    assert rows.column("id").to_pylist() == [i for i in range(20) if i != 7]


def test_a_whole_number_beyond_its_type_is_refused_and_not_cut_off() -> None:
    values = encoded(record(("a", "long")), {"a": 2**31})
    with pytest.raises(Unparsable):
        parse(values, record(("a", "int")))


def test_a_decimal_with_more_digits_than_it_may_have_is_refused() -> None:
    text = record(("a", logical("bytes", "decimal", precision=4, scale=1)))
    wider = record(("a", logical("bytes", "decimal", precision=8, scale=1)))
    assert parse(encoded(wider, {"a": Decimal("999.9")}), text) == [{"a": Decimal("999.9")}]
    with pytest.raises(Unparsable, match="more than 4 digits"):
        parse(encoded(wider, {"a": Decimal("1000.0")}), text)


def test_blocks_of_arrays_and_maps_may_tell_their_size() -> None:
    text = record(("a", {"type": "array", "items": "long"}), ("m", {"type": "map", "values": "long"}))
    value = bytes([3, 4, 2, 4, 0, 1, 6, 2, ord("k"), 2, 0])  # counts below zero, with the blocks' sizes behind
    assert parse([value], text) == [{"a": [1, 2], "m": [("k", 1)]}]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "avro-schema-invalid"),
        ('"long"', "avro-schema-invalid"),
        (record(("a", ["null", "long", "string"])), "avro-schema-unsupported"),
        (record(("a", "null")), "avro-schema-unsupported"),
        (record(("a", ["null", "Order"])), "avro-schema-unsupported"),
        (record(("a", logical("bytes", "decimal", precision=40, scale=2))), "avro-schema-unsupported"),
    ],
)
def test_schemas_that_no_columns_can_be_are_refused_by_name(text: str, code: str) -> None:
    with raises(ConfigError, code):
        AvroSchema(text)


WIDE = record(
    ("b", "boolean"),
    ("i", "int"),
    ("l", ["null", "long"]),
    ("d", ["double", "null"]),
    ("s", "string"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("at", logical("long", "timestamp-micros")),
    ("x", ["null", "bytes"]),
    ("p", logical("bytes", "decimal", precision=20, scale=2)),
    ("a", {"type": "array", "items": ["null", "string"]}),
    ("m", ["null", {"type": "map", "values": {"type": "array", "items": "int"}}]),
)
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ROWS = st.fixed_dictionaries(
    {
        "b": st.booleans(),
        "i": INT,
        "l": st.none() | LONG,
        "d": st.none() | st.floats(allow_nan=False),
        "s": st.text(max_size=5),
        "e": st.sampled_from("AB"),
        "at": st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)).map(lambda at: at.replace(tzinfo=UTC)),
        "x": st.none() | st.binary(max_size=4),
        "p": st.decimals(-(10**17), 10**17, places=2),
        "a": st.lists(st.none() | st.text(max_size=3), max_size=3),
        "m": st.none() | st.dictionaries(st.text(max_size=2), st.lists(INT, max_size=3), max_size=2),
    }
)


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_any_records_come_back_as_they_were_written(rows: list[Json]) -> None:
    assert is_vectorised(WIDE)
    found = parse(encoded(WIDE, *rows), WIDE)
    assert [{**row, "m": None if row["m"] is None else dict(row["m"])} for row in found] == rows


@given(ROWS, st.data())
def test_what_both_decoders_take_of_damaged_records_they_take_alike(row: Json, data: st.DataObject) -> None:
    value = bytearray(encoded(WIDE, row)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2)) or b"\0"
    schema = AvroSchema(WIDE)
    columns = list(zip(schema.arrow, schema.node.inside, strict=True))
    makers = (decoding._general, decoding._vectorised)
    decoders = [make(schema.stripped, schema, columns) for make in makers]
    taken = []
    for decode in decoders:
        assert decode is not None
        try:
            taken.append(str(decode([bytes(value)]).drop_columns(["m"])))  # a key twice is one or two entries
        except Unparsable:
            continue
    assert len(set(taken)) <= 1


@pytest.mark.parametrize("url", ["http://me:secret@localhost:1", "ftp://me:secret@localhost:1"])
def test_no_password_of_the_registry_shows(url: str) -> None:
    named = {"url": "http://localhost:1", "basic.auth.user.info": "me:secret"}
    for config in (named, {"url": url}):
        source = KafkaSource("o", bootstrap_servers="localhost:9092", format="avro", schema_registry=config)
        assert "secret" not in repr(source)
    with pytest.raises(OnefoldError, match="//localhost:1") as failed:
        Registry({"url": url, "max.retries": "0"}, 1.0).latest("o")
    assert "secret" not in "".join(map(str, (failed.value, failed.value.__cause__)))


def test_too_many_bad_records_stop_the_parsing() -> None:
    text = record(("id", "long"))
    schema = AvroSchema(text)
    with pytest.raises(TooManyBad):
        separate([b""] * 5, AvroParser(schema.arrow, schema, schema), 4)


DEEP = """
import json
from onefold.sources.kafka.formats.avro.parser import AvroParser
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.formats.values import separate

tree = {"type": "record", "name": "Tree", "fields": [{"name": "inner", "type": ["null", "Tree"]}]}
endless = {"type": "record", "name": "Endless", "fields": [{"name": "inner", "type": "Endless"}]}
fields = [{"name": "id", "type": "long"}, {"name": "tree", "type": tree}]
reader = AvroSchema(json.dumps({"type": "record", "name": "Order", "fields": fields[:1]}))


class Registry:
    def writer(self, number):
        more = [{"name": "ends", "type": endless}] if number else []
        return {"type": "record", "name": "Order", "fields": fields + more}


parser = AvroParser(reader.arrow, reader, Registry())
head = bytes(5) + b"\\x02"
values = [head + b"\\x02" * depth + b"\\x00" for depth in (1, 1_000_000, 100, 100_000, 200)]
found = separate([*values, bytes(4) + b"\\x01\\x02\\x00"], parser, 3)
print(sum(batch.num_rows for batch in found.rows), [bad.index for bad in found.bad])
print(found.bad[0].reason, found.bad[-1].reason, sep=chr(10))
"""


def test_a_record_that_nests_a_million_deep_is_bad_and_does_not_end_the_process() -> None:
    ran = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "3 [1, 3, 5]",
        "the record is nested too deep: records within themselves, or lists",
        "its Avro schema has a record that is within itself always: no value of it ends",
    ]

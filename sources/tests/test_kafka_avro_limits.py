"""What Avro schemas and values may cost, and what damaged ones are not taken for. No server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.sources.formats.values import Unparsable, separate
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.avro.decoding import decoder_of
from onefold.sources.kafka.formats.avro.limits import CELLS_MAX, LEVELS_MAX, TYPES_MAX, BadSchema, examined, loaded
from onefold.sources.kafka.formats.avro.parser import AvroParser

Json = Any
LARGE = 1_000_000
FIXED = {"type": "fixed", "name": "Fixed", "size": 2}  # which fastavro decodes, and pyruhvro does not


def record(*fields: tuple[str, Json] | tuple[str, Json, Json], name: str = "Order") -> Json:
    parts = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": parts}


def array(items: Json) -> Json:
    return {"type": "array", "items": items}


def long(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


IDS = record(("id", "long"))


def parse(value: bytes, writer: Json, reader: Json = None) -> list[Json]:
    read_as = AvroSchema(json.dumps(reader or writer))
    rows: list[Json] = decoder_of(writer, read_as, read_as.arrow)([value]).to_pylist()
    return rows


def refusal(value: bytes, writer: Json, reader: Json = None) -> str:
    began_s = time.monotonic()
    with pytest.raises(Unparsable) as raised:
        parse(value, writer, reader)
    assert time.monotonic() - began_s < 2, "it is refused, and not tried"
    return raised.value.reason


def doubling(levels: int) -> Json:
    """Each of the records has the next one twice: a line of it doubles what it stands for."""
    if not levels:
        return "long"
    name = f"A{levels - 1}" if levels > 1 else "long"
    return record(("a", doubling(levels - 1)), ("b", name), name=f"A{levels}")


def deep(levels: int) -> Json:
    kind: Json = "long"
    for _ in range(levels):
        kind = array(kind)
    return record(("id", "long"), ("x", kind))


def test_a_schema_of_two_kilobytes_that_stands_for_a_million_types_is_refused() -> None:
    writer = record(("id", "long"), ("x", ["null", doubling(20)]))
    assert len(json.dumps(writer)) < 2500
    assert f"more than {TYPES_MAX} types" in refusal(long(1) + b"\0", writer, IDS)
    with raises(ConfigError, "avro-schema-invalid", f"{TYPES_MAX}"):
        AvroSchema(json.dumps(writer))


@pytest.mark.parametrize("levels", [LEVELS_MAX + 1, 300, 30_000])
def test_a_schema_that_nests_deep_is_refused(levels: int) -> None:
    text = '{"type":"array","items":' * levels + '"long"' + "}" * levels
    with pytest.raises(BadSchema, match=f"more than {LEVELS_MAX} levels"):
        examined(loaded(text))


def test_a_chain_of_types_that_is_flat_as_json_is_deep_all_the_same() -> None:
    links = [record(("a", "long"), name="A0")]
    links += [record(("a", f"A{number - 1}"), name=f"A{number}") for number in range(1, 2000)]
    assert f"more than {LEVELS_MAX} levels" in refusal(b"\2", record(("id", "long"), ("x", links)), IDS)


def test_schemas_as_deep_and_as_wide_as_they_may_be_are_read() -> None:
    wide = record(*((f"f{number}", ["null", "long"], None) for number in range(TYPES_MAX // 3 - 1)))
    assert parse(b"\0" * (TYPES_MAX // 3 - 1), wide, record(("f1", ["null", "long"]))) == [{"f1": None}]
    assert parse(b"\2\0", deep(LEVELS_MAX - 10), IDS) == [{"id": 1}]
    assert parse(b"\2\0", deep(LEVELS_MAX - 10))[0]["id"] == 1


@pytest.mark.parametrize(
    "schema",
    [
        {**IDS, "__fastavro_parsed": True, "fields": 7},
        record(("id", {"type": "fixed", "name": "F", "size": -1})),
        record(("id", {"type": "fixed", "name": "F", "size": "1"})),
        record(("id", "long"), ("id", "string")),
        record(("id", "Nothing")),
        record(("id", {"type": []})),
        {"type": "record"},
        "long",
        ["null", IDS],
        7,
    ],
)
def test_what_is_no_schema_of_a_record_is_a_bad_record_of_whoever_registered_it(schema: Json) -> None:
    assert "its Avro schema is no" in refusal(b"\2", schema, IDS)


def test_marks_of_fastavros_own_in_a_schema_are_not_believed() -> None:
    text = json.dumps({**IDS, "__fastavro_parsed": True, "__named_schemas": {"X": 1}})
    assert loaded(text) == IDS
    assert parse(b"\2", loaded(text)) == [{"id": 1}]


EMPTY = [
    "null",
    {"type": "fixed", "name": "Nothing", "size": 0},
    record(("n", "null"), name="Nothing"),
    record(name="Nothing"),
    [],
]


@pytest.mark.parametrize("items", EMPTY[:4])
@pytest.mark.parametrize("more", [(), (("f", FIXED),)])
def test_ten_bytes_are_no_hundred_million_items(items: Json, more: tuple[Any, ...]) -> None:
    writer = record(("id", "long"), ("x", array(items)), *more)
    value = long(1) + long(10**8) + b"\0" + (b"ab" if more else b"")
    assert "items that take no bytes" in refusal(value, writer, IDS)


def test_a_million_bytes_are_no_hundred_million_cells() -> None:
    line = record(*((f"f{number}", "long") for number in range(1000)), name="Line")
    for items in (["null", line], record(("n", ["null", line]), name="Outer")):
        writer = record(("id", "long"), ("x", array(items)))
        value = long(1) + long(LARGE) + b"\0" * (LARGE + 1)
        assert f"more than {CELLS_MAX}" in refusal(value, writer, IDS)
    assert parse(b"\2" + long(9) + b"\0" * 10, writer, IDS) == [{"id": 1}]
    assert parse(b"\2" + long(9) + b"\0" * 10, writer)[0]["x"] == [{"n": None}] * 9


def test_the_readers_own_defaults_count_too() -> None:
    line = record(("a", "boolean"), name="Line")
    wanted = record(("a", "boolean"), *((f"f{number}", "long", 0) for number in range(100)), name="Line")
    value = long(LARGE) + b"\0" * (LARGE + 1)
    assert f"more than {CELLS_MAX}" in refusal(
        value, record(("x", array(line))), record(("x", ["null", array(wanted)]))
    )
    found = parse(long(2) + b"\0" * 3, record(("x", array(line))), record(("x", ["null", array(wanted)])))
    assert [len(row) for row in found[0]["x"]] == [101, 101]


def test_a_tree_of_records_within_themselves_counts_its_fields_for_every_byte() -> None:
    nulls = [(f"n{number}", "null") for number in range(1000)]
    tree = record(("children", array("Tree")), *nulls, name="Tree")
    value = long(1) + long(LARGE) + b"\0" * (LARGE + 1)
    assert f"more than {CELLS_MAX}" in refusal(value, record(("id", "long"), ("x", tree)), IDS)


def test_large_values_of_plain_lists_are_read() -> None:
    writer = record(("id", "long"), ("x", array("long")))
    value = long(1) + long(LARGE) + b"\2" * LARGE + b"\0"
    assert len(parse(value, writer)[0]["x"]) == LARGE


def test_many_values_of_a_wide_schema_are_decoded_in_parts() -> None:
    fields = [(f"f{number}", ["null", "long"], None) for number in range(TYPES_MAX // 3 - 1)]
    reader = AvroSchema(json.dumps(record(fields[1])))
    decode = decoder_of(record(*fields), reader, reader.arrow)
    value = b"\0" + b"\2\4" + b"\0" * (len(fields) - 2)
    found = decode([value] * 4000)
    assert found.num_rows == 4000
    assert set(found.column("f1").to_pylist()) == {2}
    with pytest.raises(Unparsable) as raised:
        decode([*[value] * 3000, b"", *[value] * 1000])
    assert raised.value.index in (None, 3000)


@pytest.mark.parametrize(
    ("skipped", "cut"),
    [
        ("bytes", b"\x10ab"),
        ("string", b"\x10ab"),
        ("bytes", b"\x03ab"),
        (FIXED, b"a"),
        ("double", b"\0\0"),
        ("float", b"\0\0"),
        ("boolean", b""),
        ("long", b"\x80"),
        (array("long"), b"\x02\x02"),
        (array("long"), b"\x01\x10ab"),
        ({"type": "map", "values": "bytes"}, b"\x02\x02a\x10"),
        (record(("f", "double"), name="Inner"), b"\0\0"),
    ],
)
@pytest.mark.parametrize("more", [(), (("f", {**FIXED, "name": "Other"}),)])
def test_a_value_that_is_cut_off_in_a_field_nobody_wants_is_bad(skipped: Json, cut: bytes, more: Any) -> None:
    writer = record(("id", "long"), *more, ("x", skipped))
    refusal(long(1) + (b"ab" if more else b"") + cut, writer, IDS)


def test_a_number_of_a_million_bytes_takes_no_minutes() -> None:
    tree = record(("id", "long"), ("f", FIXED), ("next", ["null", "Tree"]), name="Tree")
    refusal(b"\xff" * LARGE, tree, record(("id", "long"), name="Tree"))


@pytest.mark.parametrize("more", [(), (("f", FIXED),)])
@pytest.mark.parametrize(("kind", "limit"), [("double", 2**53), ("float", 2**24)])
def test_a_whole_number_is_a_float_exactly_or_not_at_all(kind: str, limit: int, more: Any) -> None:
    writer, ending = record(("n", "long"), *more), b"ab" if more else b""
    for wanted in (kind, ["null", kind]):
        reader = record(("n", wanted))
        assert parse(long(limit) + ending, writer, reader) == [{"n": float(limit)}]
        refusal(long(limit + 1) + ending, writer, reader)


@pytest.mark.parametrize("more", [(), (("f", FIXED),)])
def test_a_map_that_has_a_key_twice_has_the_last_one(more: Any) -> None:
    ending, twice = b"ab" if more else b"", b"\4\2a\2\2a\4\0"
    numbers = {"type": "map", "values": "long"}
    assert parse(twice + ending, record(("m", numbers), *more), record(("m", numbers))) == [{"m": [("a", 2)]}]
    nested = record(("x", array(record(("m", numbers), name="Inner"))), *more)
    assert parse(b"\2" + twice + b"\0" + ending, nested)[0]["x"] == [{"m": [("a", 2)]}]


class Counted:
    """A registry that counts what it is asked, and of which odd schemas cannot be read."""

    def __init__(self) -> None:
        self.asked = 0

    def writer(self, number: int) -> Json:
        self.asked += 1
        return IDS if number % 2 == 0 else record(("id", "string"))


def test_a_schema_that_cannot_be_read_is_looked_at_once_and_not_for_every_value() -> None:
    reader, registry = AvroSchema(json.dumps(IDS)), Counted()
    parser = AvroParser(reader.arrow, reader, registry)
    values = [bytes([0, 0, 0, 0, number % 4]) + b"\2" for number in range(400)]
    found = separate(values, parser, 1000)
    assert (sum(rows.num_rows for rows in found.rows), len(found.bad), registry.asked) == (200, 200, 4)


def test_values_of_many_schemas_take_linear_time() -> None:
    class Every:
        def writer(self, _: int) -> Json:
            return IDS

    reader = AvroSchema(json.dumps(IDS))

    def seconds(count: int, made: Callable[[], AvroParser]) -> float:
        began_s, parser = time.process_time(), made()
        values = [number.to_bytes(5, "big") + b"\2" for number in range(count)]
        assert parser.parse(values).num_rows == count
        return time.process_time() - began_s

    def made() -> AvroParser:
        return AvroParser(reader.arrow, reader, Every())

    seconds(100, made)
    assert seconds(4000, made) < 20 * seconds(1000, made), "four times as many"
    assert isinstance(reader.arrow, pa.Schema)


@pytest.mark.parametrize("more", [(), (("f", FIXED),)])
@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ({"type": "int", "logicalType": "date"}, 2_932_896),
        ({"type": "long", "logicalType": "timestamp-millis"}, 253_402_300_799_999),
        ({"type": "long", "logicalType": "timestamp-micros"}, 253_402_300_799_999_999),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 253_402_300_799_999_999),
    ],
)
def test_a_time_that_no_calendar_of_sparks_has_is_bad_and_the_last_one_is_not(kind: Json, last: int, more: Any) -> None:
    ending = b"ab" if more else b""
    writer, nested = record(("t", kind), *more), record(("t", array(["null", kind])), *more)
    assert "9999-12-31" in str(parse(long(last) + ending, writer)[0]["t"])
    assert parse(long(1) + b"\2" + long(last) + b"\0" + ending, nested)[0]["t"] == [
        parse(long(last) + ending, writer)[0]["t"]
    ]
    assert "the years 1 to 9999" in refusal(long(last + 1) + ending, writer)
    assert "the years 1 to 9999" in refusal(long(1) + b"\2" + long(last + 1) + b"\0" + ending, nested)

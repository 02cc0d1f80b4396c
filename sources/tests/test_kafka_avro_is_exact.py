"""Avro of any schema, valid and damaged, held against a decoder that follows the specification byte by byte. No server.

A damaged value may be read by both of the libraries where the specification has no value for it (a boolean of 2, a
number of more than 64 bits): Avro has no sums to tell damage by. A valid one is exact, whatever its neighbours are.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pyarrow as pa
from exact import Bad
from exact_avro import avro_row
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.sources.formats.values import separate
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.avro.parser import AvroParser

Json = Any
LONGS = [0, 1, -1, 2, -2, 63, -64, 64, 128, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
BYTES = [b"", b"a", b"\xff\x00", "é\U0001f600".encode(), b"\x00", b"\xed\xa0\x80", b"\x00" * 30 + b"\x05", b"\x80"]
SIMPLE: list[Json] = [
    *("boolean", "int", "long", "float", "double", "string", "bytes"),
    *({"type": "bytes", "logicalType": "decimal", "precision": p, "scale": s} for p, s in ((1, 0), (5, 2), (38, 38))),
    {"type": "int", "logicalType": "date"},
    *(
        {"type": "long", "logicalType": f"{local}timestamp-{u}"}
        for local in ("", "local-")
        for u in ("millis", "micros")
    ),
]
NAMED: list[Json] = [
    {"type": "fixed", "size": 4},
    {"type": "enum", "symbols": ["A", "B", "C"]},
    {"type": "fixed", "size": 16, "logicalType": "uuid"},
    {"type": "fixed", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 2},
]


class Made:
    """A schema, and values of it."""

    def __init__(self, random: Random) -> None:
        self._random, self._names = random, 0
        self.schema = self._record(0)

    def value(self) -> bytes:
        value, choice = self._encoded(self.schema), self._random.randrange(12)
        if choice == 0 and value:
            at = self._random.randrange(len(value))
            return value[:at] + bytes([self._random.randrange(256)]) + value[at + 1 :]
        if choice == 1:
            return value[: self._random.randrange(len(value) + 1)]
        return value + b"\x00" if choice == 2 else value

    def _type(self, depth: int) -> Json:
        choice = self._random.randrange(12 if depth < 3 else 8)
        if choice < 5:
            return self._random.choice(SIMPLE)
        if choice < 7:
            return {**self._random.choice(NAMED), "name": self._name()}
        if choice == 7:
            pair = ["null", self._type(9)]
            return pair[1] if isinstance(pair[1], list) else self._random.choice([pair, pair[::-1]])
        if choice == 8:
            return {"type": "map", "values": self._type(depth + 1)}
        return {"type": "array", "items": self._type(depth + 1)} if choice < 11 else self._record(depth + 1)

    def _record(self, depth: int) -> Json:
        fields = [{"name": f"f{n}", "type": self._type(depth)} for n in range(self._random.randrange(1, 4))]
        return {"type": "record", "name": self._name(), "fields": fields}

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def _encoded(self, schema: Json) -> bytes:
        random = self._random
        if isinstance(schema, list):
            branch = random.randrange(len(schema))
            return varint(branch) + self._encoded(schema[branch])
        match kind := schema if isinstance(schema, str) else schema["type"]:
            case "null":
                return b""
            case "boolean":
                return bytes([random.randrange(2)])
            case "int" | "long":
                return varint(random.choice(LONGS) if random.random() < 0.8 else random.randrange(-(2**31), 2**31))
            case "float" | "double":
                return random.randbytes(4 if kind == "float" else 8)
            case "string" | "bytes":
                found = random.choice(BYTES) if random.random() < 0.8 else random.randbytes(random.randrange(20))
                return varint(len(found)) + found
            case "fixed":
                return random.randbytes(schema["size"])
            case "enum":
                return varint(random.choice([0, 1, 2, 2, 1, 0, 3]))
            case "array" | "map":
                return b"".join(self._block(schema) for _ in range(random.randrange(3))) + b"\x00"
        return b"".join(self._encoded(field["type"]) for field in schema["fields"])

    def _block(self, schema: Json) -> bytes:
        count = self._random.randrange(1, 4)
        items = (
            b"".join(self._encoded("string") + self._encoded(schema["values"]) for _ in range(count))
            if ("values" in schema)
            else b"".join(self._encoded(schema["items"]) for _ in range(count))
        )
        return varint(count) + items if self._random.random() < 0.6 else varint(-count) + varint(len(items)) + items


def varint(number: int) -> bytes:
    zigzag, out = (number << 1) ^ (number >> 63), bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def marked(scalar: pa.Scalar) -> Any:
    """A cell, as the oracle has it; floats by their bits."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {kind[i].name: marked(scalar[i]) for i in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return {pair["key"].as_py(): marked(pair["value"]) for pair in scalar.values or ()}
    if pa.types.is_list(kind):
        return [marked(item) for item in scalar.values]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return ("days" if pa.types.is_date(kind) else "us", scalar.value)
    return by_bits(scalar.as_py())


def by_bits(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: by_bits(item) for name, item in value.items()}
    return [by_bits(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=4 * settings.default.max_examples)
@given(st.integers(0, 2**64), st.integers(1, 4))
def test_an_avro_value_is_what_it_says_or_refused(seed: int, count: int) -> None:
    made = Made(Random(seed))
    values, schema = [made.value() for _ in range(count)], AvroSchema(json.dumps(made.schema))
    found = separate(values, AvroParser(schema.arrow, schema, schema), count)
    rows = iter(
        [{n: marked(batch.column(n)[i]) for n in batch.schema.names} for batch in found.rows for i in range(len(batch))]
    )
    refused = {bad.index for bad in found.bad}
    for index, value in enumerate(values):
        row = None if index in refused else next(rows)
        try:
            due = by_bits(avro_row(value, made.schema))
        except Bad:
            continue
        assert row == due, (value, made.schema)

"""The table of docs/kafka-source.md: which JSON value becomes what in which type, as the parser has it."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from harness.renewing import assert_renewed

from onefold.core.values.ddl import ddl_of
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import separate

PAGE = Path(__file__).parents[2] / "docs" / "kafka-source.md"
DECIMAL, INSTANT, LOCAL = pa.decimal128(12, 2), pa.timestamp("us", "UTC"), pa.timestamp("us")
CASES: list[tuple[pa.DataType, list[str]]] = [
    (DECIMAL, ["1.5", '"1.5"', '"1.500"', "1e2", "1.505", '"12345678901.00"', '"1,5"', '""']),
    (pa.decimal128(38, 9), ['"12345678901234567890123456789.123456789"']),
    (pa.int64(), ["17", "9007199254740993", "9223372036854775808", "1.0", "1e2", '"17"', "true"]),
    (pa.int32(), ["2147483648"]),
    (pa.float64(), ["0.1", "1", "1e400", "NaN", '"0.1"']),
    (pa.bool_(), ["true", "1", '"true"']),
    (pa.string(), ['"text"', '""', "17", '{"b": 1}', "true"]),
    (INSTANT, ['"2026-11-20T08:30:00Z"', '"2026-11-20T08:30:00.123456+02:00"', '"2026-11-20 08:30:00"']),
    (INSTANT, ['"2026-11-20"', '"2026-11-20T08:30:00.1234567Z"', "1763627400"]),
    (LOCAL, ['"2026-11-20T08:30:00"', '"2026-11-20T08:30:00Z"']),
    (pa.date32(), ['"2026-11-20"', '"2026-11-20T00:00:00"']),
    (pa.binary(), ['"aGVsbG8="', '"not base64!"']),
    (pa.list_(pa.int64()), ["[1, null, 2]", "[]", "1"]),
    (pa.struct({"b": pa.int64()}), ['{"b": 1, "c": 2}', "{}", "[1]"]),
    (pa.int64(), ["null"]),
]


def becomes(kind: pa.DataType, text: str) -> str:
    found = separate([f'{{"a": {text}}}'.encode()], JsonParser(pa.schema({"a": kind})), 1)
    if found.bad:
        return "bad record"
    value = found.rows[0].column(0)[0].as_py()
    shown = json.dumps(value) if isinstance(value, str | bool | list | dict) else value
    return "null" if value is None else f"`{shown}`"


def table() -> str:
    lines = ["| type | JSON | becomes |", "| --- | --- | --- |"]
    for kind, cases in groupby(CASES, key=lambda case: case[0]):
        name = ddl_of(pa.schema({"a": kind})).removeprefix("a ")
        lines += [f"| {name} | `{text}` | {becomes(kind, text)} |" for _, texts in cases for text in texts]
    lines += ["| any | the field is missing | null |"]
    return "\n".join(line.replace("<", "\\<") for line in lines)


@pytest.mark.docs
def test_the_page_says_what_each_json_value_becomes() -> None:
    missing = separate([b'{"b": 1}'], JsonParser(pa.schema({"a": pa.int64()})), 1)
    assert missing.rows[0].column(0).to_pylist() == [None]
    assert_renewed(PAGE, "test_kafka_json_table.py", table())

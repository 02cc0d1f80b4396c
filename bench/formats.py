"""Values into Arrow columns, from memory: how fast each library is, and whether it is exact. `python -m bench.formats`

Needs orjson and polars besides (`pip install orjson polars`): neither is used outside of this comparison.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import orjson
import polars as pl
import pyarrow as pa
import pyruhvro

from bench.orders import AVRO, SCHEMA
from onefold.sources.formats.csv import CsvParser
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import TooManyBad, separate
from onefold.sources.kafka.formats.avro import decoding
from onefold.sources.kafka.formats.avro.avro_types import AvroSchema
from onefold.sources.kafka.formats.avro.parser import AvroParser
from onefold.trials.workload.orders import orders

ROWS = 10_000
REPEATS = 15
# It reads no decimals.
POLARS = {"id": pl.Int64, "account": pl.Int64, "amount": pl.Float64, "at": pl.Datetime("us", "UTC")}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}

Parse = Callable[[Sequence[bytes]], Any]


def ours(values: Sequence[bytes], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_batches(separate(values, JsonParser(schema), 0).rows)


def with_orjson(values: Sequence[bytes], schema: pa.Schema = SCHEMA) -> pa.Table:
    rows = [orjson.loads(value) for value in values]
    columns = []
    for field in schema:
        cells = [row.get(field.name) for row in rows]
        plain = pa.array(cells, pa.string() if pa.types.is_timestamp(field.type) else None)
        columns.append(plain.cast(field.type))
    return pa.table(columns, schema=schema)


def with_polars(values: Sequence[bytes], schema: dict[str, Any] | None = None) -> Any:
    return pl.read_ndjson(b"\n".join(values), schema=schema or POLARS)


def with_json(values: Sequence[bytes]) -> pa.Table:
    return pa.Table.from_pylist([json.loads(value) for value in values])


def microseconds(parse: Parse, values: Sequence[bytes]) -> float:
    """Of CPU time a value, at best, whatever else the machine does."""
    best_s = float("inf")
    for _ in range(REPEATS):
        began_s = time.process_time()
        parse(values)
        best_s = min(best_s, time.process_time() - began_s)
    return best_s / len(values) * 1e6


LONG, AT = (pa.int64(), pl.Int64), (pa.timestamp("us", "UTC"), pl.Datetime("us", "UTC"))
TEXT, MONEY = (pa.string(), pl.String), (pa.decimal128(12, 2), pl.Decimal(12, 2))
WIDE = (pa.decimal128(38, 2), pl.Decimal(38, 2))
NESTED = (pa.struct([("n", pa.list_(pa.int64()))]), pl.Struct({"n": pl.List(pl.Int64)}))
REFUSED = ValueError

# What is asked for, as which type, the value's text, and what it is to be.
CASES: list[tuple[str, tuple[pa.DataType, Any], bytes, Any]] = [
    ("integer beyond 2^53", LONG, b"9007199254740993", 9007199254740993),
    ("integer beyond 2^63", LONG, b"9223372036854775808", REFUSED),
    ("decimal", MONEY, b"12.34", "12.34"),
    ("decimal of 30 digits", WIDE, b"1234567890123456789012345678.91", "1234567890123456789012345678.91"),
    ("decimal with a digit too many", MONEY, b"1.005", REFUSED),
    ("microseconds and an offset", AT, b'"2026-01-01T02:00:00.123456+02:00"', "2026-01-01 00:00:00.123456+00:00"),
    ("nanoseconds", AT, b'"2026-01-01T00:00:00.123456789Z"', REFUSED),
    ("a text for a number", LONG, b'"x"', REFUSED),
    ("a fraction for an integer", LONG, b"1.5", REFUSED),
    ("null", LONG, b"null", None),
    ("a field beside the schema", LONG, b'1,"b":[{"c":2}]', 1),
    ("unicode and escapes", TEXT, '"é\\u00e9\\ud83d\\ude00"'.encode(), "éé\U0001f600"),
    ("no UTF-8", TEXT, b'"\xff"', REFUSED),
    ("half a surrogate pair", TEXT, b'"\\ud83d"', REFUSED),
    ("nested", NESTED, b'{"n":[1,null]}', {"n": [1, None]}),
    ("two objects in one value", LONG, b'1}{"a":2', REFUSED),
    ("a key twice", LONG, b'1,"a":2', REFUSED),
]


def verdict(parse: Callable[[list[bytes]], Any], value: bytes, wanted: Any) -> str:
    """Of the value between two good ones."""
    try:
        table = parse([b"{}", value, b"{}"])
        cells = (table.to_arrow() if isinstance(table, pl.DataFrame) else table).column("a").to_pylist()
    except (TooManyBad, ValueError, TypeError, OverflowError, pl.exceptions.PolarsError):
        return "refused" if wanted is REFUSED else "REFUSED"
    if len(cells) != 3:
        return f"{len(cells)} ROWS FOR 3 VALUES"
    if wanted is not REFUSED and (cells[1] == wanted or str(cells[1]) == str(wanted)):
        return "exact"
    return f"`{cells[1]}`"


def exactness() -> list[tuple[str, ...]]:
    lines = []
    for name, (arrow, of_polars), text, wanted in CASES:
        schema, value = pa.schema({"a": arrow}), b'{"a":' + text + b"}"
        parsers: list[Callable[[list[bytes]], Any]] = [
            lambda values, s=schema: ours(values, s),
            lambda values, s=schema: with_orjson(values, s),
            lambda values, k=of_polars: with_polars(values, {"a": k}),
        ]
        lines.append((name, *(verdict(parse, value, wanted) for parse in parsers)))
    return lines


def speeds() -> list[tuple[str, float]]:
    values = list(orders(ROWS, seed=1))
    mixed = [b'{"id":"x"}' if index % 1000 == 500 else value for index, value in enumerate(values)]
    table = ours(values)
    lines = [",".join(str(cell) for cell in row.values()).replace("+00:00", "Z").encode() for row in table.to_pylist()]
    results = [
        ("JSON, compiled (ours)", microseconds(ours, values)),
        (
            "JSON, compiled (ours), one in 1,000 bad",
            microseconds(lambda v: separate(v, JsonParser(SCHEMA), ROWS), mixed),
        ),
        ("JSON, orjson, then pyarrow", microseconds(with_orjson, values)),
        ("JSON, polars, doubles for decimals", microseconds(with_polars, values)),
        ("JSON, Python's json, types not asked for", microseconds(with_json, values)),
        ("CSV, pyarrow (ours)", microseconds(lambda v: separate(v, CsvParser(SCHEMA, ","), 0), lines)),
    ]
    rows = [{**row, "amount": float(row["amount"])} for row in table.to_pylist()]
    return results + _avro(AVRO, rows, "") + _avro(_with_decimal(), table.to_pylist(), ", with a decimal")


def _with_decimal() -> dict[str, Any]:
    fields = [{**field, "type": DECIMAL} if field["name"] == "amount" else field for field in AVRO["fields"]]
    return {**AVRO, "fields": fields}


def _avro(schema: dict[str, Any], rows: list[dict[str, Any]], what: str) -> list[tuple[str, float]]:
    parsed, text = fastavro.parse_schema(schema), json.dumps(schema)
    values = []
    for row in rows:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, parsed, row)
        values.append(data.getvalue())
    reader = AvroSchema(text)
    parser = AvroParser(reader.arrow, reader, reader)
    columns = list(zip(reader.arrow, reader.node.inside, strict=True))
    general = decoding._general(reader.stripped, reader, columns)
    results = [
        (f"Avro{what}, pyruhvro (ours)", microseconds(lambda v: separate(v, parser, 0), values)),
        (f"Avro{what}, fastavro, then pyarrow", microseconds(general, values)),
    ]
    if not what:
        results.append(
            ("Avro, pyruhvro alone, unchecked", microseconds(lambda v: pyruhvro.deserialize_array(v, text), values))
        )
    return results


def main() -> None:
    print("| a value of | microseconds |\n| --- | --- |")
    for name, cost in speeds():
        print(f"| {name} | {cost:.2f} |")
    print("\n| asked for | ours | orjson | polars |\n| --- | --- | --- | --- |")
    for line in exactness():
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()

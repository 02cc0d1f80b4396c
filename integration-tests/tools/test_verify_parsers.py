"""What onefold's parser changes of a value shows, for verify reads JSON and CSV by Spark's parsers; and that these read
nothing else than it does."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness import wrong_parser
from harness.support import Rig
from harness.wrong_parser import OneCentMore
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onefold.sources.formats.csv import CsvParser
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import Parser, separate
from onefold.sources.kafka import KafkaSource
from onefold.spark.verify.second_parser import bundled, has_second_parser, is_not_taken, read_again, read_texts, unread
from onefold.spark.verify.verification import verify

register_pickle_by_value(wrong_parser)

pytestmark = [pytest.mark.servers, pytest.mark.slow]

FLAT = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "money": pa.decimal128(12, 2),
    "wide": pa.decimal128(38, 10),
    "text": pa.string(),
    "date": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
}
NESTED = {
    **FLAT,
    "bytes": pa.binary(),
    "list": pa.list_(pa.int64()),
    "struct": pa.struct({"x": pa.string(), "y": pa.decimal128(10, 3)}),
}
NUMBERS = [
    "0",
    "1",
    "-0",
    "-1",
    "127",
    "128",
    "-128",
    "1.0",
    "1e2",
    "1E2",
    "1.5",
    "-0.0",
    "0.1",
    "1.10",
    "1.005",
    "0.30000000000000004",
    "12345678901.23",
    "16777217",
    "4.9e-324",
    "2.2250738585072011e-308",
    "16777217.0000001",
    "1.17549435e-38",
    "9223372036854775807",
    "9223372036854775808",
    "1e308",
    "1e400",
    "01",
    "+1",
    "123456789012345678901234567890.1234567",
    "0x10",
    "1_000",
    "1e-2",
    "10e-1",
    "1.",
    ".5",
    "1.2300",
    "-0.00",
    "NaN",
    "Infinity",
    "-INF",
    "inf",
    "1d",
    "1f",
    "true",
]
TEXTS = [
    *NUMBERS,
    *("", " ", " 1", "1 ", "a", "a\0b", "a\nb", "\\", 'a"b', "a,b", "é", "😀", "null", "NULL", "True", "#x", "1,234.5"),
    *("YQ==", "YQ", "YWI=", "Y Q==", "YQ\n==", "-_8=", "+/8="),
    *("2024-01-01", "2024-1-1", "2024", "0001-01-01", "1582-10-10", "9999-12-31", "10000-01-01", "2024-02-30"),
    *(f"2024-01-01{seam}{time}" for seam in "T " for time in ("00:00:00", "00:00:00Z", "23:59:59.123456Z", "12:34")),
    *(f"2024-01-01T00:00:00{end}" for end in ("+02:00", "+0200", "-23:59", ".1", ".1234567", ".123456789Z", " UTC")),
    *("0001-01-01T00:00:00Z", "1900-01-01T00:00:00", "9999-12-31T23:59:59.999999Z", "2024-01-01T23:59:60Z"),
]
JSON = [
    *NUMBERS,
    *map(json.dumps, TEXTS),
    *('"\\ud800"', "[1,2]", "[]", "[null,1]", "[1.5]", "{}", '{"x":"a","y":1.5}', '{"x":null}', '{"x":"a","x":"b"}'),
    *("null", '{"z":1,"y":"1.250"}', "[[1]]", '[{"x":1}]'),
]
OBJECTS = [
    *('{"int":1,"int":2}', '{"text":"a","text":"b"}', '{"INT":5}', ' {"int":1} ', '{"int":1}{"int":2}', '{"int":1}x'),
    *("{}", '{"int":1,}', "{'int':1}", '{"int":1/*c*/}', '{"x":{"int":3},"int":4}', '{"int":4,"x":[{"int":5}]}'),
    *('{"text":"tab\there"}', '{"\\u0074ext":"k"}', '{"int":1,"unknown":NaN}', '{"int":1,"u":1e999}'),
]


def doubles(count: int) -> list[str]:
    of = np.random.default_rng(1)
    found = [of.uniform(-1e6, 1e6, count), of.uniform(-1, 1, count) * 10.0 ** of.integers(-300, 300, count)]
    return [repr(float(number)) for numbers in found for number in numbers] + [
        f"{cents / 100:.2f}" for cents in of.integers(-(10**11), 10**11, count)
    ]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def read_by_both(
    spark: SparkSession, values: list[str], parser: Parser, schema: pa.Schema, delimiter: str | None
) -> Any:
    """How many values onefold takes, those of them that Spark reads otherwise, and how many Spark does not take."""
    raw = [value.encode("utf-8", "surrogatepass") for value in values]
    found = separate(raw, parser, len(raw))
    bad = {each.index for each in found.bad}
    taken = pa.array([value for at, value in enumerate(raw) if at not in bad], pa.binary())
    own = {f"own_{name}": found.batch(schema).column(name) for name in schema.names}
    records = pa.table(
        {**{name: own[f"own_{name}"] for name in schema.names}, **own, "value": taken, "kafka_value": taken}
    )
    bundles = pa.Table.from_batches([many for batch in records.to_batches(100) for many in bundled(batch)])
    names = [name for name in records.column_names if name != "kafka_value"]
    again, observed = read_again(spark.createDataFrame(bundles), names, schema, delimiter)
    wrong = again.where(" OR ".join(f"NOT ({quoted(name)} <=> {quoted(f'own_{name}')})" for name in schema.names))
    return len(taken), [bytes(row[0]) for row in wrong.select("value").collect()], unread(observed)


def test_sparks_parsers_read_what_onefolds_take_as_these_do(spark: SparkSession) -> None:
    nested, flat = pa.schema(NESTED), pa.schema(FLAT)
    objects = [f'{{"{name}":{text}}}' for name in NESTED for text in JSON]
    objects += [f'{{"{name}":{text}}}' for name in ("double", "float", "money", "wide") for text in doubles(200)]
    values = list(dict.fromkeys([*objects, *OBJECTS]))
    taken, wrong, count = read_by_both(spark, values, JsonParser(nested), nested, None)
    assert taken > 1_500 and not wrong
    assert count <= 4  # times without seconds, offsets beyond 18 hours

    def line(name: str, text: str) -> str:
        return ";".join(text if each == name else "" for each in FLAT)

    quoted = [f'"{text.replace(chr(34), chr(34) * 2)}"' for text in TEXTS]
    lines = [line(name, text) for name in FLAT for text in [*TEXTS, *quoted]]
    lines += [line(name, text) for name in ("double", "float", "money", "wide") for text in doubles(200)]
    parser = CsvParser(flat, ";")
    taken, wrong, count = read_by_both(spark, list(dict.fromkeys(lines)), parser, flat, ";")
    assert taken > 1_500 and not wrong
    assert count < 200  # numbers with blanks, `inf`


def test_columns_fields_and_texts_of_any_name(spark: SparkSession) -> None:
    odd = pa.schema(
        dict.fromkeys(["a.b", "b`t", 'q"x', " sp ", "__text", "__unread", "__rows", "__our_a", "text"], pa.string())
    )
    few = pa.schema({"a": pa.int64()})
    objects = [json.dumps(dict.fromkeys(odd.names, "x")), '{"a.b":null}']
    assert read_by_both(spark, objects, JsonParser(odd), odd, None) == (2, [], 0)
    texts = [
        f'{{"a":1,{json.dumps(name)}:{value}}}'
        for name in odd.names
        for value in ("true", "false", '"x"', "null", "[1]")
    ]
    assert read_by_both(spark, texts, JsonParser(few), few, None) == (45, [], 0)
    values = bundled(
        pa.record_batch({"value": pa.array(texts, pa.binary()), "kafka_value": pa.array(texts, pa.binary())})
    )
    (bundle,) = (pa.table({"text": many["text"], "count": pa.array([45], pa.int32())}) for many in values)
    assert read_texts(spark.createDataFrame(bundle), few).where("a = 1").count() == 45
    bad = spark.createDataFrame([('{"__rows":[{"a":1},{"a":"x"}]}', 2)], "text string, count int")
    with pytest.raises(PySparkException) as failed:
        read_texts(bad, few).collect()
    assert is_not_taken(failed.value)
    for delimiter in ("\\", "|", "\t", "#", "'", "0"):
        lines = [delimiter.join("x" * 9), delimiter.join(['"\0\0"', "\0\0", '""', "", "y", "z", "", '"z"', "1"])]
        assert read_by_both(spark, lines, CsvParser(odd, delimiter), odd, delimiter) == (2, [], 0)


def test_sparks_parsers_of_old_are_not_asked(spark: SparkSession) -> None:
    source = KafkaSource("orders", bootstrap_servers="localhost:1", format="json", schema="at timestamp")
    assert has_second_parser(spark, source)
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        assert not has_second_parser(spark, source)
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_parser_that_changes_a_decimal_is_found(rig: Rig, form: str) -> None:
    rig.sql("CREATE TABLE orders (id bigint, amount numeric(12,2), at timestamptz)")
    of = '{"id":%d,"amount":%d.00,"at":"%s"}' if form == "json" else "%d,%d.00,%s"
    rig.put_values([(of % (id_, id_ + 1000, "2026-01-01T10:00:00Z")).encode() for id_ in range(400)])
    rig.put_values([(of % (400, 1, "2026-01-01T10:00Z")).encode()])  # which Spark does not take
    schema = "id long, amount decimal(12,2), at timestamp"
    source = OneCentMore(rig.topic, bootstrap_servers=rig.servers, format=form, schema=schema)
    sink = rig.sink(table="orders")
    pipeline = rig.pipeline(sink, source=source)
    rig.run(pipeline)
    assert rig.sql("SELECT amount FROM orders WHERE id IN (336, 337) ORDER BY id") == [
        (Decimal("1336.00"),),
        (Decimal("1338.00"),),
    ]
    found = verify(rig.spark, pipeline, sink, ("id",)).comparison
    assert (found.lost, found.duplicated, found.changed, found.unexpected, found.expected) == (0, 0, 1, 0, 401)
    at = f"from {rig.topic}/1 at offset 84"
    says = f"id=337 (expected 1, found 1): amount is 1338.00, and was to be 1337.00; {at}"
    assert found.samples == {"changed": [says]}
    (note,) = found.notes
    assert "1 values are not taken by Spark's own parser" in note
    expected = verify(rig.spark, pipeline, sink, ("id",), expect="SELECT id, amount, at FROM source").comparison
    assert (expected.changed, expected.lost, expected.unexpected) == (1, 0, 0)
    assert expected.notes == found.notes

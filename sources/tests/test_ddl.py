"""Schemas as Spark writes them down, read without Spark: the same columns in Arrow as Spark's own."""

from __future__ import annotations

import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from onefold.core import ConfigError
from onefold.core.values.ddl import ddl_of, schema_of
from onefold.sources import KafkaSource

AVRO = """{"type": "record", "name": "r", "fields": [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}]},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "by", "type": {"type": "map", "values": "int"}},
    {"name": "who", "type": {"type": "record", "name": "w", "fields": [{"name": "a_b", "type": "boolean"}]}}
]}"""
SCALARS: list[spark.DataType] = [
    spark.BooleanType(),
    spark.ByteType(),
    spark.ShortType(),
    spark.IntegerType(),
    spark.LongType(),
    spark.FloatType(),
    spark.DoubleType(),
    spark.StringType(),
    spark.BinaryType(),
    spark.DateType(),
    spark.TimestampType(),
    spark.TimestampNTZType(),
    spark.DecimalType(12, 2),
]
names = st.text("abz_ `,<>:()0", min_size=1, max_size=8)


def _struct(inner: st.SearchStrategy[spark.DataType]) -> st.SearchStrategy[spark.DataType]:
    fields = st.lists(st.tuples(names, inner, st.booleans()), min_size=1, max_size=4, unique_by=lambda field: field[0])
    return fields.map(lambda found: spark.StructType([spark.StructField(*field) for field in found]))


def _nested(inner: st.SearchStrategy[spark.DataType]) -> st.SearchStrategy[spark.DataType]:
    return st.one_of(
        inner.map(spark.ArrayType), st.tuples(inner, inner).map(lambda kv: spark.MapType(*kv)), _struct(inner)
    )


rows = _struct(st.recursive(st.sampled_from(SCALARS), _nested, max_leaves=6))


def _ddl(kind: spark.DataType, between: str) -> str:
    """As Spark's `toDDL`, which only its JVM has."""
    if isinstance(kind, spark.StructType):
        fields = [
            f"`{field.name.replace('`', '``')}`{between}{_ddl(field.dataType, ': ')}"
            + ("" if field.nullable else " NOT NULL")
            for field in kind
        ]
        return ", ".join(fields) if between == " " else f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, spark.ArrayType):
        return f"ARRAY<{_ddl(kind.elementType, ': ')}>"
    if isinstance(kind, spark.MapType):
        return f"MAP<{_ddl(kind.keyType, ': ')}, {_ddl(kind.valueType, ': ')}>"
    return kind.simpleString().upper()


@given(rows)
def test_every_type_is_the_one_that_spark_makes_of_it(row: spark.StructType) -> None:
    assert schema_of(_ddl(row, " ")) == to_arrow_schema(row, timezone="UTC")
    assert schema_of(_ddl(row, ": ")) == to_arrow_schema(row, timezone="UTC")


@pytest.mark.parametrize(
    ("ddl", "names", "kinds"),
    [
        ("id LONG, `a b` decimal(12, 2), at: timestamp", ["id", "a b", "at"], ["int64", "decimal128(12, 2)", "ts"]),
        ("`a``b` numeric, c dec(5), d real", ["a`b", "c", "d"], ["decimal128(10, 0)", "decimal128(5, 0)", "float"]),
        ("not int, comment string comment 'it''s', b byte", ["not", "comment", "b"], ["int32", "string", "int8"]),
        (" struct < a : int > ", ["a"], ["int32"]),
        ("struct short, array integer", ["struct", "array"], ["int16", "int32"]),
    ],
)
def test_what_people_write_is_read(ddl: str, names: list[str], kinds: list[str]) -> None:
    found = schema_of(ddl)
    assert found.names == names
    assert [str(kind).replace("timestamp[us, tz=UTC]", "ts") for kind in found.types] == kinds
    assert schema_of(ddl_of(found)) == found


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        ("", "option-value"),
        ("id", "option-value"),
        ("id array<int", "option-value"),
        ("id long,", "option-value"),
        ("id int(3, 1)", "option-value"),
        ("a interval", "option-value"),
        ("a int b", "option-value"),
        ("a $", "option-value"),
        ("a decimal(39)", "option-value"),
        ("a int not nul", "option-value"),
        ("a int comment", "option-value"),
    ],
)
def test_what_is_no_schema_is_refused(ddl: str, code: str) -> None:
    with raises(ConfigError, code):
        schema_of(ddl)


def test_a_kafka_source_says_its_columns_in_every_format() -> None:
    added = ["kafka_key", "kafka_topic", "kafka_partition", "kafka_offset"]
    at = {"bootstrap_servers": "b:1"}
    assert KafkaSource("t", **at).arrow_schema().names[:3] == ["topic", "partition", "offset"]
    assert KafkaSource("t", format="string", columns=["key", "position"], **at).arrow_schema().names == [
        "value",
        *added,
    ]
    assert KafkaSource("t", format="csv", schema="id long", **at).arrow_schema() == pa.schema({"id": pa.int64()})
    assert KafkaSource("t", format="json", schema="a array<int>", **at).arrow_schema().types == [
        pa.list_(pa.field("element", pa.int32()))
    ]
    assert KafkaSource("t", format="avro", avro_schema=AVRO, **at).arrow_schema().names[-1] == "who"
    with raises(ConfigError, "schema-not-resolved"):
        KafkaSource("t", format="json", schema="infer", **at).arrow_schema()
    with raises(ConfigError, "type-unsupported"):
        KafkaSource("t", format="json", schema="a map<string, int>", **at).arrow_schema()

"""Rows with values at the borders of every type that a table of Postgres takes."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["typed"]

TYPES = """
    id int, flag boolean, small smallint, big bigint, f float, d double, dec decimal(38,9), s string, b binary,
    day date, at timestamp, local timestamp_ntz, xs array<int>, names array<string>,
    st struct<a: int, b: string, w: timestamp>, m map<string, decimal(12,2)>, deep array<struct<x: map<string, int>>>
"""
VALUES = [
    "1, true, -32768, 9007199254740993, 0.1, 1e-300, 12345678901234567890.123456789, 'a', X'00FF', DATE'2026-02-28',"
    " TIMESTAMP'2026-01-01 00:00:00.123456Z', TIMESTAMP_NTZ'2026-01-01 00:00:00.1', array(1, null), array('', null),"
    " struct(1, 'x\"', TIMESTAMP'2026-01-01 00:00:00.5Z'), map('k', 1.10, 'j', null), array(struct(map('a', 1)))",
    "2, false, 1, -1, double('NaN'), double('-Infinity'), -0.000000001, '', X'', DATE'1582-10-15',"
    " TIMESTAMP'1969-12-31 23:59:59.999999Z', TIMESTAMP_NTZ'9999-12-31 23:59:59', array(), array('null'),"
    " struct(null, '', null), map(), array()",
    "3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null",
    "4, true, 0, 0, 0, double('-0.0'), 0, 'line\n\"quoted\",\r\n\\\\N', X'5C78', DATE'0001-01-01',"
    " TIMESTAMP'2026-01-01 00:00:00Z', TIMESTAMP_NTZ'2026-01-01 00:00:00', array(null), array('a,b', '{}'),"
    " struct(1, null, null), map('', 0.00), array(null, struct(null))",
]


def typed(spark: SparkSession) -> DataFrame:
    rows = ", ".join(f"({value})" for value in VALUES)
    plain = spark.sql(f"SELECT * FROM VALUES {rows}")
    schema = spark.createDataFrame([], TYPES).schema
    return plain.select(*(F.col(f"col{i + 1}").cast(f.dataType).alias(f.name) for i, f in enumerate(schema.fields)))

"""A user's schema for a bounded read: the servers know no nested types, so nested columns come as JSON texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from onefold.spark.runtime.dataframe_columns import column

__all__ = ["NESTED", "fields_of", "parsed", "wire_of"]

NESTED = (ArrayType, MapType, StructType)


def fields_of(spark: SparkSession, schema: StructType | str | None) -> list[StructField]:
    if schema is None:
        return []
    return (schema if isinstance(schema, StructType) else spark.createDataFrame([], schema).schema).fields


def wire_of(fields: Sequence[StructField], texts: Collection[str]) -> StructType:
    """The schema as it is read: `texts` names the nested columns that come as JSON."""
    return StructType([StructField(f.name, StringType() if f.name in texts else f.dataType) for f in fields])


def parsed(df: DataFrame, fields: Sequence[StructField], texts: Collection[str], json_mode: str) -> DataFrame:
    """A DataFrame that was read by `wire_of`, with the columns of `fields`."""
    return df.select(*(_parsed(field, json_mode if field.name in texts else None) for field in fields))


def _parsed(field: StructField, json_mode: str | None) -> Column:
    """The field's column, parsed from JSON text where `json_mode` is given."""
    found = column(field.name)
    if json_mode is not None:
        found = F.from_json(found, field.dataType.json(), {"mode": json_mode})
    return found.alias(field.name)

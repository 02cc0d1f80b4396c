"""What a user's schema says of a bounded read, whose server knows no nested types: those come as JSON texts."""

from __future__ import annotations

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from onefold.spark.columns import column

__all__ = ["NESTED", "fields_of", "parsed"]

NESTED = (ArrayType, MapType, StructType)


def fields_of(spark: SparkSession, schema: StructType | str | None) -> list[StructField]:
    if schema is None:
        return []
    return (schema if isinstance(schema, StructType) else spark.createDataFrame([], schema).schema).fields


def parsed(field: StructField, json_mode: str | None) -> Column:
    """The field's column, of JSON text where there is a mode to parse that with."""
    found = column(field.name)
    if json_mode is not None:
        found = F.from_json(found, field.dataType.json(), {"mode": json_mode})
    return found.alias(field.name)

"""Columns: by their plain names, also names that Spark's notation would read as something else; by a DDL text; as Arrow
has them; and the column of the epoch's number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from onefold.core import ConfigError
from onefold.core.writing.arrangement import EPOCH_COLUMN

_OF_PARTS = (
    "variant",
    "geometry",
    "geography",
)  # Arrow has the bytes that Spark keeps of them, which mean nothing alone
_CASE_TOLD = "spark.sql.caseSensitive"


@contextmanager
def telling_case(spark: SparkSession, schemas: Iterable[pa.Schema]) -> Iterator[None]:
    """Has the session tell names apart by their case, where one of these schemas has some that differ in it alone."""
    if all(len({name.lower() for name in schema.names}) == len({*schema.names}) for schema in schemas):
        yield
        return
    before = spark.conf.get(_CASE_TOLD)
    spark.conf.set(_CASE_TOLD, "true")
    try:
        yield
    finally:
        spark.conf.set(_CASE_TOLD, before or "false")


def is_case_told(spark: SparkSession) -> bool:
    return spark.conf.get(_CASE_TOLD) == "true"


def column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def columns(names: Iterable[str]) -> list[Column]:
    return [column(name) for name in names]


def with_epoch(df: DataFrame, epoch: int) -> DataFrame:
    return df.withColumn(EPOCH_COLUMN, F.lit(epoch).cast("long"))


def struct_of(ddl: str) -> StructType:
    """The columns of a DDL text. Raises ConfigError for a text that Spark does not read."""
    try:
        found = StructType.fromDDL(ddl)
    except AnalysisException as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise ConfigError("option-value", f"the schema {ddl!r} is none that Spark reads: {reason}") from None
    assert isinstance(found, StructType), found
    return found


def arrow_of(schema: StructType) -> pa.Schema:
    """The columns as sinks get them. Raises ConfigError for a type that no sink has a value for."""
    for field in schema:
        if (kind := _of_parts(field.dataType)) is not None:
            text = "its JSON text, to_json" if kind.typeName() == "variant" else "a text or bytes of it"
            raise ConfigError(
                "type-unsupported",
                f"the column {field.name!r} is {field.dataType.simpleString()}, and no sink has a type for"
                f" {kind.typeName()}: select {text} of it, under its name, or leave it out",
            )
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException as error:
            raise ConfigError(
                "type-unsupported",
                f"the column {field.name!r} is {field.dataType.simpleString()}, which Spark gives to no function of"
                " Python's: cast it, to a text or a number, or leave it out",
            ) from error
    return to_arrow_schema(schema, timezone="UTC")


def _of_parts(kind: DataType) -> DataType | None:
    match kind:
        case ArrayType():
            return _of_parts(kind.elementType)
        case MapType():
            return _of_parts(kind.keyType) or _of_parts(kind.valueType)
        case StructType():
            return next((found for field in kind if (found := _of_parts(field.dataType)) is not None), None)
        case _:
            return kind if kind.typeName() in _OF_PARTS else None


def mapped(
    df: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """As `mapInArrow`, of columns of any names: that one looks them up by name, where a dot is a field of a struct, and
    two names that differ in case are one. Instants come in UTC, as sinks are told, and not in the session's zone."""
    names, told = df.columns, to_arrow_schema(df.schema, timezone="UTC")

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(in_utc(batch.rename_columns(names), told) for batch in batches)

    return df.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(named, schema)


def in_utc(batch: pa.RecordBatch, told: pa.Schema) -> pa.RecordBatch:
    """The same values under the types that were told: the zone's name differs, which copies nothing; or how wide the
    offsets of texts are, where the session has Spark hand out large types."""
    return batch if batch.schema.types == told.types else batch.cast(told)

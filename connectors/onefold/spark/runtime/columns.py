"""Columns: by their plain names, also names that Spark's notation would read as something else; by a DDL text; and the
column of the epoch's number."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onefold.core import ConfigError
from onefold.core.writing.arrangement import EPOCH_COLUMN

__all__ = ["EPOCH_COLUMN", "column", "columns", "struct_of", "with_epoch"]


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

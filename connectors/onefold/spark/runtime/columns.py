"""Columns: by their plain names, also names that Spark's notation would read as something else, and by a DDL text."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onefold.core import ConfigError

__all__ = ["column", "columns", "columns_of"]


def column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def columns(names: Iterable[str]) -> list[Column]:
    return [column(name) for name in names]


def columns_of(ddl: str) -> StructType:
    """The columns of a DDL text. Raises ConfigError for a text that Spark does not read."""
    try:
        found = StructType.fromDDL(ddl)
    except AnalysisException as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise ConfigError("option-value", f"the schema {ddl!r} is none that Spark reads: {reason}") from None
    assert isinstance(found, StructType), found
    return found

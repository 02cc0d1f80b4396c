"""Texts as a table's columns write them, where a column takes one and writes another, without an error.

char(n) forgets blanks at the end, varchar(n) those that it has no place for; uuid and jsonb have a form of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType

from onefold.sources.postgres.postgres_types import ResultType
from onefold.spark.runtime.dataframe_columns import column

Form: TypeAlias = Callable[[Column], Column]
Stored: TypeAlias = Callable[[DataFrame], DataFrame]  # rows, or the table's own, in that form

_VARCHAR_HEADER = 4  # of a typmod: length + 4
_DIGITS_MAX = 131_072  # of a numeric before its point
_UUID = r"^(.{8})(.{4})(.{4})(.{4})(.{12})$"


def as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def stored(forms: Mapping[str, Form]) -> Stored:
    """What brings the texts in some columns, by name, into these forms."""

    def apply(rows: DataFrame) -> DataFrame:
        texts = [field.name for field in rows.schema if isinstance(field.dataType, StringType)]
        found = {name: forms[name](column(name)).alias(name) for name in texts if name in forms}
        return rows.select(*(found.get(name, column(name)) for name in rows.columns)) if found else rows

    return apply


def form_in_postgres(kind: ResultType) -> Form | None:
    """None where a column writes texts as they are, or refuses them."""
    match kind.name:
        case "bpchar":
            return fixed_text
        case "varchar" if kind.typmod >= 0:
            return varying_text(kind.typmod - _VARCHAR_HEADER)
        case "uuid":
            return _uuid
        case "jsonb":
            return _jsonb
        case _:
            return None


def fixed_text(value: Column) -> Column:
    """Of char(n), where blanks at the end say nothing."""
    return F.rtrim(value)


def varying_text(length: int) -> Form:
    """Of varchar(n): too long a text is refused, unless it is blanks that are too many."""

    def cut(value: Column) -> Column:
        is_blank = (F.length(value) > length) & (F.length(F.rtrim(value)) <= length)
        return F.when(is_blank, F.left(value, F.lit(length))).otherwise(value)

    return cut


def _uuid(value: Column) -> Column:
    return F.regexp_replace(F.lower(F.replace(value, F.lit("-"), F.lit(""))), _UUID, "$1-$2-$3-$4-$5")


def _jsonb(value: Column) -> Column:
    written: Form = arrow_udf(_documents, StringType())  # type: ignore[call-overload]  # one that PySpark's stubs lack
    return written(value)


def _documents(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else _document(text) for text in texts.to_pylist()], pa.string())


def _document(text: str) -> str:
    """With each field once, its last value, sorted; numbers have all their digits. What jsonb refuses is as it is."""
    try:
        found = _written(json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refused))
        found.encode()  # half a surrogate pair is no text
        return found
    except (ValueError, ArithmeticError, RecursionError):
        return text


def _number(text: str) -> Decimal:
    found = Decimal(text)
    return found if abs(found.adjusted()) <= _DIGITS_MAX else _refused(text)


def _refused(text: str) -> Decimal:
    raise ValueError(text)


def _written(value: Any) -> str:
    match value:
        case dict():
            fields = (f"{json.dumps(name, ensure_ascii=False)}: {_written(value[name])}" for name in sorted(value))
            return f"{{{', '.join(fields)}}}"
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case Decimal():
            return f"{abs(value) if value == 0 else value:f}"
        case _:
            return json.dumps(value, ensure_ascii=False)

"""Says of a few wrong rows what they are: which columns differ, by both values, and which records they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.comparing.reconcile import Versions, order_of

__all__ = ["Sources", "samples_of", "text_of"]

Sources = Callable[[DataFrame], Mapping[str, str]]  # of a few keys, by their texts, which records they come from

_VALUES_MAX = 100  # characters of a value
_ROWS_MAX = 1_000


def text_of(row: Row, key: Sequence[str]) -> str:
    """By which a key is shown, and found again."""
    return ", ".join(f"{name}={row[name]}" for name in key)


def samples_of(
    wrong: Mapping[str, Sequence[Row]],
    expected: DataFrame,
    actual: DataFrame,
    key: Sequence[str],
    changes: Versions | None = None,
    sources: Sources | None = None,
) -> dict[str, list[str]]:
    """The texts of wrong keys, by kind: `wrong` has rows of the key, `__expected` and `__actual`."""
    if not wrong:
        return {}
    kind = StructType([expected.schema[name] for name in key])
    spark = expected.sparkSession

    def keys_of(rows: Iterable[Row]) -> DataFrame:
        return spark.createDataFrame([tuple(row[name] for name in key) for row in rows], kind)

    changed = _changes(expected, actual, keys_of(wrong["changed"]), key, changes) if "changed" in wrong else {}
    known = [row for kind_, rows in wrong.items() if kind_ != "unexpected" for row in rows]
    begins = sources(keys_of(known)) if sources is not None and known else {}

    def said(row: Row, kind_: str) -> str:
        text = text_of(row, key)
        more = [changed.get(text, "")] if kind_ == "changed" else []
        more.append(begins.get(text, ""))
        told = "; ".join(filter(None, more))
        return f"{text} (expected {row['__expected']}, found {row['__actual']})" + (f": {told}" if told else "")

    return {kind_: [said(row, kind_) for row in rows] for kind_, rows in wrong.items()}


def _changes(
    expected: DataFrame, actual: DataFrame, keys: DataFrame, key: Sequence[str], changes: Versions | None
) -> dict[str, str]:
    """Of keys that have one row on both sides, which columns differ."""
    rows = among(expected, keys, key)
    if changes is not None:
        newest = F.max_by(F.struct(*columns(actual.columns)), order_of(map(column, changes.order)))
        rows = (
            rows.groupBy(*(column(name).alias(f"__{name}") for name in key))
            .agg(newest.alias("__row"))
            .select("__row.*")
        )
    due = _by_text(rows.select(columns(actual.columns)), key)
    found = _by_text(among(actual, keys, key), key)
    told = {}
    for text, (row, *more) in due.items():
        theirs = found.get(text, [])
        if not more and len(theirs) == 1:
            pairs = ((name, row[name], theirs[0][name]) for name in actual.columns if not name.startswith("__"))
            # By their texts: a NaN is no other than itself.
            different = [(name, _short(one), _short(other)) for name, one, other in pairs if repr(one) != repr(other)]
            told[text] = ", ".join(f"{name} is {other}, and was to be {one}" for name, one, other in different)
    return told


def among(rows: DataFrame, keys: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows with one of these few keys, which may be null."""
    few = F.broadcast(keys.toDF(*(f"__of_{number}" for number in range(len(key)))))
    same: Column = reduce(
        Column.__and__, (column(name).eqNullSafe(F.col(f"__of_{number}")) for number, name in enumerate(key))
    )
    return rows.join(few, same, "left_semi").limit(_ROWS_MAX)


def _by_text(rows: DataFrame, key: Sequence[str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows.collect():
        found.setdefault(text_of(row, key), []).append(row)
    return found


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _VALUES_MAX else f"{text[:_VALUES_MAX]}…"

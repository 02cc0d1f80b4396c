"""Says of a few wrong rows what they are: which columns differ, by both values, and which records they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from onefold.core.values.plain import plain
from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.comparing.reconcile import CONTENT_HASH, Versions, joined, order_of

__all__ = ["Sources", "samples_of", "text_of", "told"]

Sources = Callable[[DataFrame], Mapping[str, str]]  # of a few keys, by their texts, which records they come from

_VALUES_MAX = 100  # characters of a value
_KEY_MAX = 400
_UNCLEAR = re.compile(r"^[\s'\"]|, |=|\s$")
_ROWS_MAX = 1_000


def text_of(row: Row, key: Sequence[str]) -> str:
    """By which a key is shown, and found again: of other values it is another text."""
    return ", ".join(f"{name}={_said(row[name])}" for name in key)


def told(rows: DataFrame) -> DataFrame:
    """The rows with dates and timestamps as texts: Python has none after the year 9999."""
    kinds = (DateType, TimestampType, TimestampNTZType)
    return rows.select(
        *(
            column(field.name).cast("string").alias(field.name)
            if isinstance(field.dataType, kinds)
            else column(field.name)
            for field in rows.schema
        )
    )


def samples_of(
    wrong: Mapping[str, DataFrame],
    expected: DataFrame,
    actual: DataFrame,
    key: Sequence[str],
    changes: Versions | None = None,
    sources: Sources | None = None,
) -> dict[str, list[str]]:
    """The texts of wrong keys, by kind: `wrong` has a few rows of the key, `__expected` and `__actual`."""
    if not wrong:
        return {}
    kept = {kind: rows.persist() for kind, rows in wrong.items()}  # a limit may take other rows each time

    def keys_of(kinds: Iterable[str]) -> DataFrame:
        return reduce(DataFrame.unionAll, (kept[kind].select(columns(key)) for kind in kinds))

    try:
        changed = _changes(expected, actual, keys_of(["changed"]), key, changes) if "changed" in wrong else {}
        known = [kind for kind in wrong if kind != "unexpected"]
        begins = sources(keys_of(known)) if sources is not None and known else {}
        shown = {kind: told(rows).collect() for kind, rows in kept.items()}
    finally:
        for rows in kept.values():
            rows.unpersist()

    def said(row: Row, kind: str) -> str:
        text = text_of(row, key)
        because = "; ".join(filter(None, (changed.get(text) if kind == "changed" else None, begins.get(text))))
        counts = f"(expected {row['__expected']}, found {row['__actual']})"
        return f"{plain(text, _KEY_MAX)} {counts}" + (f": {because}" if because else "")

    return {kind: [said(row, kind) for row in rows] for kind, rows in shown.items()}


def _changes(
    expected: DataFrame, actual: DataFrame, keys: DataFrame, key: Sequence[str], changes: Versions | None
) -> dict[str, str]:
    """Of keys that have one row on both sides, which columns differ."""
    rows = among(expected, keys, key)
    if changes is not None:
        newest = F.max_by(F.struct(*columns(actual.columns)), order_of(map(column, changes.order)))
        rows = (
            rows.groupBy(*(column(name).alias(f"__of_{number}") for number, name in enumerate(key)))
            .agg(newest.alias("__row"))
            .select("__row.*")
        )
    due = _by_text(rows.select(columns(actual.columns)), key)
    found = _by_text(among(actual, keys, key), key)
    found_of = {}
    for text, (row, *more) in due.items():
        theirs = found.get(text, [])
        if not more and len(theirs) == 1:
            pairs = ((name, row[name], theirs[0][name]) for name in actual.columns if name != CONTENT_HASH)
            # By their texts: a NaN is no other than itself.
            different = [(name, _short(one), _short(other)) for name, one, other in pairs if repr(one) != repr(other)]
            found_of[text] = ", ".join(f"{name} is {other}, and was to be {one}" for name, one, other in different)
    return found_of


def among(rows: DataFrame, keys: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows with one of these few keys, which may be null."""
    return joined(rows, F.broadcast(keys), key, (), "left_semi").limit(_ROWS_MAX)


def _by_text(rows: DataFrame, key: Sequence[str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in told(rows).collect():
        found.setdefault(text_of(row, key), []).append(row)
    return found


def _said(value: Any) -> str:
    """A text that says no other value: null is none, and what a reader could take for more than a text is quoted."""
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    is_clear = value not in ("", "null") and value.isprintable() and not _UNCLEAR.search(value)
    return value if is_clear else repr(value)


def _short(value: Any) -> str:
    return plain(_said(value), _VALUES_MAX)

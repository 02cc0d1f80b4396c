"""Says of a few wrong rows what they are: which columns differ, by both values, and which records they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, FloatType, TimestampNTZType, TimestampType

from onefold.core.values.plain import plain
from onefold.spark.formats.table_reads import NESTED
from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.comparing.reconcile import CONTENT_HASH, deletion_of, fingerprint, joined, order_of
from onefold.spark.verify.comparing.sides import Sides

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


def samples_of(wrong: Mapping[str, DataFrame], sides: Sides) -> dict[str, list[str]]:
    """The texts of wrong keys, by kind: `wrong` has a few rows of the key, `__expected` and `__actual`."""
    if not wrong:
        return {}
    expected, actual, key, changes, sources = sides.expected, sides.actual, sides.key, sides.changes, sides.sources
    kept = {kind: rows.persist() for kind, rows in wrong.items()}  # a limit may take other rows each time

    def keys_of(*kinds: str) -> DataFrame | None:
        keys = [kept[kind].select(columns(key)) for kind in kinds if kind in kept]
        return reduce(DataFrame.unionAll, keys) if keys else None

    known = keys_of(*(kind for kind in wrong if kind != "unexpected"))
    other = keys_of("changed", "unexpected") if changes is not None else keys_of("changed")
    # Of versions that one's place is told, which is to be there; of rows that are added, all of the key's.
    by = [*key] if changes is None else _located_by(actual, key)
    due, there, older, wanted = {}, {}, set(), [known] if known is not None and changes is None else []
    try:
        if known is not None and (changes is not None or "changed" in wrong):
            newest = newest_among(sides, known).select(columns(actual.columns))
            due = _by_text(newest.limit(_ROWS_MAX), key)
            wanted += [newest.select(columns(by))] if changes is not None else []
        if other is not None:
            found = _among(actual, other, key)
            there = _by_text(found.limit(_ROWS_MAX), key)
            if changes is not None:
                older = _older(found, _among(expected, other, key).where(~deletion_of(changes)), key)
            wanted += [found.select(columns(by))] if older else []
        places = sources(reduce(DataFrame.unionAll, wanted).limit(_ROWS_MAX)) if sources is not None and wanted else {}
        shown = {kind: told(rows).collect() for kind, rows in kept.items()}
    finally:
        for rows in kept.values():
            rows.unpersist()

    def said(row: Row, kind: str) -> str:
        text, because = text_of(row, key), []
        mine, theirs = due.get(text, []), there.get(text, [])
        if kind == "changed" and len(mine) == len(theirs) == 1:
            because.append(_differs(mine[0], theirs[0]))
        if kind in ("changed", "unexpected") and text in older:
            because.append(f"an older version, {places.get(text_of(theirs[0], by), 'from an unknown place')}")
        if kind != "unexpected":
            because.append(str(places.get(text_of(mine[0], by) if mine and changes is not None else text) or ""))
        counts = f"(expected {row['__expected']}, found {row['__actual']})"
        because = [*filter(None, because)]
        return f"{plain(text, _KEY_MAX)} {counts}" + (f": {'; '.join(because)}" if because else "")

    return {kind: [said(row, kind) for row in rows] for kind, rows in shown.items()}


def newest_among(sides: Sides, keys: DataFrame) -> DataFrame:
    """The rows that are to be there with one of these few keys; of versions the newest, which may be a deletion."""
    rows, key, changes = _among(sides.expected, keys, sides.key), sides.key, sides.changes
    if changes is None:
        return rows
    version = order_of([*map(column, changes.order), deletion_of(changes)])
    newest = F.max_by(F.struct(*columns(rows.columns)), version).alias("__row")
    grouped = rows.groupBy(*(column(name).alias(f"__of_{number}") for number, name in enumerate(key))).agg(newest)
    return grouped.select("__row.*")


def _among(rows: DataFrame, keys: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows with one of these few keys, which may be null."""
    return joined(rows, F.broadcast(keys), key, (), "left_semi")


def _older(found: DataFrame, versions: DataFrame, key: Sequence[str]) -> set[str]:
    """The keys, by their texts, of rows that are as some version of their key."""
    content = fingerprint([versions.schema[name] for name in found.columns]).alias("__hash")
    same = joined(
        found.select("*", content), versions.select(*columns(key), content), (*key, "__hash"), (), "left_semi"
    )
    return {text_of(row, key) for row in told(same.select(columns(key)).limit(_ROWS_MAX)).collect()}


def _located_by(rows: DataFrame, key: Sequence[str]) -> list[str]:
    """The columns by which a version is found among the source's: a NaN is equal to nothing there."""
    unequal = (*NESTED, FloatType, DoubleType)
    return [field.name for field in rows.schema if field.name in key or not isinstance(field.dataType, unequal)]


def _differs(due: Row, found: Row) -> str:
    """Which columns differ."""
    pairs = [(name, due[name], found[name]) for name in found.__fields__ if name != CONTENT_HASH]
    # By their texts: a NaN is no other than itself.
    return ", ".join(
        f"{name} is {_short(other)}, and was to be {_short(one)}"
        for name, one, other in pairs
        if repr(one) != repr(other)
    )


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

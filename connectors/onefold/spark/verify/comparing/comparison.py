"""Compares a source's rows with a destination's, and sums up how many are wrong, how, and where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, FractionalType

from onefold.core import ConfigError
from onefold.core.invariants import SAMPLES_MAX, Comparison
from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.comparing.reconcile import (
    EPOCH,
    KINDS,
    UNTOLD,
    DeadLetters,
    deletion_of,
    fingerprint,
    joined,
    judge_appended,
    judge_newest,
    order_of,
    reconcile,
)
from onefold.spark.verify.comparing.samples import samples_of
from onefold.spark.verify.comparing.sides import Sides, Sources, Versions
from onefold.spark.verify.comparing.wrong_rows import WrongRows

PLACE = "__place"
_GONE = "__gone"
FLOATS_DIFFER_MAX = 1e-9  # of the expected one
_RANGES = 4096  # of the key's hash


def compare(
    expected: DataFrame,
    actual: DataFrame,
    key: Sequence[str],
    changes: Versions | None = None,
    letters: DeadLetters | None = None,
    gone: DataFrame | None = None,
    places: Callable[[DataFrame], DataFrame] | None = None,
    sources: Sources | None = None,
    mending: WrongRows | None = None,
) -> Comparison:
    """Compare two sets of rows by key, in the columns that `actual` has; a key may occur several times on both sides,
    unless `changes` make these versions of one row.

    Checksums of both sides come first, by ranges of the key's hash, and only ranges that differ are compared by row.
    `gone` has the keys of rows that the destination may have dropped by itself: one that is missing is untold, and not
    lost. `places` adds to keys the column PLACE, a text: then what is wrong is also counted by place.
    `mending` takes the wrong keys, and what they are to have.
    """
    check(expected, key, changes, letters)
    sides, same = Sides(expected, actual, key, changes, sources), 0
    # Of rows that nobody can tell any more, and of dead letters, equal checksums say nothing.
    if letters is None and (changes is None or changes.order != (EPOCH,)):
        same, ranges = _checked(sides)
        if not ranges:
            return Comparison(same, same, 0, 0, 0, 0)
        expected, actual = (side.where(_range_of(side, key).isin(ranges)) for side in (expected, actual))
        sides = replace(sides, expected=expected, actual=actual)
    lines = reconcile(sides, letters)
    if changes is None:
        judged = judge_appended(lines, key)
    else:
        judged = judge_newest(lines, key, by_epoch=changes.order == (EPOCH,))
    if gone is not None:
        judged = _without(judged, gone, key)
    judged = judged.persist()
    try:
        names = ("expected", "actual", *KINDS, UNTOLD)
        totals = judged.agg(*(F.sum(f"__{name}").alias(name) for name in names)).collect()[0]
        wrong = {kind: judged.where(f"__{kind} > 0").limit(SAMPLES_MAX) for kind in (*KINDS, UNTOLD) if totals[kind]}
        samples = samples_of(wrong, sides)
        partitions = _by_place(judged, key, places) if places is not None and samples else {}
        dead = letters.rows.count() if letters is not None else 0
        if mending is not None:
            mending.take(judged, sides)
            mending.because = mending.because or ("the sink has dead letters, which stand for rows" if dead else "")
    finally:
        judged.unpersist()
    counts: dict[str, Any] = {name: int(totals[name] or 0) for name in names}
    counts |= {name: counts[name] + same for name in ("expected", "actual")}
    return Comparison(**counts, dead=dead, samples=samples, partitions=partitions)


def near(actual: DataFrame, expected: DataFrame, key: Sequence[str], sums: Sequence[str] | None = None) -> DataFrame:
    """`actual`, with the expected float where the stored one differs from it by rounding alone: what a sum of floats
    is depends on their order. Of all floats; or of these `sums`, by the sizes of what was added, in `__size_NAME`."""
    floats = [
        field.name
        for field in expected.schema
        if isinstance(field.dataType, FractionalType) and not isinstance(field.dataType, DecimalType)
    ]
    numbers = {name: number for number, name in enumerate(floats if sums is None else sums) if name not in key}
    if not numbers:
        return actual
    firsts = expected.groupBy(*columns(key)).agg(
        *(F.first(column(name)).alias(f"__due_{number}") for name, number in numbers.items()),
        *(F.first(_size_of(name, sums)).alias(f"__size_{number}") for name, number in numbers.items()),
    )
    both = joined(
        actual, firsts, key, [f"__{what}_{number}" for number in numbers.values() for what in ("due", "size")]
    )

    def nearest(name: str) -> Column:
        one, due, size = column(name), F.col(f"__due_{numbers[name]}"), F.col(f"__size_{numbers[name]}")
        # By a NaN or an infinity everything would be near: these are themselves, or differ.
        is_near = (F.abs(due) < math.inf) & (F.abs(one - due) <= FLOATS_DIFFER_MAX * size)
        return F.when(is_near, due).otherwise(one).alias(name)

    return both.select(*(nearest(name) if name in numbers else column(name) for name in actual.columns))


def _size_of(name: str, sums: Sequence[str] | None) -> Column:
    return F.abs(column(name)) if sums is None else column(f"__size_{name}")


def check(
    expected: DataFrame, key: Sequence[str], changes: Versions | None = None, letters: DeadLetters | None = None
) -> None:
    """Raises ConfigError where the rows lack a column that they are compared by."""
    missing = [name for name in key if name not in expected.columns]
    if missing or not key:
        raise ConfigError(
            "no-such-column",
            f"the key must be columns of the rows ({', '.join(expected.columns)}); not: {missing or key}",
        )
    needed = (*changes.order, changes.delete_when_true, changes.delete_when_null) if changes is not None else ()
    needed += letters.position if letters is not None else ()
    if lacking := [name for name in needed if name is not None and name not in expected.columns]:
        raise ConfigError(
            "verify-columns-missing",
            f"the rows ({', '.join(expected.columns)}) lack {', '.join(lacking)}, which the sink's order, deletions or"
            " source_position name: set sink, source (positions) and transformation up as the pipeline has them",
        )


def _checked(sides: Sides) -> tuple[int, list[int]]:
    """How many rows are in ranges of the key's hash that are the same on both sides, and which ranges are not."""
    expected, actual, key, changes = sides.expected, sides.actual, sides.key, sides.changes
    content = fingerprint([expected.schema[name] for name in actual.columns]).alias("__hash")
    rows = expected.select(_range_of(expected, key), content)
    if changes is not None:  # the newest of each key; of those of an equal order any is right, and a deletion wins
        version = F.struct(order_of(map(column, changes.order)), deletion_of(changes).alias("__deleted"), content)
        versions = expected.groupBy(*columns(key)).agg(F.max(version).alias("__newest"))
        rows = versions.where(~F.col("__newest")["__deleted"])
        rows = rows.select(_range_of(versions, key), F.col("__newest")["__hash"].alias("__hash"))
    due = _checksums(rows)
    found = _checksums(actual.select(_range_of(actual, key), content))
    same = sum(counted[0] for range_, counted in due.items() if found.get(range_) == counted)
    return same, [range_ for range_ in due.keys() | found.keys() if due.get(range_) != found.get(range_)]


def _checksums(rows: DataFrame) -> dict[int, tuple[int, ...]]:
    """Of each range the number of rows, and the sum of their hashes in two halves, which do not overflow."""
    low, high = F.col("__hash").bitwiseAND(0xFFFFFFFF), F.shiftrightunsigned("__hash", 32)
    sums = rows.groupBy("__range").agg(F.count("*"), F.sum(low), F.sum(high))
    return {row[0]: tuple(row[1:]) for row in sums.collect()}


def _range_of(side: DataFrame, key: Sequence[str]) -> Column:
    return F.pmod(fingerprint([side.schema[name] for name in key]), F.lit(_RANGES)).cast("int").alias("__range")


def _without(judged: DataFrame, gone: DataFrame, key: Sequence[str]) -> DataFrame:
    """Counts missing rows that may be gone as untold."""
    counted = gone.groupBy(*columns(key)).agg(F.count("*").alias(_GONE))
    untold = F.least(F.col("__lost"), F.coalesce(_GONE, F.lit(0)))
    counts = {"__lost": F.col("__lost") - untold, "__untold": F.col("__untold") + untold}
    return joined(judged, counted, key, (_GONE,)).withColumns(counts).drop(_GONE)


def _by_place(
    judged: DataFrame, key: Sequence[str], places: Callable[[DataFrame], DataFrame]
) -> dict[str, dict[str, int]]:
    wrong = judged.where(" + ".join(f"__{kind}" for kind in KINDS) + " > 0")
    placed = joined(wrong, places(wrong.select(columns(key))), key, (PLACE,))
    totals = placed.groupBy(F.coalesce(PLACE, F.lit("?")).alias(PLACE)).agg(*(F.sum(f"__{kind}") for kind in KINDS))
    found = {row[0]: dict(zip(KINDS, map(int, row[1:]), strict=True)) for row in totals.orderBy(PLACE).collect()}
    return {place: {kind: count for kind, count in counts.items() if count} for place, counts in found.items()}

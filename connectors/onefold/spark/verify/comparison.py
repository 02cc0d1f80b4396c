"""Compares a source's rows with a destination's, and sums up how many are wrong, how, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onefold.core import ConfigError
from onefold.core.invariants import SAMPLES_MAX, Comparison
from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.origin import EPOCH
from onefold.spark.verify.reconcile import KINDS, UNTOLD, DeadLetters, Versions, judge_appended, judge_newest, reconcile

__all__ = ["PLACE", "compare"]

PLACE = "__place"
_GONE = "__gone"


def compare(
    expected: DataFrame,
    actual: DataFrame,
    key: Sequence[str],
    changes: Versions | None = None,
    letters: DeadLetters | None = None,
    gone: DataFrame | None = None,
    places: Callable[[DataFrame], DataFrame] | None = None,
) -> Comparison:
    """Compare two sets of rows by key, in the columns that `actual` has; a key may occur several times on both sides,
    unless `changes` make these versions of one row.

    `gone` has the keys of rows that the destination may have dropped by itself: one that is missing is untold, and not
    lost. `places` adds to keys the column PLACE, a text: then what is wrong is also counted by place.
    """
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
    lines = reconcile(expected, actual, key, changes, letters)
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
        samples = {
            kind: [
                ", ".join(f"{name}={row[name]}" for name in key)
                + f" (expected {row['__expected']}, found {row['__actual']})"
                for row in judged.where(f"__{kind} > 0").limit(SAMPLES_MAX).collect()
            ]
            for kind in (*KINDS, UNTOLD)
            if totals[kind]
        }
        partitions = _by_place(judged, key, places) if places is not None and samples else {}
        dead = letters.rows.count() if letters is not None else 0
    finally:
        judged.unpersist()
    counts: dict[str, Any] = {name: int(totals[name] or 0) for name in names}
    return Comparison(**counts, dead=dead, samples=samples, partitions=partitions)


def _without(judged: DataFrame, gone: DataFrame, key: Sequence[str]) -> DataFrame:
    """Counts missing rows that may be gone as untold."""
    counted = gone.groupBy(*columns(key)).agg(F.count("*").alias(_GONE))
    untold = F.least(F.col("__lost"), F.coalesce(_GONE, F.lit(0)))
    counts = {"__lost": F.col("__lost") - untold, "__untold": F.col("__untold") + untold}
    return _joined(judged, counted, key, (_GONE,)).withColumns(counts).drop(_GONE)


def _by_place(
    judged: DataFrame, key: Sequence[str], places: Callable[[DataFrame], DataFrame]
) -> dict[str, dict[str, int]]:
    wrong = judged.where(" + ".join(f"__{kind}" for kind in KINDS) + " > 0")
    placed = _joined(wrong, places(wrong.select(columns(key))), key, (PLACE,))
    totals = placed.groupBy(F.coalesce(PLACE, F.lit("?")).alias(PLACE)).agg(*(F.sum(f"__{kind}") for kind in KINDS))
    found = {row[0]: dict(zip(KINDS, map(int, row[1:]), strict=True)) for row in totals.orderBy(PLACE).collect()}
    return {place: {kind: count for kind, count in counts.items() if count} for place, counts in found.items()}


def _joined(one: DataFrame, other: DataFrame, key: Sequence[str], more: Sequence[str]) -> DataFrame:
    """Joins by keys that may be null, and keeps these columns of the other side."""
    names = {name: f"__of_{number}" for number, name in enumerate(key)}
    renamed = other.select(*(column(name).alias(theirs) for name, theirs in names.items()), *more)
    same: Column = reduce(Column.__and__, (column(name).eqNullSafe(F.col(theirs)) for name, theirs in names.items()))
    return one.join(renamed, same, "left").drop(*names.values())

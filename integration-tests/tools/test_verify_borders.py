"""What two sets of rows are told to be at the borders of their values and names, without a server."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onefold.core.invariants import Comparison
from onefold.sinks.staged.upsert import Changes
from onefold.spark.verify.comparing.comparison import compare, near

pytestmark = pytest.mark.slow

Rows = list[tuple[Any, ...]]


def compared(
    spark: SparkSession, ddl: str, due: Rows, there: Rows, key: str = "id", changes: Changes | None = None
) -> Comparison:
    expected, actual = spark.createDataFrame(due, ddl), spark.createDataFrame(there, ddl)
    return compare(expected, near(actual, expected, [key]), [key], changes)


def test_nothing_is_near_what_is_no_finite_number(spark: SparkSession) -> None:
    nan, inf = math.nan, math.inf
    due = [(0, nan), (1, inf), (2, -inf), (3, nan), (4, inf), (5, 1.0), (6, 0.0), (7, 2.0)]
    there = [(0, 5.0), (1, 5.0), (2, inf), (3, nan), (4, inf), (5, 1 + 1e-12), (6, -0.0), (7, nan)]
    found = compared(spark, "id int, x double", due, there)
    assert (found.changed, found.lost, found.unexpected) == (4, 0, 0)
    assert {text.partition(" ")[0] for text in found.samples["changed"]} == {"id=0", "id=1", "id=2", "id=7"}


@pytest.mark.parametrize("name", ["a.b", "a`b", "__x"])
def test_floats_of_any_name_are_near(spark: SparkSession, name: str) -> None:
    ddl = f"id int, x double, `{name.replace('`', '``')}` double"
    assert compared(spark, ddl, [(1, 2.0, 3.0)], [(1, 2 + 1e-12, 3 + 1e-12)]).changed == 0
    assert compared(spark, ddl, [(1, 2.0, 3.0)], [(1, 2.0, 4.0)]).changed == 1

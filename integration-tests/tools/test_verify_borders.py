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


def test_samples_say_no_other_value_and_nothing_to_a_terminal(spark: SparkSession) -> None:
    ddl = "id string, n string"
    due = [("null", "x"), (None, "x"), ("\x1b[2J\n", None), ("k" * 5000, "")]
    there = [
        ("null", "y"),
        (None, "z"),
        ("\x1b[2J\n", "null"),
        ("k" * 5000, "\x1b]0;title\x07\u202evvvvvvvvvvvv" + "v" * 5000),
    ]
    found = compared(spark, ddl, due, there)
    texts = sorted(found.samples["changed"])
    assert [text.partition(" (")[0][:20] for text in texts] == [
        "id='\\x1b[2J\\n'",
        "id='null'",
        "id=" + "k" * 17,
        "id=null",
    ]
    assert [text.partition("): ")[2][:40] for text in texts] == [
        "n is 'null', and was to be null",
        "n is y, and was to be x",
        "n is '\\x1b]0;title\\x07\\u202evvvvvvvvvvvv",
        "n is z, and was to be x",
    ]
    assert all(len(text) < 700 and text.isprintable() for text in texts)
    assert texts[2].endswith("..., and was to be ''")


def test_keys_of_one_text_are_told_apart(spark: SparkSession) -> None:
    ddl = "a string, b string, n int"
    due, there = ([("1, b=2", "3", n), ("1", "2, b=3", n + 1)] for n in (0, 5))
    expected, actual = spark.createDataFrame(due, ddl), spark.createDataFrame(there, ddl)
    assert sorted(compare(expected, actual, ["a", "b"]).samples["changed"]) == [
        "a='1, b=2', b=3 (expected 1, found 1): n is 5, and was to be 0",
        "a=1, b='2, b=3' (expected 1, found 1): n is 6, and was to be 1",
    ]


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
def test_what_python_has_no_date_for_is_shown(spark: SparkSession, kind: str) -> None:
    far, near_ = (
        spark.sql(f"SELECT {kind}'+{year}-01-01' AS id, {kind}'+{year}-01-02' AS at") for year in (20000, 2020)
    )
    keyed = compare(far, far.selectExpr("id", "id AS at"), ["id"])
    assert keyed.samples["changed"][0].startswith("id=+20000-01-01") and "at is +20000-01-01" in str(keyed.samples)
    lost = compare(near_, far, ["id"])
    assert (lost.lost, lost.unexpected) == (1, 1) and "id=+20000-01-01" in str(lost.samples["unexpected"])


def test_columns_whose_names_are_those_of_verify(spark: SparkSession) -> None:
    ddl, changes = "row int, version int, `__op` string", Changes(("row",), ("version",))
    found = compared(spark, ddl, [(1, 1, "u"), (1, 2, "u")], [(1, 2, "d")], "row", changes)
    assert found.samples["changed"] == ["row=1 (expected 1, found 1): __op is d, and was to be u"]


def test_a_sum_is_near_by_the_sizes_of_what_was_added_and_one_that_is_no_finite_number_is_itself_alone(
    spark: SparkSession,
) -> None:
    nan = math.nan
    due = [(0, 1e-6, 1e6), (1, 1e-6, 1.0), (2, nan, nan), (3, math.inf, math.inf), (4, nan, nan)]
    expected = spark.createDataFrame(due, "id int, x double, __size_x double")
    actual = spark.createDataFrame([(0, 2e-6), (1, 2e-6), (2, 5.0), (3, 5.0), (4, nan)], "id int, x double")
    found = compare(expected, near(actual, expected, ["id"], ["x"]), ["id"])
    assert {text.partition(" ")[0] for text in found.samples["changed"]} == {"id=1", "id=2", "id=3"}

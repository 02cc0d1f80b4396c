"""Output modes on Spark Connect, where the query's plan is unknown: the rest of the checks runs on real plans, in
integration-tests/pipeline/test_aggregation.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from onefold.core import ConfigError
from onefold.sinks import HBaseSink, PostgresSink
from onefold.spark.output_modes import check_output_mode

TOTALS = cast(DataFrame, SimpleNamespace(columns=["minute", "account", "amount"]))


def table(*key: str, order: Any = "onefold_epoch") -> PostgresSink:
    return PostgresSink("postgresql://localhost/x", "totals", mode="upsert", key=key, order=order)


def test_an_order_begins_with_the_epoch_where_the_plan_is_unknown() -> None:
    check_output_mode("update", TOTALS, [table("minute", "account")])
    check_output_mode("update", TOTALS, [table("account", order=("onefold_epoch", "minute"))])
    check_output_mode("update", TOTALS, [HBaseSink("localhost:1", "t", row_key="minute, account", family="f")])
    for before in ("amount", "minute"):
        with pytest.raises(ConfigError, match=rf"has {before} in order=.*begin with .*\[update-by-values\]"):
            check_output_mode("update", TOTALS, [table("account", order=(before, "onefold_epoch"))])


def test_a_column_that_the_rows_lack_is_left_to_the_sink_which_names_those_that_there_are() -> None:
    check_output_mode("update", TOTALS, [table("account", order=("minut", "onefold_epoch"))])


def test_an_order_by_the_epoch_is_refused_in_append_mode_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"\[epoch-without-update\]"):
        check_output_mode("append", TOTALS, [table("account", order=("minute", "onefold_epoch"))])
    check_output_mode("append", TOTALS, [table("account", order="minute")])
    numbered = cast(DataFrame, SimpleNamespace(columns=[*TOTALS.columns, "onefold_epoch"]))
    check_output_mode("append", numbered, [table("account")])

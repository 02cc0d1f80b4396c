"""`onefold sinks`: sinks are added, removed and renamed while the pipeline stands, and each is exact afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.errors import raises
from harness.support import Rig
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.sinks import PostgresSink

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def defined(rig: Rig, *sinks: PostgresSink) -> str:
    settings = {"checkpoint": rig.checkpoint(), "directory": str(rig.directory), "patience_s": 10.0}
    return named(piped("test", source=rig.source(), sinks=sinks, **settings))


def change(rig: Rig, *sinks: PostgresSink, more: tuple[str, ...] = ()) -> Result:
    arguments = ["sinks", defined(rig, *sinks), "--apply", "--yes", *more]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def ids(rig: Rig, table: str) -> list[int]:
    return sorted(number for (number,) in rig.sql(f"SELECT id FROM {table}"))


def verified(rig: Rig, *sinks: PostgresSink) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["verify", defined(rig, *sinks), "--key", "id", "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_sink_that_is_added_begins_where_the_pipeline_stands_and_a_renamed_one_goes_on_with_its_rows(
    rig: Rig,
) -> None:
    first, second = rig.sink("staged"), rig.sink("two_phase", "others")
    rig.put(20)
    rig.run(rig.pipeline(first))
    with raises(ConfigError, "sink-added", "'test'"):
        rig.run(rig.pipeline(first, second))
    shown = CliRunner().invoke(app, ["sinks", defined(rig, first, second)], catch_exceptions=False).output
    assert "rows: goes on" in shown and "others: new, and begins after epoch 1" in shown and "--apply" in shown
    assert "changed, by epoch 2" in change(rig, first, second).output
    rig.put(20)
    rig.run(rig.pipeline(first, second))
    assert (ids(rig, "rows"), ids(rig, "others")) == (list(range(40)), list(range(20, 40)))
    found = verified(rig, first, second)
    assert found["exact"], found
    assert any("begins after epoch 2" in note for note in found["sinks"]["others"]["comparison"]["notes"])

    again = rig.sink("staged", name="orders")
    shown = change(rig, again, more=("--renamed", "orders=rows")).output
    assert "orders: goes on with the rows of rows" in shown and "others: removed" in shown
    rig.put(20)
    rig.run(rig.pipeline(again))
    assert (ids(rig, "rows"), ids(rig, "others")) == (list(range(60)), list(range(20, 40)))
    assert verified(rig, again)["exact"]


def test_a_batch_that_spark_has_not_committed_is_no_other_batch_after_a_change_of_sinks(rig: Rig) -> None:
    first, second = rig.sink("staged"), rig.sink("two_phase", "others")
    rig.put(20)
    rig.run(rig.pipeline(first))
    rig.forget_commit(0)
    assert change(rig, first, second).exit_code == 0
    outcomes = rig.run(rig.pipeline(first, second))
    assert [outcome.replayed for outcome in outcomes] == [True]
    assert ids(rig, "rows") == list(range(20))


def test_a_name_that_is_none_is_no_rename(rig: Rig) -> None:
    first = rig.sink("staged")
    rig.put(4)
    rig.run(rig.pipeline(first))
    for wrong in ("rows=other", "others=rows", "rows", "x=y"):
        with raises(ConfigError, "option-value"):
            change(rig, first, more=("--renamed", wrong))
    assert change(rig, first).output == "rows: goes on\n"

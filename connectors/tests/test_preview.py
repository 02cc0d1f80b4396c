"""`onefold preview`: the first records of real sources go through the flow, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import BadRecord, ConfigError
from onefold.flow import Flow, count, sum_
from onefold.operate.preview import Preview, preview
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import SqlSink
from onefold.sources import FileSource


class Folder:
    """A folder of orders, and pipelines from it into a SQLite database that must not come to be."""

    def __init__(self, root: Path) -> None:
        self.root, self.database = root, root / "shop.db"
        (root / "in").mkdir()

    def put(self, name: str, *lines: str) -> None:
        (self.root / "in" / name).write_text("".join(f"{line}\n" for line in lines))

    def source(self, on_error: str = "fail") -> FileSource:
        schema = "id long, account string, amount decimal(8,2)"
        return FileSource(str(self.root / "in"), format="json", schema=schema, settle_s=0.0, on_error=on_error)  # type: ignore[arg-type]

    def sink(self, table: str, **more: object) -> SqlSink:
        return SqlSink(f"sqlite:///{self.database}", table, **more)  # type: ignore[arg-type]

    def pipeline(self, flow: Flow, runtime: Engine | Spark | None = None) -> Pipeline:
        return Pipeline(flow, runtime=runtime or Engine(), directory=str(self.root))

    def shown(self, pipeline: Pipeline, *options: str) -> str:
        ran = CliRunner().invoke(app, ["preview", named(pipeline), *options], catch_exceptions=False)
        assert ran.exit_code == 0
        assert sorted(each.name for each in self.root.iterdir()) == ["in"]
        return ran.output


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def order(id: int, account: str = "a", amount: str = "1.50") -> str:
    return json.dumps({"id": id, "account": account, "amount": amount})


def totals(folder: Folder, on_error: str = "dead_letter") -> Flow:
    flow = Flow("shop")
    letters = folder.sink("dead") if on_error == "dead_letter" else None
    orders = flow.source(folder.source(on_error), uid="orders", dead_letters=letters)
    kept = orders.filter("amount > 0").key_by("account").aggregate(uid="totals", n=count(), amount=sum_("amount"))
    kept.sink(folder.sink("totals", mode="upsert", key="account", order="onefold_epoch"))
    orders.sink(folder.sink("newest", mode="upsert", key="account", order="id"))
    return flow


def counts(found: Preview) -> Sequence[tuple[str, int, int]]:
    return [(sink.name, sink.rows.num_rows, sink.merged) for sink in found.sinks]


def test_each_sink_shows_what_it_would_get_with_keys_that_collide_and_bad_records(folder: Folder) -> None:
    folder.put("1.json", order(1), order(2, "[b]"), "no JSON", order(3), order(4, amount="0"))
    text = folder.shown(folder.pipeline(totals(folder)))
    assert "orders: 5 records read" in text and "  bad: " in text
    assert "totals would get 2 rows\n" in text
    assert "newest would get 4 rows, 2 of which have the account of another one, and are merged with it" in text
    assert "dead would get 1 row\n" in text and "[b]" in text and "3.00" in text


def test_as_json_every_value_is_exact(folder: Folder) -> None:
    folder.put("1.json", order(2**53 + 1, "é\n[red]"), "no JSON")
    found = json.loads(folder.shown(folder.pipeline(totals(folder)), "--json"))
    assert found["read"] == {"orders": 2} and found["pipeline"] == "shop"
    assert found["sinks"]["newest"] == {
        "rows": [{"id": 2**53 + 1, "account": "é\n[red]", "amount": 1.5}],
        "key": ["account"],
        "merged": 0,
    }
    assert len(found["bad"]) == 1 and len(found["sinks"]["dead"]["rows"]) == 1


@pytest.mark.parametrize(("limit", "rows"), [(1, 1), (4, 4), (7, 6), (100, 9)])
def test_so_many_records_are_read_and_each_part_of_a_source_gives_some(folder: Folder, limit: int, rows: int) -> None:
    folder.put("1.json", *(order(id) for id in range(7)))
    folder.put("2.json", *(order(id) for id in range(7, 9)))
    flow = Flow("shop")
    flow.source(folder.source(), uid="orders").sink(folder.sink("rows"))
    found = preview(folder.pipeline(flow), limit)
    assert found.read == {"orders": rows} and counts(found) == [("rows", rows, 0)]
    assert not folder.database.exists()


def test_null_is_no_text_and_no_key_and_many_columns_are_below_each_other(folder: Folder) -> None:
    folder.put("1.json", '{"id": 1}', '{"id": 2}', '{"id": 3, "account": "NULL", "amount": "0.10"}')
    flow = Flow("shop")
    stream = flow.source(folder.source(), uid="orders")
    stream.sink(folder.sink("newest", mode="upsert", key="account", order="id"))
    wide = {f"c{number}": "account" for number in range(20)}
    stream.select("amount").sink(folder.sink("narrow"))
    stream.with_columns(**wide).sink(folder.sink("wide"))
    text = folder.shown(folder.pipeline(flow))
    assert "newest would get 3 rows\n" in text and "row 3\n  id: 3\n" in text and "  c19: NULL\n" in text
    found = json.loads(folder.shown(folder.pipeline(flow), "--json"), parse_float=str)
    assert [row["amount"] for row in found["sinks"]["narrow"]["rows"]] == [None, None, "0.10"]


def test_a_text_is_shown_as_it_is(folder: Folder) -> None:
    folder.put("1.json", order(1, "user:key:1"), order(2, "NULL"), order(3, "[red]\x1b[31m"), '{"id": 4}')
    flow = Flow("shop")
    flow.source(folder.source(), uid="orders").select("account").sink(folder.sink("rows"))
    lines = [line.strip() for line in folder.shown(folder.pipeline(flow)).splitlines()]
    assert lines[-4:] == ["user:key:1", '"NULL"', r"[red]\x1b[31m", "NULL"]


def test_what_functions_print_is_no_part_of_the_result(folder: Folder) -> None:
    def told(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        print("told", row["id"])
        yield {"id": row["id"]}

    folder.put("1.json", order(1))
    flow = Flow("shop")
    flow.source(folder.source(), uid="orders").flat_map(told, "id long").sink(folder.sink("ids"))
    ran = CliRunner().invoke(app, ["preview", named(folder.pipeline(flow)), "--json"], catch_exceptions=False)
    assert json.loads(ran.stdout)["sinks"]["ids"]["rows"] == [{"id": 1}]
    assert "told 1" in ran.stderr


def test_rows_that_are_wider_than_the_terminal_are_below_each_other(folder: Folder) -> None:
    folder.put("1.json", order(1, 59 * "a" + "z"))
    flow = Flow("shop")
    orders = flow.source(folder.source(), uid="orders")
    orders.select(**{f"c{number}": "account" for number in range(6)}).sink(folder.sink("narrow"))
    orders.select(**{f"c{number}": "account" for number in range(7)}).sink(folder.sink("wide"))
    text = folder.shown(folder.pipeline(flow))
    assert text.count("z") == 6 + 7 and "row 1\n  c0: a" in text and text.count("row 1\n") == 1


def test_a_flow_for_spark_is_previewed_where_the_engine_has_its_operators(folder: Folder) -> None:
    folder.put("1.json", order(1))
    found = preview(folder.pipeline(totals(folder), Spark()), 20)
    assert counts(found) == [("totals", 1, 0), ("newest", 1, 0), ("dead", 0, 0)]
    flow = Flow("shop")
    flow.source(folder.source(), uid="o").spark_sql("SELECT id FROM rows", schema="id long").sink(folder.sink("ids"))
    with raises(ConfigError, "only-on-spark"):
        preview(folder.pipeline(flow, Spark()), 20)


def test_a_record_that_would_end_the_pipeline_is_said(folder: Folder) -> None:
    folder.put("1.json", "no JSON")
    with raises(BadRecord, "record-unreadable"):
        preview(folder.pipeline(totals(folder, "fail")), 20)


def test_the_first_of_very_many_bad_records_are_shown(folder: Folder) -> None:
    folder.put("1.json", *1_001 * ["no JSON"])
    found = preview(folder.pipeline(totals(folder)), 5)
    assert found.read == {"orders": 5} and found.bad.num_rows == 5
    with raises(BadRecord, "too-many-bad-records"):
        preview(folder.pipeline(totals(folder)), 2_000)


def test_nothing_to_read_is_no_error(folder: Folder) -> None:
    pipeline = piped("p", source=folder.source(), sinks=[folder.sink("t")], directory=str(folder.root))
    assert "source: 0 records read\n\nt would get 0 rows\n" in folder.shown(pipeline)

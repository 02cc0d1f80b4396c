"""What a store remembers of a flow in Python, so that commands for a stopped pipeline need not import it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.engine.driver.flow_run import FlowRun
from onefold.flow import Flow
from onefold.pipeline import Pipeline, read
from onefold.pipeline.remembered import RememberedFlow, endpoints
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sources import FileSource, KafkaSource
from onefold.spark.flows.refusals import check_flow

FLOW = """
from onefold.flow import Flow, count
from onefold.sinks import SqlSink
from onefold.sources import FileSource

def flow(settings):
    totals = Flow("totals")
    rows = totals.source(FileSource(settings["folder"], format="csv", schema="account long, amount long"), uid="orders")
    rows.key_by("account").aggregate(uid="counts", orders=count()).sink(
        SqlSink(settings["url"], table="totals", mode="upsert", key="account", order="onefold_epoch")
    )
    return totals
"""


@pytest.fixture
def totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a pipeline that has run once, whose flow cannot be imported any more."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1,2\n1,3\n2,5\n")
    (tmp_path / "jobs.py").write_text(FLOW)
    monkeypatch.setenv("TOTALS_URL", f"sqlite:///{tmp_path}/target.db")
    file = tmp_path / "totals.toml"
    file.write_text(
        f'name = "totals"\nruntime = "engine"\nflow = "jobs.py:flow"\nstore = "${{TOTALS_URL}}"\n'
        f'[settings]\nfolder = "{tmp_path}/in"\nurl = "${{TOTALS_URL}}"\n'
    )
    _run_an_epoch(file)
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_installed_here\n")
    file.write_text(file.read_text().replace("jobs.py", "broken.py"))
    return file


def test_a_stopped_pipeline_is_read_without_its_flow(totals: Path, tmp_path: Path) -> None:
    pipeline = read(str(totals), is_stopped=True)
    assert isinstance(pipeline.flow, RememberedFlow)
    assert (pipeline.name, pipeline.keeps_state, len(pipeline.everyone)) == ("totals", True, 1)
    assert pipeline.everyone[0].given.url == f"sqlite:///{tmp_path}/target.db"  # type: ignore[attr-defined]
    assert [source.name for source in pipeline.flow.sources()] == ["in"]


def test_it_is_recovered_and_stands_where_it_did(totals: Path, tmp_path: Path) -> None:
    before = _generation(tmp_path)
    read(str(totals), is_stopped=True).recover()
    assert _generation(tmp_path) == before + 1
    totals.write_text(totals.read_text().replace("broken.py", "jobs.py"))  # whose state is still the flow's own
    (tmp_path / "in" / "b.csv").write_text("2,7\n")
    _run_an_epoch(totals)
    with sqlite3.connect(tmp_path / "target.db") as target:
        assert target.execute("SELECT account, orders FROM totals ORDER BY account").fetchall() == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["positions", "FILE"], "0 files"),
        (["txn", "list", "FILE"], "no open transactions"),
        (["recover", "FILE", "--yes"], "generation"),
        (["reset", "FILE", "--yes", "--rows"], "totals"),
    ],
)
def test_commands_for_a_stopped_pipeline_do_without_it(totals: Path, command: list[str], says: str) -> None:
    words = [str(totals) if word == "FILE" else word for word in command]
    answer = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (answer.exit_code, says in answer.output) == (0, True), answer.output


def test_with_other_sinks_those_are_remembered(totals: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["reset", str(totals), "--rows", "--yes"]).exit_code == 0
    stateless = FLOW.replace('key_by("account").aggregate(uid="counts", orders=count())', 'filter("amount > 0")')
    (tmp_path / "jobs.py").write_text(stateless.replace("onefold_epoch", "amount"))
    other = totals.with_name("other.py")
    other.write_text((tmp_path / "jobs.py").read_text().replace('mode="upsert"', 'name="others", mode="upsert"'))
    totals.write_text(totals.read_text().replace("broken.py", "jobs.py"))
    _run_an_epoch(totals)
    totals.write_text(totals.read_text().replace("jobs.py", "other.py"))
    assert _sinks(totals, "--apply", "--renamed", "others=totals").exit_code == 0
    other.unlink()
    pipeline = read(str(totals), is_stopped=True)
    assert [sink.name for sink in pipeline.everyone] == ["others"]
    pipeline.recover()


def test_sinks_beside_state_of_the_engine_are_shown_and_not_changed(totals: Path, tmp_path: Path) -> None:
    totals.write_text(totals.read_text().replace("broken.py", "jobs.py"))
    assert _sinks(totals).output == "totals: goes on\n"
    (tmp_path / "other.py").write_text(FLOW.replace('mode="upsert"', 'name="others", mode="upsert"'))
    before = _generation(tmp_path)
    totals.write_text(totals.read_text().replace("jobs.py", "other.py"))
    answer = _sinks(totals, "--apply", "--renamed", "others=totals")
    assert isinstance(answer.exception, ConfigError) and answer.exception.code == "sinks-beside-state"
    assert _generation(tmp_path) == before


def _sinks(file: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["sinks", str(file), *more, "--yes"])


def test_what_runs_a_pipeline_imports_its_flow(totals: Path) -> None:
    with raises(ConfigError, "reference-broken"):
        read(str(totals))


@pytest.mark.usefixtures("totals")
def test_the_store_has_no_secret_of_it(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "target.db") as store:
        (text,) = store.execute("SELECT value FROM onefold_pins WHERE name = 'endpoints'").fetchone()
    assert json.loads(text)["sinks"][0]["url"] == "${settings.url}"
    assert "target.db" not in text


def test_a_flow_is_imported_where_the_file_has_other_settings_now(totals: Path) -> None:
    totals.write_text(totals.read_text().replace('url = "${TOTALS_URL}"', ""))
    with raises(ConfigError, "reference-broken"):
        read(str(totals), is_stopped=True)


@pytest.mark.parametrize(
    ("has", "had"), [('"uid"', '"uids"'), ('"kind": "sql"', '"kind": "sequel"'), ("{", ""), ("[{", '["')]
)
def test_what_another_version_remembered_is_not_read(totals: Path, tmp_path: Path, has: str, had: str) -> None:
    with sqlite3.connect(tmp_path / "target.db") as store:
        store.execute("UPDATE onefold_pins SET value = replace(value, ?, ?) WHERE name = 'endpoints'", (has, had))
    with raises(ConfigError, "reference-broken"):
        read(str(totals), is_stopped=True)


def test_a_flow_that_was_never_started_is_imported(totals: Path, tmp_path: Path) -> None:
    (tmp_path / "target.db").unlink()
    with raises(ConfigError, "reference-broken"):
        read(str(totals), is_stopped=True)
    assert not (tmp_path / "target.db").exists()


SCHEMA = "id long, amount decimal(10,2)"
URL = "postgresql://shop:s3cret%2Fpass@host/shop"
BROKER = {"sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": "s3cret/pass"}
SETTINGS = {
    "settings.password": ("s3cret/pass", True),
    "settings.dsn": (URL, True),
    "settings.broker": (BROKER, True),
    "settings.kafka": ("one:9092", False),
    "settings.thrift": ("one:9090", False),
    "settings.mysql": ("mysql+pymysql://shop@host/shop", False),
    "settings.folder": ("/data/${passengers}", False),
    "settings.file": ("sqlite:////target.db", False),
}


def _flow(source: Any, *sinks: Any, letters: Any = None) -> Flow:
    flow = Flow("orders")
    rows = flow.source(source, uid="orders", dead_letters=letters)
    for sink in sinks:
        rows.sink(sink)
    return flow


KAFKA = KafkaSource("orders", schema=SCHEMA, format="json", bootstrap_servers="one:9092")


@pytest.mark.parametrize(
    "flow",
    [
        _flow(KAFKA, PostgresSink(URL, "orders", mode="upsert", key="id", order="amount")),
        _flow(
            KAFKA,
            PostgresSink(URL, "orders"),
            KafkaSink("copies", bootstrap_servers="one:9092", client_config=BROKER),
        ),
        _flow(KAFKA, HBaseSink(servers="one:9090", table="orders", row_key="id", family="f")),
        _flow(
            FileSource("/data/${passengers}", format="csv", schema=SCHEMA),
            SqlSink("mysql+pymysql://shop@host/shop", "orders"),
        ),
        _flow(
            KafkaSource("orders", schema=SCHEMA, format="json", bootstrap_servers="one:9092", on_error="dead_letter"),
            PostgresSink(URL, "orders"),
            letters=PostgresSink(URL, "letters"),
        ),
    ],
)
def test_what_a_flow_has_is_remembered_exactly_and_without_passwords(flow: Flow) -> None:
    text = endpoints(flow, SETTINGS)
    assert text is not None and "s3cret" not in text
    made = RememberedFlow("orders", text, SETTINGS)
    assert made.sources() == flow.sources()
    assert [sink.given for sink in made.sinks()] == [sink.given for sink in flow.sinks()]  # type: ignore[attr-defined]
    assert made.graph().letters() == flow.graph().letters()


@pytest.mark.parametrize(
    "sink",
    [
        PostgresSink("postgresql://shop:unknown@host/shop", "orders"),
        PostgresSink(URL + "?application_name=x", "orders"),
        PostgresSink("postgresql://s3cret%2Fpass@host/shop", "s3cret/pass"),
        KafkaSink("copies", bootstrap_servers="another:9092", client_config=BROKER),
        KafkaSink("copies", bootstrap_servers="one:9092", client_config={**BROKER, "linger.ms": "5"}),
        PostgresSink("postgresql://host/shop?password=s3cret", "orders"),
        PostgresSink("postgresql://host/shop?%70assword=s3cret", "orders"),
        PostgresSink("postgresql://s3cret%2Fpass:s3cret%2Fpass@host/shop", "orders"),
        KafkaSink("copies", bootstrap_servers="one:9092", client_config={"sasl.password": "unknown"}),
        KafkaSink("copies", bootstrap_servers="one:9092", client_config={"sasl.x": 'module password="unknown"'}),
        HBaseSink(servers="one:9090", table="orders", row_key="id", family="f", mode="rolling", merge=max),
    ],
)
def test_what_tables_cannot_say_or_may_not_is_not_remembered(sink: Any) -> None:
    assert endpoints(_flow(KAFKA, sink), SETTINGS) is None


def test_that_a_query_of_sparks_keeps_state_is_remembered() -> None:
    flow = Flow("orders")
    counted = flow.source(KAFKA, uid="orders").spark_sql(
        "SELECT id, count(*) AS n FROM source GROUP BY id", schema="id long, n long", output_mode="update"
    )
    counted.sink(SqlSink("sqlite:////target.db", "orders", mode="upsert", key="id", order="onefold_epoch"))
    text = endpoints(flow, SETTINGS)
    assert text is not None
    assert Pipeline(RememberedFlow("orders", text, SETTINGS)).keeps_state
    check_flow(RememberedFlow("orders", text, SETTINGS).graph())


def test_a_sink_of_somebody_elses_is_not_remembered() -> None:
    class Mine(SqlSink):
        pass

    assert endpoints(_flow(KAFKA, Mine("sqlite:////target.db", "orders")), SETTINGS) is None


def _run_an_epoch(file: Path) -> None:
    runs: list[FlowRun] = []
    read(str(file)).run_here(on_outcome=lambda _: runs[0].drain(), on_opened=runs.append)


def _generation(folder: Path) -> int:
    with sqlite3.connect(folder / "target.db") as store:
        (found,) = store.execute("SELECT generation FROM onefold_pipelines").fetchone()
    return int(found)


def test_a_pipeline_of_parts_needs_none_of_it(tmp_path: Path) -> None:
    assert _flow(KAFKA, PostgresSink(URL, "orders")).graph().endpoints is None
    assert isinstance(Pipeline(_flow(KAFKA, PostgresSink(URL, "orders")), directory=str(tmp_path)).flow, Flow)

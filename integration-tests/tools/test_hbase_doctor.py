"""`onefold doctor` of an HBase sink: what a real HBase shows of what the sink's guarantee rests on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from harness.definitions import named, piped
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.clients.hbase import HBaseTable, compact_protocol, table_admin
from onefold.clients.hbase.compact_protocol import thrift
from onefold.clients.hbase.pool import pool
from onefold.core.findings import Finding, Level
from onefold.operate.doctor import diagnose
from onefold.sinks import HBaseSink, PostgresSink
from onefold.sources import KafkaSource

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

MakeTable = Callable[..., HBaseTable]


def found(server: Any, table: str, mode: str = "row_key", **options: Any) -> list[Finding]:
    ledger = f"ledger_{uuid.uuid4().hex[:8]}"
    sink = HBaseSink(server.servers, table, row_key="id", family="f", mode=mode, ledger=ledger, **options)
    (one,) = diagnose("p", [sink], store="sqlite://").sinks
    return list(one.findings)


def said(findings: list[Finding], level: Level) -> str:
    return "\n".join(finding.says for finding in findings if finding.level is level)


def test_a_table_that_is_not_there_yet_is_fine_and_a_server_without_a_page_is_said_to_show_nothing(
    hbase_server: Any,
) -> None:
    findings = found(hbase_server, f"no_{uuid.uuid4().hex[:8]}")
    assert said(findings, Level.FINE).count("is made by the first start") == 2
    assert "shows no settings on port 9095" in said(findings, Level.CAUTION)
    assert not said(findings, Level.PROBLEM)


@pytest.mark.parametrize(
    ("mode", "options", "what"),
    [
        ("row_key", {}, "an epoch that stays open for longer is lost in part"),
        ("incremental", {"merge": "replace", "sequence": "n"}, "a message that is repeated later is applied again"),
    ],
)
def test_what_a_ttl_does_to_replays_is_said_for_each_mode(
    mode: str, options: dict[str, str], what: str, hbase_server: Any, hbase_table: MakeTable
) -> None:
    findings = found(hbase_server, hbase_table(ttl_s=3600).name, mode, **options)
    assert f"forgets cells after 3600 s (TTL): {what}" in said(findings, Level.CAUTION)
    assert "has what the sink needs" in said(findings, Level.FINE)


def test_a_table_that_cannot_be_written_for_good_is_a_problem(hbase_server: Any, hbase_table: MakeTable) -> None:
    settings, name = hbase_table().settings, f"t{uuid.uuid4().hex[:8]}"
    described = thrift.TTableDescriptor(
        thrift.TTableName(ns=b"default", qualifier=name.encode()),
        [thrift.TColumnFamilyDescriptor(name=b"other")],
        thrift.TDurability.ASYNC_WAL,
    )
    assert pool(settings).ask_once(
        "createTable", [compact_protocol.arguments("createTable", "binary", desc=described)]
    ) == [None]
    findings = found(hbase_server, name)
    assert "has no column family f: add it" in said(findings, Level.PROBLEM)
    assert "DURABILITY ASYNC_WAL" in said(findings, Level.PROBLEM)
    assert {broken for finding in findings for broken in finding.breaks} == {"no-loss"}
    table_admin.drop(settings, name)


@pytest.mark.usefixtures("spark")
def test_the_command_looks_at_an_hbase_sink_beside_a_postgres_sink(
    hbase_server: Any,
    hbase_table: MakeTable,
    kafka_server: Any,
    kafka_topic: Callable[..., str],
    postgres_url: str,
) -> None:
    table, ledger = hbase_table(ttl_s=3600).name, f"ledger_{uuid.uuid4().hex[:8]}"
    source = KafkaSource(
        kafka_topic(), bootstrap_servers=kafka_server.bootstrap_servers, format="json", schema="id long, n long"
    )

    def examined(family: str, *options: str) -> Result:
        hbase = HBaseSink(
            hbase_server.servers, table, row_key="id", family=family, mode="rolling", merge={"n": "sum"}, ledger=ledger
        )
        pipeline = piped("p", source=source, sinks=[PostgresSink(postgres_url, "t"), hbase])
        return CliRunner().invoke(app, ["doctor", named(pipeline), *options])

    answer = examined("f", "--json")
    assert answer.exit_code == 0, answer.output
    postgres, hbase = json.loads(answer.stdout)["sinks"]
    assert (postgres["kind"], hbase["name"], hbase["mode"], hbase["kind"]) == (
        "two-phase",
        table,
        "rolling",
        "write-through",
    )
    assert {hbase["invariants"][name] for name in ("no-loss", "no-duplicate", "chain")} == {"holds"}
    cautions = [finding["says"] for finding in hbase["findings"] if finding["level"] == "caution"]
    assert any("forgets cells after 3600 s (TTL)" in says for says in cautions)

    shown = examined("other")
    assert shown.exit_code == 1
    assert f"sink {table}: rolling, write-through" in shown.stdout and "has no column family other" in shown.stdout

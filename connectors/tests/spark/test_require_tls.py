"""`require_tls`: what a pipeline connects to, beyond this machine, is reached by TLS and verified."""

from __future__ import annotations

from typing import Any

import pytest
from harness.errors import raises

from onefold.core import ConfigError, Sink
from onefold.core.findings import Level
from onefold.flow import Flow
from onefold.operate.doctor.examination import exposed
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sources import KafkaSource
from onefold.spark import EpochWriter
from onefold.spark.flows.flow_writer import FlowWriter

RECORD = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
TLS = {"security.protocol": "SSL"}
SAFE = PostgresSink("postgresql://u@db/d?sslmode=verify-full", "t")
EXPOSED = PostgresSink("postgresql://u@db/d", "t")


def writer(
    *sinks: Sink,
    source: KafkaSource | None = None,
    store: str | None = None,
    dead_letters: Sink | None = None,
    require_tls: bool = True,
) -> FlowWriter:
    flow = Flow("p")
    on_error: Any = "fail" if dead_letters is None else "dead_letter"
    given = source or KafkaSource(
        "t", bootstrap_servers="b:1", format="json", schema="id long, k string", client_config=TLS, on_error=on_error
    )
    rows = flow.source(given, uid="in", dead_letters=dead_letters)
    for sink in sinks:
        rows.sink(sink)
    return FlowWriter(flow.graph(), store, require_tls=require_tls)


@pytest.mark.parametrize(
    ("sinks", "more", "code"),
    [
        ([EXPOSED], {}, "tls-required"),
        ([SqlSink("mariadb://u@db/d", "t")], {}, "tls-required"),
        ([KafkaSink("t", bootstrap_servers="b:1")], {"store": "sqlite:////srv/s.db"}, "tls-required"),
        ([HBaseSink("h:1", "t", row_key="k", family="f")], {}, "tls-required"),
        ([SAFE], {"store": "postgresql://u@db/d"}, "tls-required"),
        ([SAFE], {"dead_letters": KafkaSink("k", bootstrap_servers="b:1")}, "tls-required"),
    ],
)
def test_a_sink_or_a_store_that_is_reached_otherwise_is_refused(
    sinks: list[Sink], more: dict[str, Any], code: str
) -> None:
    writer(*sinks, require_tls=False, **more)
    with raises(ConfigError, code):
        writer(*sinks, **more)
    if "dead_letters" not in more:
        EpochWriter("p", sinks, **more)
        with raises(ConfigError, code):
            EpochWriter("p", sinks, require_tls=True, **more)


def test_a_source_that_is_reached_otherwise_is_refused() -> None:
    avro = {"format": "avro", "avro_schema": RECORD, "client_config": TLS}
    for source in (
        KafkaSource("t", bootstrap_servers="b:1", format="raw"),
        KafkaSource("t", bootstrap_servers="b:1", schema_registry="http://r", **avro),
    ):
        with raises(ConfigError, "tls-required"):
            writer(SAFE, source=source)
    writer(SAFE, source=KafkaSource("t", bootstrap_servers="b:1", schema_registry="https://r", **avro))


def test_what_is_named_as_the_way_out_is_taken() -> None:
    kafka = KafkaSink("k", bootstrap_servers="b:1", client_config=TLS)
    hbase = HBaseSink("127.0.0.1:1", "h", row_key="k", family="f")
    maria = SqlSink("mariadb://u@db/d?ssl_ca=/etc/ca.pem", "m")
    writer(SAFE, kafka, hbase)
    writer(maria)


def test_doctor_says_the_same_of_each_and_with_require_tls_it_is_a_problem() -> None:
    for part in (EXPOSED, KafkaSource("t", bootstrap_servers="b:1"), EXPOSED.exposure()):
        for level in (Level.CAUTION, Level.PROBLEM):
            (finding,) = exposed(part, level)
            assert finding.level is level and "somebody on the network can read and change" in finding.says
    assert exposed(SAFE, Level.CAUTION) == ()

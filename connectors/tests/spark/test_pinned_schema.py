"""The schema that a pipeline found once, of sources that leave it open. Asks no server."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from harness.errors import raises

from onefold.core import ConfigError
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource
from onefold.spark.flows.flow_writer import FlowWriter

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'


def test_what_was_found_of_one_format_is_not_anothers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "onefold.sources.kafka.source.find_schema", lambda source: AVRO if source.format == "avro" else "id bigint"
    )

    def found(source: KafkaSource) -> KafkaSource:
        flow = Flow("p")
        flow.source(source, uid="in").sink(SqlSink(f"sqlite:///{tmp_path}/out.db", "t"))
        with closing(FlowWriter(flow.graph(), f"sqlite:///{tmp_path}/s.db")) as writer:
            (one,) = writer.sources().values()
        assert isinstance(one, KafkaSource)
        return one

    json = KafkaSource("o", bootstrap_servers="localhost:9092", format="json", schema="infer")
    avro = KafkaSource("o", bootstrap_servers="localhost:9092", format="avro", schema_registry="http://localhost:1")
    assert found(json).schema == "id bigint"
    assert found(avro).avro_schema == AVRO
    monkeypatch.setattr("onefold.sources.kafka.source.find_schema", lambda _: "id string")
    with raises(ConfigError, "source-schema-changed", "'o'"):
        found(json)
    assert found(replace(json, schema="id bigint")).schema == "id bigint"

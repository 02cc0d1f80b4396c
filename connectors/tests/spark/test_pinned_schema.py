"""The schema that a pipeline found once, of sources that leave it open. Asks no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.sinks import SqlSink
from onefold.sources import KafkaSource
from onefold.spark import Pipeline

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'


def test_what_was_found_of_one_format_is_not_anothers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "onefold.sources.kafka.source.find_schema", lambda source: AVRO if source.format == "avro" else "id bigint"
    )
    pipeline = Pipeline("p", sinks=[SqlSink(f"sqlite:///{tmp_path}/out.db", "t")], store=f"sqlite:///{tmp_path}/s.db")
    json = KafkaSource("o", bootstrap_servers="localhost:9092", format="json", schema="infer")
    avro = KafkaSource("o", bootstrap_servers="localhost:9092", format="avro", schema_registry="http://localhost:1")
    assert pipeline.pinned(json).schema == "id bigint"
    assert pipeline.pinned(avro).avro_schema == AVRO
    monkeypatch.setattr("onefold.sources.kafka.source.find_schema", lambda _: "id string")
    assert pipeline.pinned(json).schema == "id bigint"
    pipeline.close()

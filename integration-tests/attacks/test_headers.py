"""What a record's headers can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from onefold.core.errors import BadRecord
from onefold.sources import KafkaSource
from onefold.sources.kafka import OffsetRange, close_consumers, read_parts
from onefold.sources.kafka.formats.columns import added_columns


class Name(str):
    """A header's name of whatever bytes."""

    def encode(self, *_: str) -> bytes:
        return b"a\xff"


@pytest.fixture
def read(
    kafka_server: Any, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[list[Any], list[Any]]]]:
    """Five records, of which 1 and 3 have such a header, and 2 and 3 such a value."""
    topic = kafka_topic(partitions=1)
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap_servers)
    for number, value in enumerate([b'{"id":0}', b'{"id":1}', b"2", b"3", b'{"id":4}']):
        producer.send(topic, value, partition=0, headers=[(Name("a?"), b"2")] if number in (1, 3) else [("b", b"1")])
    producer.close()
    monkeypatch.setenv("ONEFOLD_COMPILED_FETCH", "off")

    def read(**more: Any) -> tuple[list[Any], list[Any]]:
        servers = kafka_server.bootstrap_servers
        source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema="id long", **more)
        schema = pa.schema([pa.field("id", pa.int64()), *added_columns(source.columns)])
        parts = list(read_parts(source, schema, OffsetRange(topic, 0, 0, 5)))
        return [row for part in parts for row in part.rows.to_pylist()], [b for p in parts for b in p.bad.to_pylist()]

    yield read
    close_consumers()


@pytest.mark.attack(
    who="a producer",
    does="gives records headers whose names are not UTF-8, where the compiled helper is not there",
    gets="dead letters where headers are asked for, and rows where they are not",
)
def test_a_headers_name_stops_no_reader(read: Callable[..., tuple[list[Any], list[Any]]]) -> None:
    rows, bad = read(on_error="dead_letter")
    assert [row["id"] for row in rows] == [0, 1, 4]
    assert [(b["source_offset"], b["value"], b["headers"] is None) for b in bad] == [(2, b"2", False), (3, b"3", True)]
    rows, bad = read(on_error="dead_letter", columns=["headers"])
    assert [(row["id"], row["kafka_headers"]) for row in rows] == [(n, [{"key": "b", "value": b"1"}]) for n in (0, 4)]
    assert [(b["source_offset"], "not UTF-8" in b["reason"]) for b in bad] == [(1, True), (2, False), (3, True)]
    with pytest.raises(BadRecord, match="offset 1: the name of a header is not UTF-8"):
        read(columns=["headers"])
    for allowed, beyond in ((0, 1), (1, 2), (2, 3)):
        with pytest.raises(BadRecord, match=f"more than bad_records_max={allowed} .* offset {beyond}:"):
            read(on_error="skip", columns=["headers"], bad_records_max=allowed)

"""KafkaSink(mode="keyed") on a real broker, without Spark: what is in the topic after whatever was cut off where."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from kafka_reading import Reader

from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.core.testing import check_sink
from onefold.local import KafkaServer
from onefold.sinks.kafka import KafkaSink

pytestmark = pytest.mark.servers

Topic = Callable[..., str]
PARTITIONS = 4
CALLS = {"write", "prepare", "writer's abort", "announce", "verify", "commit", "record", "open", "recover"}


class Readers:
    """All records of a topic, by id; what was written repeatedly must be the same each time."""

    def __init__(self, servers: str, topic: str) -> None:
        self.reader = Reader(servers, topic, PARTITIONS, "read_uncommitted")

    def values(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for message in self.reader.read():
            key, value = message.key(), message.value()
            assert found.setdefault(key, value) == value, f"{key!r} was written as {found[key]!r} and as {value!r}"
        return found

    def ids(self) -> list[int]:
        return [int(key) for key in self.values()]


def test_the_keyed_sink_keeps_its_promises(kafka_server: KafkaServer, kafka_topic: Topic) -> None:
    topic, servers = kafka_topic(PARTITIONS), kafka_server.bootstrap_servers
    readers = Readers(servers, topic)
    sink = partial(KafkaSink, topic, bootstrap_servers=servers, mode="keyed", id="id")
    report = check_sink(sink, readers.ids, make_sibling=partial(sink, name="sibling"), steps_max=2, moments=1)
    print(f"\n{report}")
    assert report.strikes.keys() == CALLS
    assert len(readers.reader.messages) > len(readers.values())

"""`flink_sum.py SERVERS TOPIC ROWS MODE JAVA_HOME JAR`: a sum by key with PyFlink; JAR is Flink's Kafka connector.
Into nothing, without checkpoints. MODE is where Python runs: `thread`, in the JVM, or `process`, beside it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pyflink.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway

RECORD = Types.TUPLE([Types.LONG(), Types.LONG()])


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, _ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        account, amount = value
        total = (self.total.value() or 0) + amount
        self.total.update(total)
        yield account, total


def parsed(value: str) -> tuple[int, int]:
    record = orjson.loads(value)
    return record["account"], record["amount"]


servers, topic, _rows, mode, os.environ["JAVA_HOME"], jar = sys.argv[1:]
settings = Configuration()
settings.set_string("pipeline.jars", Path(jar).as_uri())
settings.set_string("python.executable", sys.executable)  # else its workers are the system's
settings.set_string("python.pythonpath", sysconfig.get_path("purelib"))  # nor would its threads find this environment
settings.set_string("python.execution-mode", mode)
environment = StreamExecutionEnvironment.get_execution_environment(settings)
environment.set_parallelism(2)
source = (
    KafkaSource.builder()
    .set_bootstrap_servers(servers)
    .set_topics(topic)
    .set_starting_offsets(KafkaOffsetsInitializer.earliest())
    .set_bounded(KafkaOffsetsInitializer.latest())
    .set_value_only_deserializer(SimpleStringSchema())
    .build()
)
values = environment.from_source(source, WatermarkStrategy.no_watermarks(), "in")
records = values.map(parsed, RECORD).key_by(lambda record: record[0], Types.LONG())
totals = records.process(Sum(), RECORD)
totals.sink_to(Sink(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
environment.execute()

"""`flink_windows.py SERVERS TOPIC ROWS KIND TOLD JAVA_HOME JAR`: windows by key with PyFlink, whose Python runs in the
JVM's threads; JAR is Flink's Kafka connector. Into nothing, without checkpoints.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import orjson
from pyflink.common import Configuration, Duration, SimpleStringSchema, Time, Types, WatermarkStrategy
from pyflink.datastream import MapFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from pyflink.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway

RECORD = Types.TUPLE([Types.LONG(), Types.LONG()])
WINDOWS = {
    "tumbling": lambda: TumblingEventTimeWindows.of(Time.seconds(60)),
    "sliding": lambda: SlidingEventTimeWindows.of(Time.seconds(60), Time.seconds(1)),
    "session": lambda: EventTimeSessionWindows.with_gap(Time.seconds(10)),
}


class Counting(MapFunction):
    """Counts in each of its tasks, which write a line at their end."""

    def __init__(self, told: str) -> None:
        self.told, self.windows, self.total = told, 0, 0

    def map(self, value: Any) -> Any:
        self.windows, self.total = self.windows + (value[1] > 0), self.total + value[1]
        return value

    def close(self) -> None:
        with Path(self.told).open("a") as file:
            file.write(f"{self.windows} {self.total}\n")


def parsed(value: str) -> tuple[int, int]:
    record = orjson.loads(value)
    return record["account"], record["amount"]


servers, topic, _rows, kind, told, os.environ["JAVA_HOME"], jar = sys.argv[1:]
settings = Configuration()
settings.set_string("pipeline.jars", Path(jar).as_uri())
settings.set_string("python.executable", sys.executable)  # else its workers are the system's
settings.set_string("python.pythonpath", sysconfig.get_path("purelib"))  # nor would its threads find this environment
settings.set_string("python.execution-mode", "thread")
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
# of the messages' times, so that each partition has its watermark: behind Python, only a task has one
watermarks = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
records = environment.from_source(source, watermarks, "in").map(parsed, RECORD)
windows = records.key_by(lambda record: record[0], Types.LONG()).window(WINDOWS[kind]())
totals = windows.reduce(lambda one, other: (one[0], one[1] + other[1]), output_type=RECORD)
counted = totals.map(Counting(told), RECORD)
counted.sink_to(Sink(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
environment.execute()

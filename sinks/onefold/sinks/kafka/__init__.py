"""Kafka topics as an exactly-once destination. `KafkaSink` is what a user names."""

from onefold.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]

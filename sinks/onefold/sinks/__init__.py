"""Where a pipeline's rows go. Each sink says in `guarantee()` what it promises, and under which conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.sinks.hbase import HBaseSink
    from onefold.sinks.kafka import KafkaSink
    from onefold.sinks.postgres import PostgresSink
    from onefold.sinks.sql import SqlSink

__all__ = ["HBaseSink", "KafkaSink", "PostgresSink", "SqlSink"]


def __getattr__(name: str) -> object:
    # A sink's driver is imported when the sink is asked for: nobody needs psycopg to write to Kafka.
    if name == "HBaseSink":
        from onefold.sinks.hbase import HBaseSink

        return HBaseSink
    if name == "KafkaSink":
        from onefold.sinks.kafka import KafkaSink

        return KafkaSink
    if name == "PostgresSink":
        from onefold.sinks.postgres import PostgresSink

        return PostgresSink
    if name == "SqlSink":
        from onefold.sinks.sql import SqlSink

        return SqlSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

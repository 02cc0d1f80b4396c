"""Where a pipeline's rows go. Each sink says in `guarantee()` what it promises, and under which conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold.core.extras import on_demand

if TYPE_CHECKING:
    from onefold.sinks.hbase import HBaseSink
    from onefold.sinks.kafka import KafkaSink
    from onefold.sinks.postgres import PostgresSink
    from onefold.sinks.sql import SqlSink

__all__ = ["HBaseSink", "KafkaSink", "PostgresSink", "SqlSink"]

# A sink's driver is imported when the sink is asked for: nobody needs psycopg to write to Kafka.
__getattr__, __dir__ = on_demand(
    __name__,
    {
        "onefold.sinks.hbase": ("HBaseSink",),
        "onefold.sinks.kafka": ("KafkaSink",),
        "onefold.sinks.postgres": ("PostgresSink",),
        "onefold.sinks.sql": ("SqlSink",),
    },
)

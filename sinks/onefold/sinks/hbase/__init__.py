"""Rows into HBase tables, through Thrift: written through, and the same however often an epoch is written again."""

from onefold.sinks.hbase.sink import HBaseSink

__all__ = ["HBaseSink"]

"""An HBase table as a bounded source: it scans regions through Thrift into Arrow. It does not need Spark."""

from onefold.sources.hbase.source import HBaseSource

__all__ = ["HBaseSource"]

"""An HBase table as a bounded source: it scans regions through Thrift into Arrow. It does not need Spark.

`HBaseSource` has the options; `plan` divides the table into parts that pickle; `read` turns a `Part` into Arrow.
"""

from onefold.sources.hbase.reading import Part, plan, read
from onefold.sources.hbase.source import HBaseSource

__all__ = ["HBaseSource", "Part", "plan", "read"]

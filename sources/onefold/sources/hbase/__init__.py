"""An HBase table as a bounded source: scans through Thrift to Arrow, a part for each region. Knows nothing of Spark.

`HBaseSource` is what a user names; `plan` divides it into parts that pickle; `read` turns a `Part` into Arrow.
"""

from onefold.sources.hbase.reading import Part, plan, read
from onefold.sources.hbase.source import HBaseSource

__all__ = ["HBaseSource", "Part", "plan", "read"]

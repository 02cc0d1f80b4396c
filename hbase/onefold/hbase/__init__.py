"""An HBase table through Thrift, as its source and its sinks share it."""

from onefold.hbase.cells import Cells
from onefold.hbase.rows import Rows
from onefold.hbase.settings import HBaseSettings
from onefold.hbase.table import HBaseTable
from onefold.hbase.tables import Family, TableShape

__all__ = ["Cells", "Family", "HBaseSettings", "HBaseTable", "Rows", "TableShape"]

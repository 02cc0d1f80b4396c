"""An HBase table through Thrift, as its source and its sinks share it."""

from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.rows import Rows
from onefold.clients.hbase.settings import HBaseSettings
from onefold.clients.hbase.table import HBaseTable
from onefold.clients.hbase.tables import Family, TableShape

__all__ = ["Cells", "Family", "HBaseSettings", "HBaseTable", "Rows", "TableShape"]

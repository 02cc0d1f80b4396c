"""An HBase table through Thrift, as its source and its sinks share it."""

from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.rows import Rows
from onefold.clients.hbase.settings import HBaseSettings
from onefold.clients.hbase.table import HBaseTable
from onefold.clients.hbase.tables import ColumnFamily, TableShape

__all__ = ["Cells", "ColumnFamily", "HBaseSettings", "HBaseTable", "Rows", "TableShape"]

"""An HBase table through Thrift, as its source and its sinks share it."""

from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.rows.cells import Cells, Rows
from onefold.clients.hbase.table import HBaseTable
from onefold.clients.hbase.table_admin import ColumnFamily, TableShape

__all__ = ["Cells", "ColumnFamily", "HBaseSettings", "HBaseTable", "Rows", "TableShape"]

"""Thrift2's structs, as thriftpy2 makes them of hbase.thrift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import thriftpy2

__all__ = ["SERVICE", "thrift"]

thrift: Any = thriftpy2.load(str(Path(__file__).with_name("hbase.thrift")), module_name="onefold_hbase_thrift")
SERVICE: Any = thrift.THBaseService

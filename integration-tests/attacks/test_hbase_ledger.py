"""Another tenant's cells in the table where HBase sinks keep their ledgers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises
from harness.tables.hbase_rows import Line, rows

from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.cells import Cells
from onefold.core import CheckpointMismatch
from onefold.sinks.hbase.epoch_log import LEDGER_FAMILY

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]


@pytest.mark.attack(
    who="who may write to the ledger table",
    does="writes what is no ledger into a pipeline's row",
    gets="a stop with the row, and the way out: what it said before",
)
@pytest.mark.parametrize("cell", [b"state", b"sink"])
@pytest.mark.parametrize("junk", [b"not json", b"[1]", b'{"entry": 1}'])
def test_junk_in_a_ledger_row_is_named_and_with_what_it_said_before_the_pipeline_goes_on(
    hbase_server: Any, tmp_path: Path, cell: bytes, junk: bytes
) -> None:
    line = Line(hbase_server.servers, tmp_path)
    with line.life() as life:
        life.run(rows(("a", 1, 1, False)))
    ledger = HBaseTable(HBaseSettings(line.servers), line.sink.settings.ledger)
    key = pa.array([f"{line.table}/{line.table}".encode()], pa.binary())
    (before,) = ledger.get(key, [(LEDGER_FAMILY, cell)])
    ledger.put(key, [Cells(LEDGER_FAMILY, cell, pa.array([junk], pa.binary()))], int(time.time() * 1000))
    with raises(CheckpointMismatch, "ledger-unreadable", f"{line.table}"):
        line.life()
    ledger.put(key, [Cells(LEDGER_FAMILY, cell, before)], int(time.time() * 1000))
    with line.life() as life:
        life.run(rows(("b", 1, 2, False)))
    assert line.shown() == {"a": (1, 1), "b": (1, 2)}

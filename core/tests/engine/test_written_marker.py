"""The note that a flow has written, in its folder of the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onefold.core.contract import LedgerEntry
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.driver.resume_point import WrittenMarker
from onefold.engine.state import STATE

EMPTY = StoreFacts("store", 1, None, None, (), None)
LEDGER = LedgerEntry(1, 1, 1, Positions(), "before")


def test_a_flow_that_has_written_is_refused_where_nothing_knows_of_it_and_another_is_not(tmp_path: Path) -> None:
    written = WrittenMarker(str(tmp_path), "f")
    written.check(EMPTY, dict)
    written.keep("store")
    for ledgers in ({}, {"t": None}, {"t": replace(LEDGER, epoch=0)}, {STATE: LEDGER}):
        with pytest.raises(CheckpointMismatch) as refused:
            WrittenMarker(str(tmp_path), "f").check(EMPTY, lambda of=ledgers: of)
        assert refused.value.code == "bookkeeping-gone"
    WrittenMarker(str(tmp_path), "f").check(EMPTY, lambda: {"t": LEDGER})  # the protocol says what to do
    WrittenMarker(str(tmp_path), "other").check(EMPTY, dict)


def test_a_checkpoint_that_may_not_be_looked_into_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        WrittenMarker(str(tmp_path / ("x" * 300)), "f").check(EMPTY, dict)
    assert refused.value.code == "state-storage-refused"

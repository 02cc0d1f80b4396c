"""The participant `state`: it keeps a sink's promises, and never removes a file that a decided snapshot names."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
from snapshot_sink import SnapshotSink, prepared, rows

from onefold.core.testing import check_sink


@pytest.mark.proof
def test_it_keeps_every_promise_of_a_two_phase_sink() -> None:
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        report = check_sink(
            partial(SnapshotSink, folder, 10**9),
            partial(rows, folder),
            prepared=partial(prepared, folder),
            modules=["onefold.engine.state", "snapshot_sink"],
            steps_max=10,
            moments=1,
        )
    assert {"prepare", "abort", "commit", "bind", "write_ledger"} <= report.strikes.keys()
    assert all(report.promises.values())

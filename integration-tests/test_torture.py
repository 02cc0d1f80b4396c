"""A short torture of each delivery: real faults, and an audit that is exact. `make torture` is the long one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from onefold.connectors.torture import TortureSettings, run_torture

pytestmark = pytest.mark.servers

INVARIANTS = {"no-loss", "no-duplicate", "chain", "resolve-once", "fenced-never-decides", "nothing-in-doubt"}


@pytest.mark.parametrize(("delivery", "master", "faults"), [("two_phase", "local", 4), ("staged", "cluster", 4)])
def test_after_a_few_faults_every_invariant_holds(tmp_path: Path, delivery: str, master: str, faults: int) -> None:
    console = Console(record=True, width=200)
    settings = TortureSettings(faults=faults, seed=7, delivery=delivery, master=master, directory=tmp_path / "torture")
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["rows"] > 0
    assert audit["verdicts"].keys() == INVARIANTS | ({"atomic-epoch"} if delivery == "staged" else set())
    assert [line["number"] for line in lines if line["event"] == "fault"] == list(range(1, faults + 1))
    assert {line["state"] for line in lines if line["event"] == "epoch"} >= {"complete"}
    assert lines[-1] == {**lines[-1], "event": "end", "rounds": 1, "exact": True}

"""A short torture of each delivery: real faults, and an audit that is exact. `make torture` is the long one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from onefold.connectors.torture import TortureSettings, run_torture

pytestmark = pytest.mark.servers

INVARIANTS = {"no-loss", "no-duplicate", "chain", "resolve-once", "fenced-never-decides", "nothing-in-doubt"}


# Seeds whose first faults are quick ones: a kill of the driver, of Postgres and of backends, lost shuffle files; and on
# the cluster a kill of the driver and of Postgres, a worker that is paused, and one that outlives its executor.
@pytest.mark.parametrize(("delivery", "master", "seed"), [("two_phase", "local", 229), ("staged", "cluster", 163)])
def test_after_a_few_faults_every_invariant_holds(tmp_path: Path, delivery: str, master: str, seed: int) -> None:
    console, faults = Console(record=True, width=200), 4
    settings = TortureSettings(
        faults=faults, seed=seed, delivery=delivery, master=master, directory=tmp_path / "torture"
    )
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["rows"] > 0
    assert audit["verdicts"].keys() == INVARIANTS | ({"atomic-epoch"} if delivery == "staged" else set())
    assert [line["number"] for line in lines if line["event"] == "fault"] == list(range(1, faults + 1))
    assert {line["state"] for line in lines if line["event"] == "epoch"} >= {"complete"}
    assert lines[-1] == {**lines[-1], "event": "end", "rounds": 1, "exact": True}

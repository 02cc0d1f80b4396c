"""What demo and torture say in their reports; and what is not known is said."""

from __future__ import annotations

import json
from pathlib import Path

from harness.definitions import piped
from harness.reports import BEGIN_S, an_epoch

from onefold.core import Positions
from onefold.core.invariants import Comparison
from onefold.operate.lags import lag_after
from onefold.report.page import page
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource
from onefold.spark.verify.verification import Verification
from onefold.store.history import epochs_on_record
from onefold.trials.demo import DemoSettings
from onefold.trials.demo import summary_table as demo
from onefold.trials.demo.summary_table import DemoTally, StrikeReport
from onefold.trials.torture import TortureSettings
from onefold.trials.torture import verdict_table as torture
from onefold.trials.torture.audit import Audit
from onefold.trials.torture.verdict_table import TortureTally
from onefold.trials.workload.run_setup import WorkloadFailed
from onefold.trials.workload.workload_settings import Job

SAME = Comparison(100, 100, 0, 0, 0, 0)


def test_the_demos_report_has_its_strikes_its_figures_and_why_it_failed(tmp_path: Path) -> None:
    job = Job(
        "127.0.0.1:1",
        "postgresql://h/d",
        "c",
        str(tmp_path),
        ("two_phase",),
        10,
        True,
        store=f"sqlite:///{tmp_path}/s.db",
    )
    outcome = {"at": BEGIN_S + 9, "rows": 0, "seconds": 1.0, "warm": True, "replayed": True}
    tally = DemoTally(strikes=[StrikeReport("pipeline", "kill -9", "half committed", BEGIN_S)], outcomes=[outcome])
    found = Verification(SAME, Positions(), 3, {"chain": ()})
    told = demo.report(DemoSettings(), tally, found, job, None)
    assert told.is_exact
    assert told.notes == ["exactly once"]
    assert {incident.kind: incident.at_s for incident in told.incidents} == {
        "strikes": BEGIN_S,
        "replays skipped": BEGIN_S + 9,
    }
    strike = {"what": "pipeline", "how": "kill -9", "where": "half committed", "a batch complete again after": "9.0 s"}
    assert told.tables["Strikes"] == [strike]
    assert {"figure": "replays skipped", "is": "1"} in told.tables["Figures"]
    assert "half committed" in page(told)

    failed = demo.report(
        DemoSettings(exactly_once=False), tally, found, job, WorkloadFailed("workload-failed", "too few")
    )
    assert not failed.is_exact
    assert failed.notes[0] == "at least once (protection off)" and "too few" in failed.notes[1]


def test_the_tortures_report_has_its_faults_and_also_the_epochs_that_the_store_has_pruned(tmp_path: Path) -> None:
    tally = TortureTally(TortureSettings(faults=2))
    tally.faults.update(["kill driver", "kill driver", "kill Kafka"])
    tally.missed.update(["zombie driver"])
    tally.audits = [
        Audit(1, 100, {"orders": SAME}, 0, 0, 0, 0, {"chain": ()}),
        Audit(2, 200, {"orders": SAME}, 0, 0, 0, 0, {"chain": ("epoch 7 begins elsewhere",)}),
    ]
    history = tmp_path / "history.jsonl"
    at = {"time": "2026-11-23T18:00:05.500+00:00", "seconds": 5.5}
    fault = {"event": "fault", "kind": "kill driver", "target": "process 2", **at}
    end = {"event": "exit", "process": 2, "pid": 1, "status": -9, "role": "current", **at}
    history.write_text("".join(json.dumps(event) + "\n" for event in ({"event": "run", **at}, fault, end)))
    seen = [an_epoch(number).record for number in (2, 1)]
    told = torture.report(tally, False, ["process 3 ended with status 1"], seen, f"sqlite:///{tmp_path}/s.db", history)
    assert [(incident.kind, incident.at_s - BEGIN_S) for incident in told.incidents] == [
        ("faults", 5.5),
        ("ends of processes", 5.5),
    ]
    assert [epoch.record.epoch for epoch in told.epochs] == [1, 2]
    assert told.invariants == {"chain": ["round 2: epoch 7 begins elsewhere"]}
    assert told.tables["Faults"] == [
        {"fault": "kill Kafka", "struck": "1", "missed": "0"},
        {"fault": "kill driver", "struck": "2", "missed": "0"},
        {"fault": "zombie driver", "struck": "0", "missed": "1"},
    ]
    assert [row["records"] for row in told.tables["Rounds"]] == ["100", "200"]
    assert "unexpected: process 3 ended with status 1" in told.notes
    assert "process 2 ended with status -9" in page(told)


def test_a_torture_that_came_to_no_audit_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").touch()
    tally = TortureTally(TortureSettings())
    told = torture.report(tally, False, [], [], f"sqlite:///{tmp_path}/s.db", tmp_path / "history.jsonl")
    assert "NOT exact" in page(told)


def test_epochs_and_a_lag_that_nobody_knows_are_said_to_be_unknown(tmp_path: Path) -> None:
    assert epochs_on_record(f"sqlite:///{tmp_path}/none.db", "orders") == ([], [])
    (tmp_path / "s.db").write_text("no database" * 100)
    found, (note,) = epochs_on_record(f"sqlite:///{tmp_path}/s.db", "orders")
    assert found == [] and note.startswith("the epochs are not known: ")
    source = KafkaSource("t", bootstrap_servers="127.0.0.1:1", format="json", schema="id long", timeout_s=1)
    sink = SqlSink(f"sqlite:///{tmp_path}/rows.db", table="rows")
    pipeline = piped("orders", source=source, sinks=[sink], directory=str(tmp_path))
    assert lag_after(pipeline, Positions.of({"t/0": 1}), within_s=1).startswith("not known: ")

"""A short torture: real faults, and an audit that is exact. `make torture` is the long one."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from rich.console import Console

from onefold.connectors.torture import TortureSettings, run_torture
from onefold.connectors.torture.audit import Auditor
from onefold.connectors.torture.history import History
from onefold.connectors.torture.settings import PIPELINE
from onefold.connectors.torture.watcher import Watcher
from onefold.connectors.workload.settings import Job
from onefold.core import SinkKind

pytestmark = pytest.mark.servers

INVARIANTS = {"no-loss", "no-duplicate", "chain", "resolve-once", "fenced-never-decides", "nothing-in-doubt"}


# A seed whose first faults are quick ones: a kill of the driver and of Postgres, a worker that is paused, and one that
# outlives its executor. The other mode and delivery, and `local[*]`, are left to `make torture`.
def test_after_a_few_faults_every_invariant_holds(tmp_path: Path) -> None:
    console, faults = Console(record=True, width=200), 4
    settings = TortureSettings(
        faults=faults,
        seed=27444,
        delivery="two_phase",
        master="cluster",
        directory=tmp_path / "torture",
        mode="upsert",
    )
    assert run_torture(settings, console), console.export_text()
    lines = [json.loads(line) for line in (tmp_path / "torture" / "history.jsonl").read_text().splitlines()]
    (audit,) = [line for line in lines if line["event"] == "audit"]
    assert audit["records"] > audit["rows"] > 0, "there are several versions of an order"
    assert audit["dead"] > 0
    assert audit["verdicts"].keys() == INVARIANTS
    assert [line["number"] for line in lines if line["event"] == "fault"] == list(range(1, faults + 1))
    assert {line["state"] for line in lines if line["event"] == "epoch"} >= {"complete"}
    assert lines[-1] == {**lines[-1], "event": "end", "rounds": 1, "exact": True}


def test_the_audit_sees_prepared_and_open_transactions_and_rows_in_a_stage(postgres_url: str, tmp_path: Path) -> None:
    job = Job("nowhere:1", postgres_url, "checkpoint", str(tmp_path), "staged", 10, exactly_once=True)
    history = History(tmp_path / "history.jsonl")
    auditor = Auditor(job, Watcher(job, history))
    job.sink().open(PIPELINE, pa.schema([("id", pa.int64())])).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert auditor.leftovers() == ()
        connection.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'anything'")
        stage = connection.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'onefold\\_stage\\_%' AND relkind = 'r'"
        ).fetchone()
        assert stage is not None
        insert = f'INSERT INTO onefold_sinks."{stage[0]}" (id, onefold_attempt) VALUES (1, 5), (2, 5)'
        connection.execute(insert.encode())
        found = auditor.leftovers()
        assert [(c.kind, c.handle, c.rows) for c in found] == [
            (SinkKind.TWO_PHASE, "anything", 0),
            (SinkKind.LAST_RESOURCE, f"{stage[0]}/5", 2),
        ]
        connection.execute("ROLLBACK PREPARED 'anything'")
    auditor.watcher.close()
    auditor.close()
    history.close()

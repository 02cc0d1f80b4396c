"""`onefold verify` of a pipeline that runs, under load: exact each time, and what was planted is found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon, Start, daemons, producing, write
from harness.support import Rig, fresh
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.usefixtures("few_tasks")]

ENGINE = 'runtime = "engine"'
VERIFIER = """
import sys, time
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.holding import held
with held(CheckpointStore(sys.argv[1]), "orders"):
    print("held", flush=True)
    time.sleep(600)
"""
KAFKA = """
[[sinks]]
kind = "kafka"
name = "copies"
topic = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
key = ["id"]
"""
SQLITE = """
[[sinks]]
kind = "sql"
name = "copies"
url = "sqlite:///{folder}/copies.db"
table = "copies"
"""
HBASE = """
[[sinks]]
kind = "hbase"
name = "copies"
servers = "{hbase}"
table = "{table}"
row_key = "id"
family = "f"
salt = 4
"""


@pytest.fixture
def start() -> Iterator[Start]:
    with daemons() as start:
        yield start


def verified(file: Path, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    answer = CliRunner().invoke(app, ["verify", str(file), "--json", *more], catch_exceptions=False)
    return answer.exit_code, json.loads(answer.stdout)["sinks"]


def completed(rig: Rig) -> int:
    # Of a pipeline with a sink that commits with its ledger, in that one's database.
    resource = rig.directory / "copies.db"
    store = CheckpointStore(
        f"sqlite:///{resource}" if resource.exists() else PostgresSink(rig.url, "rows").store_url() or ""
    )
    try:
        last = store.facts("orders").complete
        return 0 if last is None else last.epoch
    finally:
        store.close()


def runs(rig: Rig, daemon: Daemon) -> None:
    """Until it has completed further epochs."""
    before = completed(rig)
    daemon.until(lambda: completed(rig) > before + 2, "further epochs")


def held_s(found: dict[str, Any]) -> float:
    (said,) = (note for note in found["comparison"]["notes"] if "was held between two epochs for" in note)
    return float(said.rpartition("for ")[2].removesuffix(" s"))


@pytest.mark.parametrize("top", [ENGINE, ""], ids=["engine", "spark"])
def test_a_table_five_times_in_a_row_and_a_row_that_is_deleted_meanwhile(rig: Rig, start: Start, top: str) -> None:
    rig.put(200)
    file = write(rig, top=top)
    with producing(rig):
        daemon = start(file)
        expected = []
        for _ in range(5):
            runs(rig, daemon)
            code, found = verified(file, "--key=id")
            assert code == 0, found
            expected.append(found["rows"]["comparison"]["expected"])
            assert held_s(found["rows"]) < 60
        assert sorted({*expected}) == expected, "each time there is more"
        rig.sql("DELETE FROM rows WHERE id = 17")
        code, found = verified(file, "--key=id")
        counts = {kind: found["rows"]["comparison"][kind] for kind in ("lost", "duplicated", "changed", "unexpected")}
        assert (code, counts) == (1, {"lost": 1, "duplicated": 0, "changed": 0, "unexpected": 0})
        assert found["rows"]["comparison"]["samples"]["lost"][0].startswith("id=17 (expected 1, found 0): from ")
        runs(rig, daemon)
    daemon.stop()


@pytest.mark.parametrize("kind", ["kafka", "sql", "hbase"])
def test_other_sinks_beside_it(
    rig: Rig, start: Start, kafka_topic: Callable[..., str], kind: str, request: pytest.FixtureRequest
) -> None:
    given: dict[str, Any] = {"servers": rig.servers, "folder": rig.directory}
    if kind == "kafka":
        given["topic"] = kafka_topic(partitions=3)
    if kind == "hbase":
        given |= {"hbase": request.getfixturevalue("hbase_server").servers, "table": fresh("copies")}
    text = {"kafka": KAFKA, "sql": SQLITE, "hbase": HBASE}[kind].format(**given)
    rig.put(200)
    file = write(rig, top=ENGINE, tables=text)
    with producing(rig):
        daemon = start(file)
        runs(rig, daemon)
        code, found = verified(file, "--key=id")
        assert code == 0, found
        assert {*found} == {"copies", "rows"}
        assert all(held_s(each) < 60 for each in found.values())
        runs(rig, daemon)
    daemon.stop()


def test_a_verifier_that_is_killed_and_a_stop_while_it_is_held(rig: Rig, start: Start) -> None:
    rig.put(200)
    file = write(rig, top=ENGINE)
    url = PostgresSink(rig.url, "rows").store_url() or ""
    with producing(rig):
        daemon = start(file)
        runs(rig, daemon)
        for by in (signal.SIGKILL, signal.SIGTERM):
            verifier = subprocess.Popen([sys.executable, "-c", VERIFIER, url], stdout=subprocess.PIPE)
            assert verifier.stdout is not None
            with verifier.stdout:
                assert verifier.stdout.readline() == b"held\n"
            at = completed(rig)
            with pytest.raises(AssertionError):
                daemon.until(lambda at=at: completed(rig) > at, "an epoch while it is held", within_s=2)
            if by == signal.SIGKILL:
                verifier.kill()
                runs(rig, daemon)
            else:
                daemon.stop()
                verifier.kill()
            verifier.wait(10)
    assert verified(file, "--key=id")[0] == 0

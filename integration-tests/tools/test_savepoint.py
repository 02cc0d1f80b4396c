"""`onefold savepoint`: a real aggregation, saved, and restored in its own place, in another number of parts, and as
another pipeline; and what a death in the middle leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.ending import run_until
from harness.errors import raises
from harness.support import Rig, wait_until
from psycopg.errors import UndefinedTable
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.clients import files
from onefold.core import CheckpointMismatch, ConfigError, Retriable, Sink
from onefold.operate.verify import verify
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import PostgresSink

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ONEFOLD = Path(sys.executable).with_name("onefold")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SQL = "SELECT id % 7 AS account, count(*) AS orders, sum(n) AS total FROM source GROUP BY 1"
TOTALS = "account long, orders long, total long"
FILE = """\
name = "{name}"
[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
{steps}
[[sinks]]
kind = "postgres"
url = "{url}"
table = "{name}"
{sink}
[spark]
master = "local[2]"
available_now = true
"""


@pytest.fixture
def rocksdb(rig: Rig) -> Iterator[None]:
    rig.spark.conf.set(PROVIDER, ROCKSDB)
    yield
    rig.spark.conf.unset(PROVIDER)


def savepoint(*arguments: str) -> str:
    """What the command says. Raises what it raises."""
    result = CliRunner().invoke(app, ["savepoint", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def totals(rig: Rig, name: str = "totals", table: str = "totals") -> Pipeline:
    return piped(
        name,
        source=rig.source(at_most=40),
        sinks=[PostgresSink(rig.url, table, mode="upsert", key="account", order="onefold_epoch")],
        change=lambda rows: rows.spark_sql(SQL, schema=TOTALS, output_mode="update"),
        runtime=Spark(session=rig.spark, available_now=True),
        directory=str(rig.directory),
    )


def rows(rig: Rig, name: str = "rows", sink: Sink | None = None) -> Pipeline:
    return piped(
        name,
        source=rig.source(at_most=40),
        sinks=[sink or rig.sink(table=name)],
        runtime=Spark(session=rig.spark, available_now=True),
        directory=str(rig.directory),
    )


def assert_exact(rig: Rig, pipeline: Pipeline, table: str = "totals") -> None:
    wanted: dict[int, tuple[int, int]] = {}
    for number, value in rig.sent:
        orders, total = wanted.get(number % 7, (0, 0))
        wanted[number % 7] = (orders + 1, total + value)
    found = rig.sql(f"SELECT account, orders, total FROM {table} ORDER BY 1")
    assert found == [(account, *wanted[account]) for account in sorted(wanted)]
    results = verify(pipeline)
    assert all(result.is_exact for result in results.values()), results


def made(rig: Rig, pipeline: Pipeline, name: str = "s") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (rig.directory / f".onefold/savepoints/{pipeline.name}/{name}/savepoint.json").read_text()
    )
    return found


def partitions(pipeline: Pipeline) -> str:
    """As the last batch of the checkpoint has it."""
    offsets = Path(pipeline.checkpoint) / "offsets"
    last = max((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    return str(json.loads(last.read_text().splitlines()[1])["conf"]["spark.sql.shuffle.partitions"])


@pytest.mark.usefixtures("rocksdb")
def test_a_savepoint_that_is_restored_in_more_and_in_fewer_parts_goes_on_exactly(rig: Rig) -> None:
    pipeline = totals(rig)
    here = named(pipeline)
    rig.put(100)
    pipeline.run()
    said = savepoint("create", here, "--name", "s")
    assert said.startswith("savepoint s of pipeline totals: epoch 3, ")
    of = made(rig, pipeline)
    assert (of["epoch"], of["query"]["partitions"], of["query"]["provider"]) == (3, 4, ROCKSDB)
    rig.put(60)
    for number in ("7", "2"):
        savepoint("restore", here, "s", "--shuffle-partitions", number, "--yes")
        assert partitions(pipeline) == number
    pipeline.run()
    assert partitions(pipeline) == "2"
    assert_exact(rig, pipeline)
    savepoint("create", here, "--name", "later")
    rig.put(30)
    pipeline.run()
    said = savepoint("restore", here, "later", "--shuffle-partitions", "5", "--yes")
    assert "goes back from epoch 6; records that come again: 30" in said
    rig.put(10)
    pipeline.run()
    assert partitions(pipeline) == "5"
    assert_exact(rig, pipeline)


@pytest.mark.usefixtures("rocksdb")
def test_another_pipeline_begins_with_the_savepoint_and_a_copy_of_the_table_and_both_go_on_exactly(rig: Rig) -> None:
    blue, green = totals(rig), totals(rig, "green", "green")
    rig.put(100)
    blue.run()
    savepoint("create", named(blue), "--name", "s")
    rig.sql("CREATE TABLE green AS TABLE totals")
    rig.sql("ALTER TABLE green ADD PRIMARY KEY (account)")
    rig.put(60)
    blue.run()
    savepoint("restore", named(blue), "s", "--as", named(green), "--shuffle-partitions", "3", "--yes")
    with raises(ConfigError, "checkpoint-exists"):
        savepoint("restore", named(blue), "s", "--as", named(green), "--yes")
    rig.put(60)
    green.run()
    assert partitions(green) == "3"
    assert_exact(rig, green, "green")
    blue.run()
    assert_exact(rig, blue)
    ids = {(Path(each.checkpoint) / "metadata").read_text() for each in (blue, green)}
    assert len(ids) == 2, "Spark would stop one query where the other starts"


def test_a_pipeline_of_rows_goes_on_under_another_name_exactly(rig: Rig) -> None:
    """Its table, too, goes on: the first name never runs again."""
    old, new = rows(rig), rows(rig, "new", rig.sink(table="rows"))
    rig.put(100)
    old.run()
    savepoint("create", named(old), "--name", "s")
    savepoint("restore", named(old), "s", "--as", named(new), "--yes")
    rig.put(50)
    new.run()
    rig.assert_exact()


@pytest.mark.parametrize("runtime", ["engine", "spark"])
def test_a_pipeline_that_begins_into_an_empty_table_is_exact_from_the_savepoint_on_and_verify_says_so(
    rig: Rig, runtime: str
) -> None:
    old, new = rows(rig), rows(rig, "new", PostgresSink(rig.url, "fresh"))
    if runtime == "engine":
        old, new = (replace(each, runtime=Engine()) for each in (old, new))

    def run(pipeline: Pipeline, table: str, number: int) -> None:
        def has_come() -> bool:
            with suppress(UndefinedTable):
                return rig.sql(f"SELECT count(*) FROM {table}") == [(number,)]
            return False

        run_until(pipeline, has_come if runtime == "engine" else lambda: False)  # on Spark it ends by itself

    rig.put(100)
    run(old, "rows", 100)
    savepoint("create", named(old), "--name", "s")
    savepoint("restore", named(old), "s", "--as", named(new), "--yes")
    rig.put(50)
    run(new, "fresh", 50)
    assert rig.sql("SELECT count(*) FROM fresh") == [(50,)]
    (result,) = verify(new, (), ("id", "n")).values()
    assert result.is_exact and result.comparison.expected == 50, result
    (note,) = result.comparison.notes
    epoch = made(rig, old)["epoch"]
    assert note.startswith(f"the sink begins after epoch {epoch}, of the savepoint that the pipeline began with")
    rig.sql("DELETE FROM fresh WHERE ctid = (SELECT min(ctid) FROM fresh)")
    (result,) = verify(new, (), ("id", "n")).values()
    assert not result.is_exact and result.comparison.lost == 1, result


def test_a_checkpoint_elsewhere_is_copied_and_restored_through_spark(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's own files of this machine stand for those of another."""
    pipeline = replace(rows(rig), checkpoint=f"file:{rig.directory}/elsewhere/rows")
    monkeypatch.setattr(files, "is_local", lambda _: False)
    monkeypatch.setattr(files, "_arrow_files", lambda _: None)
    rig.put(100)
    pipeline.run()
    savepoint("create", named(pipeline), "--name", "s")
    assert "whole" in savepoint("list", named(pipeline))
    shutil.rmtree(rig.directory / "elsewhere/rows")
    savepoint("restore", named(pipeline), "s", "--yes")
    copied = rig.directory / "elsewhere/savepoints/rows/s/checkpoint/metadata"
    copied.write_text(copied.read_text() + " ")
    with pytest.raises((ConfigError, Retriable), match=r"\[savepoint-(damaged|unreadable)\]"):
        savepoint("restore", named(pipeline), "s", "--yes")
    rig.put(50)
    pipeline.run()
    rig.assert_exact()
    assert sorted(path.name for path in (rig.directory / "elsewhere").iterdir()) == ["rows", "savepoints"]


def test_a_batch_that_is_planned_and_not_done_is_left_out(rig: Rig) -> None:
    """As a pipeline leaves it that is stopped while records come in."""
    pipeline = totals(rig)
    rig.put(100)
    pipeline.run()
    root = Path(pipeline.checkpoint)
    (root / "offsets/3").write_text((root / "offsets/2").read_text().replace('"0":', '"0":9'))
    (root / "state/0/0/4.snapshot").write_text("what a task of that batch has left")
    savepoint("create", named(pipeline), "--name", "s")
    assert not {"offsets/3", "state/0/0/4.snapshot"} & {file["path"] for file in made(rig, pipeline)["files"]}
    savepoint("restore", named(pipeline), "s", "--yes")
    rig.put(30)
    pipeline.run()
    assert_exact(rig, pipeline)


def written(rig: Rig, name: str, *, has_state: bool) -> Path:
    """The pipeline of that name as a file; its table has the same name."""
    path = rig.directory / f"{name}.toml"
    parts = {
        "steps": f'[[steps]]\nsql = "{SQL}"\nschema = "{TOTALS}"\noutput_mode = "update"' if has_state else "",
        "sink": 'mode = "upsert"\nkey = "account"\norder = "onefold_epoch"' if has_state else 'delivery = "two_phase"',
    }
    path.write_text(FILE.format(name=name, topic=rig.topic, servers=rig.servers, url=rig.url, **parts))
    return path


def killed_at(rig: Rig, place: str, *arguments: str | Path) -> None:
    """Run the command, and kill -9 it when it comes there."""
    held = rig.directory / "held"
    held.mkdir(exist_ok=True)
    environment = os.environ | {"ONEFOLD_FAILPOINT": place, "ONEFOLD_FAILPOINT_DIR": str(held)}
    command = [ONEFOLD, "savepoint", *arguments]
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: any(held.iterdir()) or process.poll() is not None, f"coming to {place}")
            assert process.poll() is None, f"it has ended without coming to {place}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    for marker in held.iterdir():
        marker.unlink()


def test_a_pipeline_that_has_ended_is_saved_and_restored_by_commands_alone(rig: Rig) -> None:
    file = written(rig, "rows", has_state=False)

    def onefold(*arguments: str | Path) -> str:
        done = subprocess.run([ONEFOLD, *arguments], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rig.put(100)
    onefold("run", file)
    assert "savepoint s of pipeline rows: epoch" in onefold("savepoint", "create", file, "--name", "s")
    assert "whole" in onefold("savepoint", "list", file)
    assert "restored: start pipeline rows" in onefold("savepoint", "restore", file, "s", "--yes")
    rig.put(50)
    onefold("run", file)
    rig.assert_exact()


def test_a_restore_that_is_killed_is_finished_by_the_next_one_and_no_start_goes_on_before(rig: Rig) -> None:
    pipeline = totals(rig)
    rig.put(60)
    pipeline.run()
    here, file = named(pipeline), written(rig, "totals", has_state=True)
    savepoint("create", here, "--name", "s")
    with raises(ConfigError, "state-not-repartitioned"):
        savepoint("restore", here, "s", "--shuffle-partitions", "7", "--yes")
    rig.put(60)
    killed_at(rig, "restore:removed", "restore", file, "s", "--yes", "--take-over")
    with raises(CheckpointMismatch, "restore-unfinished"):
        pipeline.run()
    savepoint("restore", here, "s", "--yes")
    pipeline.run()
    assert_exact(rig, pipeline)
    left = sorted(path.name for path in (rig.directory / ".onefold").iterdir())
    assert left == ["savepoints", "totals.checkpoint"]


@pytest.mark.parametrize("place", ["before:Bind", "after:WriteLedger", "after:Adopt"])
def test_a_restore_as_another_pipeline_that_is_killed_is_finished_by_the_next_one(rig: Rig, place: str) -> None:
    old, new = rows(rig), rows(rig, "new")
    rig.put(100)
    old.run()
    savepoint("create", named(old), "--name", "s")
    rig.sql("CREATE TABLE new AS TABLE rows")
    first, second = written(rig, "rows", has_state=False), written(rig, "new", has_state=False)
    killed_at(rig, place, "restore", first, "s", "--as", second, "--yes")
    rig.put(50)
    with raises(CheckpointMismatch, "restore-unfinished"):
        new.run()
    savepoint("restore", named(old), "s", "--as", named(new), "--yes")
    new.run()
    rig.assert_exact("new")

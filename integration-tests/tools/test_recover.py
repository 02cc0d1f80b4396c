"""`onefold recover` with the command that an error names, on either runtime: each way out leads on, exactly."""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import Result
from harness.ending import run_until
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError, Damaged, DataLoss, OnefoldError, Terminal
from onefold.pipeline import read
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import DriverNote

FLOW = """\
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import FileSource

flow = Flow("lines")
source = FileSource("{root}/in", format="json", schema="id long", settle_s=0.0)
flow.source(source, uid="in").sink(SqlSink("sqlite:///{root}/table.db", "t"))
"""
STORE = ("onefold_store", "onefold_pipelines", "onefold_epochs", "onefold_runs", "onefold_pins")


class Lines:
    """A pipeline's file, whose flow goes from files into a SQLite table, where its bookkeeping is, too."""

    def __init__(self, root: Path, runtime: str) -> None:
        self.root, self.runtime, self.put = root, runtime, 0
        (root / "in").mkdir()
        (root / "lines.py").write_text(FLOW.format(root=root))
        self.file = root / "the lines.toml"  # a shell takes it in quotes
        self.file.write_text(
            f'flow = "lines.py:flow"\nruntime = "{runtime}"\n[spark]\nmaster = "local[1]"\navailable_now = true\n'
        )

    def run(self) -> None:
        """With three more lines."""
        ids = range(self.put, self.put + 3)
        (self.root / f"in/{self.put}.json").write_text("".join(f'{{"id":{n}}}\n' for n in ids))
        self.put += 3
        self.run_again()

    def run_again(self) -> None:
        """Until there are more lines; on Spark it ends with what there is."""
        before = self.ids()
        run_until(read(str(self.file)), lambda: self.runtime == "engine" and self.ids() != before)

    def drop(self, *names: str) -> None:
        with closing(sqlite3.connect(self.root / "table.db")) as rows, rows:
            for name in names:
                rows.execute(f'DROP TABLE "{name}"')

    def ids(self) -> list[int]:
        with closing(sqlite3.connect(self.root / "table.db")) as rows, suppress(sqlite3.OperationalError):
            return [id for (id,) in rows.execute("SELECT id FROM t ORDER BY id")]
        return []

    def follow(self, error: OnefoldError, *more: str, input: str = "") -> Result:
        """What the error says to run."""
        found = re.search(r"run `onefold (recover [^`]*)`", error.message)
        assert found is not None, error.message
        return CliRunner().invoke(app, [*shlex.split(found[1]), *more], input=input)


@pytest.fixture(params=["engine", pytest.param("spark", marks=pytest.mark.slow)])
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> Lines:
    lines = Lines(tmp_path, request.param)
    lines.run()
    return lines


def test_a_pipeline_whose_store_is_lost_adopts_its_ledgers_by_the_command_that_the_error_names(lines: Lines) -> None:
    lines.drop(*STORE)
    with pytest.raises(Terminal) as refused:
        lines.run()
    assert refused.value.code == "another-store"
    declined = lines.follow(refused.value, input="n\n")
    assert declined.exit_code == 1 and "the destinations are believed" in declined.output
    with pytest.raises(Terminal):
        read(str(lines.file)).run()
    taken = lines.follow(refused.value, "--yes")
    assert (taken.exit_code, taken.exception) == (0, None), taken.output
    assert "Nothing was left to finish" in taken.output
    lines.run()
    assert lines.ids() == [*range(lines.put)]


def test_a_pipeline_whose_table_was_dropped_goes_on_by_the_command_that_the_error_names(lines: Lines) -> None:
    lines.drop("t")
    with pytest.raises(DataLoss) as refused:
        lines.run()
    assert refused.value.code == "target-missing"
    assert "run `onefold reset " in refused.value.message
    assert lines.follow(refused.value, "--yes").exit_code == 0
    lines.run_again()
    assert lines.ids() == [3, 4, 5]


@pytest.mark.parametrize("lines", ["engine"], indirect=True)
def test_it_is_refused_of_a_pipeline_that_was_never_started_and_for_an_epoch_that_is_not_damaged(lines: Lines) -> None:
    with raises(ConfigError, "epoch-not-damaged"):
        CliRunner().invoke(app, ["recover", str(lines.file), "--accept-damage", "1", "--yes"], catch_exceptions=False)
    lines.drop(*STORE)
    with raises(ConfigError, "pipeline-unknown"):
        CliRunner().invoke(app, ["recover", str(lines.file)], catch_exceptions=False)


@pytest.mark.parametrize("lines", ["engine"], indirect=True)
def test_a_damaged_epoch_is_accepted_by_the_command_that_the_error_names_and_no_other(lines: Lines) -> None:
    with closing(sqlite3.connect(lines.root / "table.db")) as rows, rows:
        rows.execute("UPDATE onefold_epochs SET state = 'damaged', error = 'says the test'")
    with pytest.raises(Damaged) as refused:
        lines.run()
    assert refused.value.code == "epoch-damaged"
    for epoch in ("0", "-1"):
        wrong = CliRunner().invoke(app, ["recover", str(lines.file), "--accept-damage", epoch, "--yes"])
        assert wrong.exit_code == 2, wrong.output
    with raises(ConfigError, "epoch-not-damaged"):
        CliRunner().invoke(app, ["recover", str(lines.file), "--accept-damage", "2", "--yes"], catch_exceptions=False)
    taken = lines.follow(refused.value, "--yes")
    assert (taken.exit_code, taken.exception) == (0, None), taken.output
    assert "Epoch 1 is complete" in taken.output
    lines.run_again()
    assert lines.ids() == [*range(lines.put)]


@pytest.mark.parametrize("lines", ["engine"], indirect=True)
def test_it_is_refused_beside_a_driver_that_lives_and_for_two_ways_at_once(lines: Lines) -> None:
    pipeline = read(str(lines.file))
    with closing(CheckpointStore(pipeline.store_url)) as store:
        DriverNote(store).began(store.acquire(pipeline.name, 0))
        generation = store.facts(pipeline.name).generation
        with raises(ConfigError, "pipeline-may-run"):
            CliRunner().invoke(app, ["recover", str(lines.file)], catch_exceptions=False)
        assert store.facts(pipeline.name).generation == generation
        both = ["recover", str(lines.file), "--adopt-ledger", "--accept-targets", "--take-over", "--yes"]
        with raises(ConfigError, "options-conflict"):
            CliRunner().invoke(app, both, catch_exceptions=False)
        taken = CliRunner().invoke(app, ["recover", str(lines.file), "--take-over"])
        assert (taken.exit_code, taken.exception) == (0, None), taken.output
        assert store.facts(pipeline.name).generation == generation + 1

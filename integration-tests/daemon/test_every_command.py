"""docs/commands-and-runtimes.md: every command, typed for a pipeline of each runtime, also while its Kafka is away."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.daemon_stubs import Asking
from harness.daemons import ORDERS_FILE, TOTALS_FILE, TOTALS_FLOW, Daemon, Start
from harness.every_command import OFFLINE, RUN, RUNNING, RUNTIMES, STOPPED, WORKS, Typed, page
from harness.renewing import assert_renewed
from harness.support import Rig
from harness.typed_commands import TypedCommands
from typer.core import TyperGroup
from typer.main import get_command

from onefold.cli.main import app
from onefold.core import Positions, Retriable
from onefold.sources.kafka.planning.group_positions import GroupPositions

PAGE = Path(__file__).parents[2] / "docs" / "commands-and-runtimes.md"
TEST = "integration-tests/daemon/test_every_command.py"
OF_NO_PIPELINE = {"demo", "torture", "prove", "local"}
CODE = re.compile(r"\[([a-z-]+)\]$", re.MULTILINE)
NOT_YET = "pipeline-not-there-yet"
SOON = '[restart]\nstrategy = "fixed_delay"\ndelay_s = 0.5\n'
MORE = '[[sinks]]\nkind = "postgres"\nurl = "{url}"\ntable = "more"\ndelivery = "two_phase"\n'


class Walk(TypedCommands):
    """Types commands, and holds what comes of each against what is said of it."""

    def __init__(self, rig: Rig, runtime: str, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        super().__init__(rig.directory, patch, captured)
        self.rig, self.runtime = rig, runtime
        self.unlike: list[str] = []
        patch.setenv("DATABASE", rig.url)
        told = {"runtime": runtime, "topic": rig.topic, "servers": rig.servers, "url": rig.url}
        for name, tables in (("orders", SOON), ("more", MORE.format(**told))):
            text = ORDERS_FILE.format(**told, source="timeout_s = 3", tables=tables)
            (self.folder / f"{name}.toml").write_text(text)
        (self.folder / "jobs").mkdir()
        (self.folder / "jobs" / "totals.py").write_text(
            TOTALS_FLOW.replace("max_offsets", "on_error='skip', timeout_s=3, max_offsets")
        )
        (self.folder / "totals.toml").write_text(TOTALS_FILE.format(**told) + SOON)
        self._write_query()
        self._commit()

    def _commit(self) -> None:
        """A consumer group's positions, which has read one record."""
        group = GroupPositions(self.rig.source(commit_to_group="old"))
        group.show(Positions.of({f"{self.rig.topic}/0": 1}))
        group.close()

    def _write_query(self) -> None:
        """The checkpoint of a query of Spark's own, which has read two records."""
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "200"}}
        read = {self.rig.topic: {"0": 2, "1": 0, "2": 0, "3": 0}}
        for log, text in {
            "offsets": f"v1\n{json.dumps(metadata)}\n{json.dumps(read)}",
            "commits": 'v1\n{"nextBatchWatermarkMs":0}',
        }.items():
            (self.folder / "query" / log).mkdir(parents=True)
            (self.folder / "query" / log / "0").write_text(text)

    def type(self, commands: Sequence[Typed], state: str) -> None:
        for command in commands:
            wanted = command.wanted(self.runtime, state)
            if wanted is None:
                continue
            code, out, err = self.run(*shlex.split(command.arguments))
            found = _outcome(code, out, err)
            if found != wanted and (found, wanted) != (WORKS, NOT_YET):  # it may be there in time after all
                self.unlike.append(f"{command.arguments} ({state}): {found or 'works'}, not {wanted or 'works'}\n{err}")

    def wait_for_rows(self, daemon: Daemon) -> None:
        def are_there() -> bool:
            tables = self.rig.sql("SELECT to_regclass('rows') IS NOT NULL AND to_regclass('totals') IS NOT NULL")
            if not tables[0][0]:
                return False
            (counts,) = self.rig.sql(
                "SELECT (SELECT count(*) FROM rows), (SELECT coalesce(sum(orders), 0) FROM totals)"
            )
            return min(counts) >= len(self.rig.sent) - 2

        daemon.until(are_there, "rows and totals")


def _outcome(code: int, out: str, err: str) -> str:
    """The code of the error, or "says" those of the findings; nothing where it works."""
    if code == 0:
        return ""
    if said := CODE.findall(err):
        return str(said[-1])
    return f"says {', '.join(dict.fromkeys(CODE.findall(out)))}"


def _end(daemon: Daemon) -> None:
    """By SIGTERM, while its pipelines wait for Kafka."""
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() in (0, Retriable.exit_code)


def _error(pipeline: dict[str, Any]) -> tuple[str, str | None]:
    return pipeline["name"], None if pipeline["error"] is None else str(pipeline["error"]["code"])


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_command_does_what_the_page_says(
    rig: Rig,
    start: Start,
    runtime: str,
    kafka_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    walk = Walk(rig, runtime, monkeypatch, capfd)
    rig.put(40)
    rig.put_values([b"no JSON"])
    files = [walk.folder / name for name in shlex.split(RUN.arguments)[1:]]
    walk.type((*OFFLINE, *STOPPED), "unstarted")

    daemon = start(*files)
    monkeypatch.setenv("ONEFOLD_URL", daemon.url)
    walk.wait_for_rows(daemon)
    walk.type(RUNNING, "started")
    rig.put(4)  # which the positions are moved over
    walk.type(STOPPED, "started")
    assert walk.run("restart", "orders", "totals", "--within", "240")[0] == 0
    walk.wait_for_rows(daemon)

    kafka_server.kill()
    try:
        (walk.folder / "another.toml").unlink()
        shutil.rmtree(walk.folder / ".onefold/savepoints", ignore_errors=True)  # of the same name
        walk.type((*OFFLINE, *RUNNING, *STOPPED), "away")
        _end(daemon)
        daemon = start(*files)
        ask = Asking(daemon.url)
        wanted = {(name, "kafka-unreachable") for name in ("orders", "totals")}
        said: set[tuple[str, str | None]] = set()

        def both_say_so() -> bool:
            said.update(map(_error, ask.get("/pipelines")))  # one that is started again says nothing for a moment
            return wanted <= said

        daemon.until(both_say_so, "both say so")
        _end(daemon)
    finally:
        kafka_server.start()
    assert not walk.unlike, "\n".join(walk.unlike)


@pytest.mark.docs
def test_the_page_has_every_command() -> None:
    every = (*OFFLINE, RUN, *RUNNING, *STOPPED)
    typed = {" ".join(_names(get_command(app), each.arguments.split())) for each in every}
    assert typed == {*_commands(get_command(app))} - OF_NO_PIPELINE
    assert_renewed(PAGE, TEST, page(every))


def _commands(group: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup) and name not in OF_NO_PIPELINE:
            yield from (f"{name} {each}" for each in command.commands)
        else:
            yield name


def _names(command: Any, words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if not isinstance(command, TyperGroup):
            return
        command = command.commands[word]
        yield word

"""Commands on a stopped pipeline of the engine: reset and positions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.definitions import named
from harness.ending import run_until
from harness.errors import raises
from harness.kafka.topics import in_order
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.flow import Flow, count
from onefold.pipeline import Engine, Pipeline
from onefold.sinks import PostgresSink, SqlSink
from onefold.sources import FileSource, KafkaSource

pytestmark = pytest.mark.servers


def command(*arguments: str) -> str:
    ran = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


class Counts:
    """How often each id is in the files of a folder, by a flow with state, into SQLite."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "in").mkdir()
        flow = Flow("counts.all")
        source = FileSource(str(root / "in"), format="json", schema="id long", settle_s=0.0)
        counted = flow.source(source, uid="in").key_by("id").aggregate(uid="n", n=count())
        counted.sink(SqlSink(f"sqlite:///{root}/t.db", "t", mode="upsert", key="id", order="onefold_epoch"))
        self.pipeline = Pipeline(flow, checkpoint=str(root / "checkpoint"), runtime=Engine())
        self.folder = root / "checkpoint" / "counts%2Eall"

    def put(self, name: str, *ids: int) -> None:
        (self.root / "in" / name).write_text("".join(json.dumps({"id": id}) + "\n" for id in ids))

    def rows(self) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(self.root / "t.db")) as rows, suppress(sqlite3.OperationalError):
            return rows.execute("SELECT id, n FROM t ORDER BY id").fetchall()
        return []

    def run(self, wanted: list[tuple[int, int]]) -> None:
        run_until(self.pipeline, lambda: self.rows() == wanted)
        assert self.rows() == wanted


@pytest.fixture
def counts(tmp_path: Path) -> Counts:
    made = Counts(tmp_path)
    made.put("1.json", 1, 1, 2)
    made.run([(1, 2), (2, 1)])
    return made


def test_reset_takes_the_state_with_the_rest_and_the_next_start_is_the_first(counts: Counts) -> None:
    counts.put("2.json", 2)
    counts.run([(1, 2), (2, 2)])
    shown = command("reset", named(counts.pipeline), "--rows", "--yes")
    assert f"the checkpoint directory {counts.folder}" in shown
    assert not counts.folder.exists() and counts.rows() == []
    counts.put("3.json", 3)
    counts.run([(1, 2), (2, 2), (3, 1)])
    assert "there is nothing of pipeline" not in command("reset", named(counts.pipeline), "--yes")


def test_reset_removes_no_folder_that_has_something_else(counts: Counts) -> None:
    (counts.folder / "photos").mkdir()
    with raises(ConfigError, "not-a-checkpoint"):
        command("reset", named(counts.pipeline), "--yes")
    (counts.folder / "photos").rmdir()
    assert counts.folder.exists() and counts.rows() == [(1, 2), (2, 1)]
    counts.put("2.json", 2)
    counts.run([(1, 2), (2, 2)])


def test_positions_move_where_no_state_is_kept_and_nothing_is_set_aside(
    kafka: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path
) -> None:
    topic, producer = kafka_topic(partitions=1), in_order(kafka.bootstrap_servers)
    for number in range(10):
        producer.produce(topic, b'{"id":%d,"v":1}' % number)
    producer.flush()
    source = KafkaSource(topic, bootstrap_servers=kafka.bootstrap_servers, format="json", schema="id long, v long")

    def ids(table: str = "t") -> list[int]:
        with psycopg.connect(postgres_url) as connection, suppress(psycopg.errors.UndefinedTable):
            return [id for (id,) in connection.execute(f"SELECT id FROM {table} ORDER BY id".encode())]
        return []

    flow = Flow("copy")
    flow.source(source, uid="in").sink(PostgresSink(postgres_url, table="t", mode="upsert", key="id", order="v"))
    pipeline = Pipeline(flow, checkpoint=str(tmp_path / "checkpoint"), runtime=Engine())
    run_until(pipeline, lambda: len(ids()) == 10)
    assert f"{topic}/0" in command("positions", named(pipeline))
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DELETE FROM t WHERE id >= 4")
    moved = command("positions", named(pipeline), "--set", f"{topic}:0=6", "--yes")
    assert "set aside" not in moved and "nobody needs it" not in moved
    run_until(pipeline, lambda: len(ids()) == 8)
    assert ids() == [0, 1, 2, 3, 6, 7, 8, 9]
    flow = Flow("sums")
    counted = flow.source(source, uid="in").key_by("id").aggregate(uid="n", n=count())
    counted.sink(PostgresSink(postgres_url, table="n", mode="upsert", key="id", order="onefold_epoch"))
    kept = Pipeline(flow, checkpoint=str(tmp_path / "checkpoint"), runtime=Engine())
    run_until(kept, lambda: ids("n") == [*range(10)])
    with raises(ConfigError, "state-not-movable"):
        command("positions", named(kept), "--set", f"{topic}:0=6", "--yes")

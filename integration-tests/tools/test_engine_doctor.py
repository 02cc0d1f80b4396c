"""`onefold doctor` and `plan` of pipelines on the engine: every source and sink, without Spark and without a JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.definitions import named
from harness.kafka.topics import in_order
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.flow import Flow, count
from onefold.pipeline import Engine, Pipeline
from onefold.sinks import HBaseSink, PostgresSink
from onefold.sources import FileSource, KafkaSource, PostgresSource

pytestmark = pytest.mark.servers


class Shop:
    """A flow of a topic, a folder and a table into Postgres."""

    def __init__(self, servers: str, topic: str, url: str, root: Path) -> None:
        self.servers, self.topic, self.url, self.root = servers, topic, url, root
        (root / "in").mkdir()
        (root / "in" / "1.json").write_text('{"id":1}\n')
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE old AS SELECT 3::bigint AS id")

    def pipeline(self, *, topic: str = "", folder: str = "in", table: str = "old", **more: Any) -> Pipeline:
        flow = Flow("shop")
        settings = {"bootstrap_servers": self.servers, "format": "json", "schema": "id long", "timeout_s": 2.0}
        streams = [
            flow.source(KafkaSource(topic or self.topic, **settings), uid="topic"),
            flow.source(
                FileSource(str(self.root / folder), format="json", schema="id long", settle_s=0.0), uid="folder"
            ),
            flow.source(PostgresSource(self.url, table=table, schema="id long"), uid="table"),
        ]
        counted = streams[0].union(*streams[1:]).key_by("id").aggregate(uid="n", n=count())
        counted.sink(PostgresSink(self.url, table="new", mode="upsert", key="id", order="onefold_epoch"))
        runtime = more.pop("runtime", Engine(workers=2))
        return Pipeline(flow, runtime=runtime, checkpoint=str(self.root / "checkpoint"), **more)


@pytest.fixture
def shop(kafka: Any, kafka_topic: Callable[..., str], postgres_url: str, tmp_path: Path) -> Shop:
    return Shop(kafka.bootstrap_servers, kafka_topic(partitions=2), postgres_url, tmp_path)


def told(command: str, pipeline: Pipeline) -> Result:
    return CliRunner().invoke(app, [command, named(pipeline)], catch_exceptions=False)


def test_all_sources_and_the_engine_are_examined_and_nothing_is_made(shop: Shop) -> None:
    found = told("doctor", shop.pipeline())
    assert found.exit_code == 0, found.output
    for text in (
        "the engine, 2 workers, state in memory, Python",
        f"topic '{shop.topic}' keeps records",
        "in is there, and is read again as it was, after a crash: 1 part at first",
        "table old is there, and is read once, whole, in one epoch: 1 part at first",
        "the guarantee holds",
    ):
        assert text in found.stdout, found.stdout
    plan = told("plan", shop.pipeline())
    assert plan.exit_code == 0 and f"mkdir -p {shop.root}/checkpoint" in plan.stdout, plan.output
    assert 'CREATE TABLE IF NOT EXISTS "public"."new"' in plan.stdout
    assert not (shop.root / "checkpoint").exists()
    with psycopg.connect(shop.url) as connection:
        assert connection.execute("SELECT to_regclass('new')").fetchall() == [(None,)]


def test_after_it_ran_where_it_stands_is_known(shop: Shop) -> None:
    pipeline = shop.pipeline()
    timer = threading.Timer(4, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    pipeline.run()
    timer.join()
    found = told("doctor", pipeline)
    assert found.exit_code == 0, found.output
    assert "0 offsets are still to be read" in found.stdout and f"{shop.root}/checkpoint is there" in found.stdout


def test_bounded_sources_are_examined_and_how_much_is_left_up_to_their_ends_is_known(shop: Shop) -> None:
    flow = Flow("bounded")
    settings: dict[str, Any] = {"format": "json", "schema": "id long"}
    topic = KafkaSource(shop.topic, bootstrap_servers=shop.servers, **settings).bounded()
    folder = FileSource(str(shop.root / "in"), settle_s=0.0, **settings).bounded()
    rows = flow.source(topic, uid="topic").union(flow.source(folder, uid="folder"))
    rows.sink(PostgresSink(shop.url, table="new"))
    pipeline = Pipeline(flow, runtime=Engine(), checkpoint=str(shop.root / "checkpoint"))
    found = told("doctor", pipeline)
    assert found.exit_code == 0, found.output
    assert f"topic '{shop.topic}' keeps records" in found.stdout and "in is there" in found.stdout, found.output
    pipeline.run()
    behind = in_order(shop.servers)
    behind.produce(shop.topic, b'{"id":2}')
    assert behind.flush(30) == 0
    found = told("positions", pipeline)
    assert found.exit_code == 0 and "is not known" not in found.output, found.output
    assert found.stdout.count(" 0 records ") == 2, found.output


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "nowhere"}, "topic-missing"),
        ({"folder": "gone"}, "folder-missing"),
        ({"table": "gone"}, "table-missing"),
    ],
)
def test_what_keeps_a_start_from_its_sources_is_a_problem(shop: Shop, more: dict[str, Any], code: str) -> None:
    found = told("doctor", shop.pipeline(**more))
    assert found.exit_code == 1 and f"[{code}]" in found.stdout, found.output


def test_a_table_beside_a_sink_that_writes_through_is_a_problem(shop: Shop) -> None:
    flow = Flow("shop")
    rows = flow.source(PostgresSource(shop.url, table="old", schema="id long"), uid="table")
    rows.sink(HBaseSink("127.0.0.1:1", table="t", row_key="id", family="f", mode="row_key"))
    found = told("doctor", Pipeline(flow, runtime=Engine(), store=f"sqlite:///{shop.root}/store.db"))
    assert found.exit_code == 1 and "[source-not-replayable]" in found.stdout, found.output


def test_a_checkpoint_that_cannot_be_made_is_a_problem(shop: Shop) -> None:
    (shop.root / "checkpoint").write_text("a file")
    found = told("doctor", shop.pipeline())
    assert found.exit_code == 1 and "[checkpoint-unwritable]" in found.stdout, found.output


def test_neither_spark_nor_a_jvm_is_needed(shop: Shop) -> None:
    shop.root.joinpath("shop.py").write_text(
        "from onefold.flow import Flow\nfrom onefold.pipeline import Engine, Pipeline\n"
        "from onefold.sinks import PostgresSink\nfrom onefold.sources import FileSource\n"
        "flow = Flow('files')\n"
        f"source = FileSource({str(shop.root / 'in')!r}, format='json', schema='id long')\n"
        f"flow.source(source, uid='in').sink(PostgresSink({shop.url!r}, 'new'))\n"
        "pipeline = Pipeline(flow, runtime=Engine())\n"
    )
    code = (
        "import sys\nfor name in ('pyspark', 'py4j'): sys.modules[name] = None\n"
        "from onefold.cli.main import app\napp(sys.argv[1:])"
    )
    for command in ("doctor", "plan", "validate", "preview", "reset"):
        arguments = [
            sys.executable,
            "-c",
            code,
            command,
            "shop.py:pipeline",
            *(["--yes"] if command == "reset" else []),
        ]
        ran = subprocess.run(arguments, cwd=shop.root, capture_output=True, text=True, timeout=100, check=False)
        assert ran.returncode == 0 and "ModuleNotFoundError" not in ran.stderr, (command, ran.stdout, ran.stderr)

"""A pipeline as a value: what it refuses, and where it keeps what it needs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.definitions import piped
from harness.errors import raises

from onefold.core import ConfigError, Retriable
from onefold.pipeline import Engine, Pipeline, Restart, Spark
from onefold.sinks import KafkaSink
from onefold.sources import FileSource, KafkaSource
from onefold.store.checkpoint_store import CheckpointStore

SOURCE = KafkaSource("orders", bootstrap_servers="localhost:9092")
SINK = KafkaSink("out", bootstrap_servers="localhost:9092")


def pipeline(directory: Path, name: str = "orders", **more: object) -> Pipeline:
    return piped(name, source=SOURCE, sinks=[SINK], directory=str(directory), **more)


def test_the_first_start_makes_the_folder_of_the_default_store_and_nothing_before_does(tmp_path: Path) -> None:
    made = pipeline(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with closing(CheckpointStore(made.store_url)) as store:
        assert store.id()
    assert (tmp_path / ".onefold" / "orders.db").exists()


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "gone")
    with (
        closing(CheckpointStore(made.store_url)) as store,
        raises(ConfigError, "database-access-denied"),
    ):
        store.id()


@pytest.mark.parametrize("folder", ["plain", "what?", "a%2Fb", "a#b", "a b"])
def test_the_default_store_is_in_the_files_own_folder_whatever_that_is_called(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    made = pipeline(tmp_path / folder, "a?b%2Fc")
    with closing(CheckpointStore(made.store_url)) as store:
        assert store.id()
    assert (tmp_path / folder / ".onefold" / "a?b%2Fc.db").exists()
    assert [one.name for one in tmp_path.iterdir()] == [folder]


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a flow": (lambda: Pipeline("orders"), "flow is a Flow, not of type str"),  # type: ignore[arg-type]
    "a runtime": (lambda: pipeline(Path(), runtime="spark"), "runtime is .*, not of type str"),
    "the restart's policy": (lambda: pipeline(Path(), restart={}), "restart is a Restart, not of type dict"),
    "a number": (lambda: pipeline(Path(), stop_within_s="60"), "stop_within_s is a number, not of type str"),
    "no number": (lambda: pipeline(Path(), patience_s=None), "patience_s is a number, not of type NoneType"),
    "a truth": (lambda: pipeline(Path(), require_tls="no"), "require_tls is true or false, not of type str"),
    "a checkpoint": (lambda: pipeline(Path(), checkpoint=3), "checkpoint is a text, not of type int"),
    "a word of a strategy": (lambda: Restart(strategy="off"), "strategy is one of exponential, .* not 'off'"),  # type: ignore[arg-type]
    "a whole number": (lambda: Restart(attempts=True), "attempts is a whole number from 1 on, not True"),
    "no time": (lambda: pipeline(Path(), stop_within_s=float("nan")), "stop_within_s is a number of seconds"),
    "a time without an end": (lambda: Restart(delay_s=float("inf")), "delay_s is a number of seconds above 0, a year"),
    "a time that has passed": (lambda: pipeline(Path(), patience_s=-5), "patience_s is a number of seconds above 0"),
    "a setting": (lambda: Spark(settings={"spark.x": 3}), "settings is a mapping"),  # type: ignore[dict-item]
    "a time": (lambda: Spark(processing_time=10), "processing_time is a text"),  # type: ignore[arg-type]
    "no time of Spark's": (lambda: Spark(processing_time="10"), "processing_time is a time as '10 seconds', not '10'"),
    "a backend of state": (lambda: Engine(state="disk"), "state is 'memory' or 'rocksdb', not 'disk'"),  # type: ignore[arg-type]
    "an alignment": (
        lambda: Engine(alignment="staged"),  # type: ignore[arg-type]
        "alignment is 'aligned' or 'unaligned' or 'at_least_once', not 'staged'",
    ),
    "a timeout for nothing": (
        lambda: Engine(alignment_timeout_s=1.0),
        "alignment_timeout_s=1.0 is a number of seconds above 0, with alignment='unaligned' alone",
    ),
    "a timeout of nothing": (
        lambda: Engine(alignment="unaligned", alignment_timeout_s=0.0),
        "alignment_timeout_s=0.0 is a number of seconds above 0",
    ),
    "no worker": (lambda: Engine(workers=0), "workers is a number from 1 on, not 0"),
    "nothing retained": (lambda: Engine(retain=0), "retain is a number from 1 on, not 0"),
}


class Clock:
    """In the place of `time`: what sleeps moves it on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_start_that_waits_a_server_out_in_vain_is_no_healthy_run_and_the_writer_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    starts: list[object] = []
    clock = Clock()
    away = Retriable("kafka-unreachable", "it does not answer")

    class Writer:
        def __init__(self) -> None:
            made.append(self)
            if len(made) == 1:
                raise away

        def close(self) -> None:
            made.append("closed")

    def start(_: Pipeline, spark: object, writer: object) -> object:  # noqa: ARG001  # the pipeline's own signature
        starts.append(writer)
        clock.sleep(120)
        raise away

    monkeypatch.setattr("onefold.pipeline.pipeline.time", clock)
    monkeypatch.setattr(Pipeline, "writer", lambda _: Writer())
    monkeypatch.setattr(Pipeline, "start", start)
    with raises(Retriable, "kafka-unreachable"):
        pipeline(tmp_path, restart=Restart(attempts=3, healthy_s=60), runtime=Spark(session=object())).run()
    assert len(starts) == 3 and len(set(map(id, starts))) == 1  # the first failure was the writer's
    assert made[2:] == ["closed"]


def test_a_session_of_ones_own_is_given_without_what_another_would_be_started_with() -> None:
    for more in ({"master": "local[2]"}, {"settings": {"spark.ui.enabled": "false"}}):
        with raises(ConfigError, "options-conflict", "session"):
            Spark(session=object(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", WRONG)
def test_a_value_of_another_type_and_a_word_that_is_none_are_refused(case: str) -> None:
    make, says = WRONG[case]
    with pytest.raises(ConfigError, match=says) as refused:
        make()
    assert refused.value.code == "option-value"


def test_what_only_spark_or_one_topic_has_is_refused_by_name_elsewhere(tmp_path: Path) -> None:
    on_engine = pipeline(tmp_path, runtime=Engine())
    with raises(ConfigError, "only-on-spark", "'orders'"):
        _ = on_engine.spark
    assert on_engine.topic is SOURCE
    files = piped("f", source=FileSource(str(tmp_path), format="json", schema="id long"), sinks=[SINK])
    with raises(ConfigError, "one-topic-only", "'f'"):
        _ = files.topic
    assert files.topics == []


def test_what_of_it_has_a_password_in_it_is_not_shown(tmp_path: Path) -> None:
    made = pipeline(
        tmp_path,
        store="postgresql+psycopg://shop:hunter2@localhost/shop",
        runtime=Spark(settings={"spark.hadoop.fs.s3a.secret.key": "hunter2"}),
    )
    assert "hunter2" not in repr(made)


FILE = """\
name = "orders"
runtime = "engine"
[[sources]]
kind = "files"
path = "{place}/in"
format = "json"
schema = "id long"
settle_s = 0.0
[[steps]]
filter = "id > 0"
[[steps]]
map_batches = "functions.py:same"
[[sinks]]
kind = "sql"
url = "sqlite:///{place}/rows.db"
table = "rows"
"""


def test_a_start_that_waits_for_a_server_is_no_query_that_ran_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, starts = [0.0], itertools.count(1)

    def start(*_: object) -> None:
        now_s[0] += 600.0
        assert next(starts) <= 3, "the first start, and two again"
        raise Retriable("server-down", "no answer")

    monkeypatch.setattr("onefold.pipeline.pipeline.time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=id))
    monkeypatch.setattr(Pipeline, "start", start)
    monkeypatch.setattr(Pipeline, "writer", lambda _: SimpleNamespace(await_termination=id, close=dict))
    with raises(Retriable, "server-down"):
        pipeline(tmp_path, runtime=Spark(session=object()), restart=Restart(attempts=2, healthy_s=60)).run()


RUNS = """
import os, signal, sqlite3, sys, threading, time
from onefold.pipeline import read

def end():  # once the row is there
    while not os.path.exists(sys.argv[2]) or not rows():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

def rows():
    connection = sqlite3.connect(sys.argv[2])
    try:
        return connection.execute("SELECT id FROM rows").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()

threading.Thread(target=end, daemon=True).start()
read(sys.argv[1]).run()
print(rows(), sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j"}))
"""


def test_what_runs_on_the_engine_is_read_and_run_without_pyspark(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1}\n{"id": -1}\n')
    file = tmp_path / "orders.toml"
    file.write_text(FILE.format(place=tmp_path))
    (tmp_path / "functions.py").write_text("def same(batch):\n    return batch\n")
    command = [sys.executable, "-c", RUNS, file, tmp_path / "rows.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[(1,)] []\n"), done.stderr

"""Savepoints of flows: made while the flow runs, restored with other workers, backends, key groups and code."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import harness.ids_flow
import psycopg
import pyarrow.parquet as pq
import pytest
from harness.definitions import named
from harness.ending import run_until
from harness.errors import raises
from harness.ids_flow import WAIT_S, Ids, Last, as_they_come, job_file, killed_at, onefold, program, summed
from harness.kafka.topics import in_order
from harness.support import wait_until
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import CheckpointMismatch, ConfigError, OnefoldError
from onefold.flow import Evolution, Flow, count, min_, sum_
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

pytestmark = pytest.mark.servers


KEPT = Path(__file__).parent / "savepoints"


def command(*arguments: str) -> str:
    ran = CliRunner().invoke(app, ["savepoint", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def apart(*arguments: str) -> None:
    """The command in a process of its own: one that uses RocksDB runs no flow with it."""
    with onefold("savepoint", *arguments) as process:
        assert process.wait(WAIT_S) == 0


def _allow(what: str, *uids: str) -> list[str]:
    return [each for uid in uids for each in (f"--allow-{what}", uid)]


@pytest.fixture
def ids(tmp_path: Path, postgres_url: str) -> Ids:
    made = Ids(tmp_path, postgres_url)
    made.put(range(100))
    made.run()
    return made


def test_state_moves_to_other_workers_another_backend_and_other_key_groups_and_back(ids: Ids) -> None:
    said = command("create", named(ids.pipeline), "--name", "s")
    assert "savepoint s of pipeline ids: epoch" in said
    assert "whole" in command("list", named(ids.pipeline))
    table = pq.read_table(next((ids.saved() / "state/n").glob("*-rows-0.parquet"))).to_pylist()
    assert sorted(table, key=lambda row: row["k"])[0]["k"] == 0, "anybody can read it"
    moved = ids.file(max_parallelism=64, workers=3, state="rocksdb")
    apart("restore", moved, "s", "--yes")
    ids.put(range(100, 150))
    ids.run_apart(moved)
    apart("create", moved, "--name", "back")
    back = ids.made(max_parallelism=16, workers=2)
    command("restore", named(back), "back", "--yes")
    ids.put(range(150, 220))
    ids.run(back)


def test_it_is_made_while_the_flow_runs_and_with_stop_at_its_end(ids: Ids) -> None:
    with onefold("run", ids.file()) as process:
        ids.put(range(100, 110))
        wait_until(ids.is_exact, "it reads on")
        with raises(ConfigError, "pipeline-held"):
            command("create", named(ids.pipeline), "--name", "none", "--stop")
        process.terminate()
        assert process.wait(WAIT_S) == 0
    with program(ids.file()) as process:
        ids.put(range(110, 150))
        wait_until(ids.is_exact, "it reads on")
        command("create", named(ids.pipeline), "--name", "live")
        ids.put(range(150, 170))
        wait_until(ids.is_exact, "it reads on, and was not fenced")
        command("create", named(ids.pipeline), "--name", "last", "--stop")
        assert process.wait(WAIT_S) == 0
    assert not any((ids.root / "ids-checkpoint/ids/holds").iterdir())
    with raises(ConfigError, "pipeline-not-here"):
        command("create", named(ids.pipeline), "--name", "none", "--stop")
    listed = json.loads(command("list", named(ids.pipeline), "--json"))
    assert [(each["name"], each["damage"]) for each in listed] == [("live", None), ("last", None)]
    shown = json.loads(command("show", named(ids.pipeline), "last", "--state", "n/aggregates", "--json"))
    assert {row["k"] for row in shown["rows"]} == {*range(7)} and {row["n.count"] for row in shown["rows"]}
    assert "seen" in command("show", named(ids.pipeline), "live")
    command("restore", named(ids.pipeline), "last", "--yes")
    ids.put(range(170, 180))
    ids.run()
    command("delete", named(ids.pipeline), "last", "--yes")
    assert not ids.saved("last").exists()


def test_two_are_compared_by_what_came_went_and_changed(ids: Ids) -> None:
    def difference(first: str, second: str) -> dict[str, tuple[int, int, int]]:
        said = json.loads(command("diff", named(ids.pipeline), first, second, "--json"))
        assert [each["name"] for each in said["savepoints"]] == [first, second]
        found = {f"{each['uid']}/{each['name']}": each for each in said["states"]}
        return {name: (of["added"], of["removed"], of["changed"]) for name, of in found.items() if name[-1] != "$"}

    command("create", named(ids.pipeline), "--name", "s")
    ids.pipeline = ids.made(max_parallelism=64, workers=3)
    command("restore", named(ids.pipeline), "s", "--yes")
    command("create", named(ids.pipeline), "--name", "t")
    assert {*difference("s", "t").values()} == {(0, 0, 0)}, "however it is shared out"
    ids.put(range(100, 103))
    ids.run(ids.pipeline)
    command("create", named(ids.pipeline), "--name", "u")
    found = difference("t", "u")
    assert found["n/aggregates"] == found["last/highest"] == (0, 0, 3)
    assert found["last/seen"] == (3, 0, 0)
    assert difference("u", "t")["last/seen"] == (0, 3, 0)
    said = command("diff", named(ids.pipeline), "t", "u")
    assert "aggregates" in said and "positions: in/" in said.replace("#", "")


def test_another_pipeline_begins_with_it(ids: Ids) -> None:
    command("create", named(ids.pipeline), "--name", "s")
    other = Ids(ids.root, ids.url, "other")
    other.sent = ids.sent
    command("restore", named(ids.pipeline), "s", "--as", named(other.pipeline), "--yes")
    ids.put(range(100, 140))
    run_until(other.pipeline, lambda: len(other.rows()) == 7)
    other.run()


def test_what_the_flow_or_the_savepoint_lacks_is_refused_until_it_is_allowed(ids: Ids) -> None:
    command("create", named(ids.pipeline), "--name", "s")
    ids.build = partial(summed, uid="m")
    changed = ids.made()
    with raises(ConfigError, "savepoint-missing-operator", "n (7 entries)"):
        command("restore", named(changed), "s", "--yes")
    with raises(ConfigError, "savepoint-lacks-operator", "m of flow"):
        command("restore", named(changed), "s", "--allow-missing", "n", "--yes")
    with raises(ConfigError, "option-value", "other"):
        command("restore", named(changed), "s", *_allow("missing", "n", "other"), *_allow("new", "m"), "--yes")
    with raises(ConfigError, "option-value", "last"):
        command("restore", named(changed), "s", *_allow("missing", "n"), *_allow("new", "m", "last"), "--yes")
    command("restore", named(changed), "s", "--allow-missing", "n", "--allow-new", "m", "--yes")
    ids.put(range(100, 107))
    run_until(changed, lambda: ids.rows()[:1] == [(0, 1, 105, 16, 203, ids.rows()[0][-1])])
    assert [row[1:4] for row in ids.rows()][:2] == [(1, 105, 16), (1, 106, 16)], "one began anew, the other went on"


CHANGES: dict[str, Any] = {
    "columns": {"n.total": "total"},
    "begins": {"n.lowest": None},
    "drops": {"n.most", "n.best", "last"},
}


def released(ids: Ids, on: Spark | None = None, **changes: Any) -> Pipeline:
    """The next release: `id` is called `amount`, the sums have a lowest, and nobody keeps what was last any more."""
    flow = Flow("ids", max_parallelism=8, evolution=Evolution(**changes))
    rows = flow.source(ids.source(), uid="in").select("k", amount="id")
    sums = rows.key_by("k").aggregate(uid="n", n=count(), total=sum_("amount"), lowest=min_("amount"))
    return ids.into(flow, sums, on or Engine(workers=2))


def release(ids: Ids, on: Spark | None = None) -> None:
    """Restored, and each of its changes refused where nobody has said that it may be."""
    command("create", named(ids.pipeline), "--name", "s")
    for gone in ({"columns": {}}, {"begins": {}}, *({"drops": CHANGES["drops"] - {of}} for of in CHANGES["drops"])):
        with pytest.raises(OnefoldError, match=r"Nothing was changed|\[state-operator-changed\]"):
            command("restore", named(released(ids, on, **(CHANGES | gone))), "s", "--yes")
    with psycopg.connect(ids.url) as db:
        db.execute("ALTER TABLE ids DROP COLUMN most, DROP COLUMN best, ADD COLUMN lowest bigint")
    command("restore", named(released(ids, on, **CHANGES)), "s", "--yes")
    ids.put(range(100, 150))
    sums = [
        (k, [id for id in ids.sent if id % 7 == k], [id for id in range(100, 150) if id % 7 == k]) for k in range(7)
    ]
    due = [(k, len(all_), sum(all_), min(since)) for k, all_, since in sums]
    run_until(released(ids, on, **CHANGES), lambda: ids.rows("k, n, total, lowest") == due)
    assert ids.rows("k, n, total, lowest") == due


def test_a_release_of_changed_code_goes_on_and_says_what_it_changes(ids: Ids) -> None:
    release(ids)


@pytest.mark.slow
def test_a_release_of_changed_code_goes_on_on_spark(ids: Ids, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    release(ids, Spark(session=spark))


def test_an_operator_that_keeps_something_else_is_refused_before_anything_changes(ids: Ids) -> None:
    command("create", named(ids.pipeline), "--name", "s")
    ids.build = lambda rows: rows.key_by("k").aggregate(uid="n", n=count("id"), total=count())
    with raises(CheckpointMismatch, "state-operator-changed"):
        command("restore", named(ids.made()), "s", "--yes")
    ids.build = summed
    ids.put(range(100, 120))
    ids.run()


@pytest.mark.parametrize("what", ["state/n/*-rows-*", "savepoint.json"])
def test_a_savepoint_that_somebody_has_changed_is_refused(ids: Ids, what: str) -> None:
    command("create", named(ids.pipeline), "--name", "s")
    (file,) = ids.saved().glob(what)
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with raises(ConfigError, "savepoint-damaged"):
        command("restore", named(ids.pipeline), "s", "--yes")
    ids.put(range(100, 120))
    ids.run()


@pytest.mark.parametrize(
    "changed",
    [{"keys": -1}, {"keys": 99}, {"kind": "value"}, {"kind": "blocks"}, {"kind": "operator"}, None],
)
def test_a_savepoint_whose_description_does_not_fit_its_files_is_refused(
    ids: Ids, changed: dict[str, Any] | None
) -> None:
    command("create", named(ids.pipeline), "--name", "s")
    described = ids.saved() / "savepoint.json"
    values = json.loads(described.read_text())
    of = values["flow"]["states"]
    (at,) = (at for at, state in enumerate(of) if (state["uid"], state["kind"]) == ("n", "rows"))
    if changed is not None:
        of[at] |= changed
    else:  # what says what the operator keeps
        gone = [state for state in of if (state["uid"], state["name"]) == ("n", "$operator")]
        values["flow"]["states"] = [state for state in of if state not in gone]
        values["files"] = [file for file in values["files"] if file["path"] not in gone[0]["files"]]
    values.pop("digest")
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    described.write_text(json.dumps(values | {"digest": hashlib.sha256(text.encode()).hexdigest()}))
    with raises(ConfigError, "savepoint-damaged"):
        command("restore", named(ids.made(workers=2)), "s", "--yes")
    ids.put(range(100, 120))
    ids.run()


@pytest.mark.parametrize("place", ["before:AcquireGeneration", "restore:imported", "before:Decide", "after:Decide"])
def test_a_restore_that_was_killed_has_changed_nothing_or_all(ids: Ids, place: str) -> None:
    command("create", named(ids.pipeline), "--name", "s")
    killed_at(ids.root, place, "savepoint", "restore", ids.file(workers=2), "s", "--yes")
    ids.put(range(100, 130))
    ids.run(ids.made(workers=2))


def test_another_pipeline_that_was_begun_has_what_its_source_keeps_also_where_the_restore_was_killed_then(
    tmp_path: Path, postgres_url: str
) -> None:
    def written(name: str) -> list[int]:
        with psycopg.connect(postgres_url) as db, suppress(psycopg.errors.UndefinedTable):
            return [id for (id,) in db.execute(f"SELECT id FROM {name} ORDER BY id")]  # type: ignore[arg-type]
        return []

    first, other = (as_they_come(tmp_path, postgres_url, name) for name in ("first", "other"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text('{"id": 0}\n')
    run_until(first, lambda: written("first") == [0])
    command("create", named(first), "--name", "s")
    with psycopg.connect(postgres_url) as db:
        db.execute("CREATE TABLE other AS TABLE first")
    files = [
        job_file(tmp_path, f"as_they_come(Path({str(tmp_path)!r}), {postgres_url!r}, {of.name!r})")
        for of in (first, other)
    ]
    killed_at(tmp_path, "after:Adopt", "savepoint", "restore", files[0], "s", "--as", files[1], "--yes")
    (tmp_path / "in/1.json").write_text('{"id": 1}\n')
    run_until(other, lambda: written("other") == [0, 1])
    assert written("other") == [0, 1]


@pytest.mark.parametrize("kept", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_savepoints_of_every_version_are_read(tmp_path: Path, postgres_url: str, kept: Path) -> None:
    """Each is of `Ids`, of the ids below 100. A version that changes what is in one adds one; none is changed."""
    old, new = Ids(tmp_path, postgres_url), Ids(tmp_path, postgres_url, "new")
    shutil.copytree(kept, old.saved("kept"))
    command("restore", named(old.pipeline), "kept", "--as", named(new.pipeline), "--yes")
    command("create", named(new.pipeline), "--name", "again")
    for state, name in (("n/aggregates", "n.count"), ("last/seen", "value.id"), ("last/highest", "value.id")):
        shown = [
            command("show", named(of), at, "--state", state, "--limit", "999", "--json")
            for of, at in ((old.pipeline, "kept"), (new.pipeline, "again"))
        ]
        before, after = (sorted(map(str, json.loads(each)["rows"])) for each in shown)
        assert before == after and all(name in row for row in before)
    ids = {row["value.id"] for row in json.loads(shown[1])["rows"]}
    assert ids == {
        max(id for id in range(100) if id % 7 == k and id % 2 == parity) for k in range(7) for parity in (0, 1)
    }


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_flow_goes_back_where_its_sink_takes_records_again(
    kafka_server: Any, kafka_topic: Any, postgres_url: str, tmp_path: Path, mode: str
) -> None:
    topic, producer = kafka_topic(partitions=2), in_order(kafka_server.bootstrap_servers)

    def put(ids: range) -> None:
        for id in ids:
            producer.produce(topic, b'{"k":%d,"id":%d}' % (id % 3, id), partition=id % 2)
        assert producer.flush(30) == 0

    def rows() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_url) as db, suppress(psycopg.errors.UndefinedTable):
            return db.execute("SELECT k, max(n), max(total) FROM back GROUP BY k ORDER BY k").fetchall()
        return []

    def totals(ids: range) -> list[tuple[int, int, int]]:
        of = [(k, [id for id in ids if id % 3 == k]) for k in range(3)]
        return [(k, len(mine), sum(mine) if mode == "upsert" else max(mine)) for k, mine in of]

    flow = Flow("back")
    source = KafkaSource(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, format="json", schema="k long, id long"
    )
    keyed = flow.source(source, uid="in").key_by("k")
    if mode == "upsert":
        sums = keyed.aggregate(uid="n", n=count(), total=sum_("id"))
        sums.sink(PostgresSink(postgres_url, "back", mode="upsert", key="k", order="onefold_epoch"))
    else:
        each = keyed.process(Last(), uid="n", schema="k long, total long, n long, best long")
        each.sink(PostgresSink(postgres_url, "back"))
    pipeline = Pipeline(flow, checkpoint=str(tmp_path / "checkpoint"), runtime=Engine())
    put(range(100))
    run_until(pipeline, lambda: rows() == totals(range(100)))
    command("create", named(pipeline), "--name", "s")
    put(range(100, 200))
    run_until(pipeline, lambda: rows() == totals(range(200)))
    if mode == "append":
        with raises(ConfigError, "move-would-double"):
            command("restore", named(pipeline), "s", "--yes")
    else:
        assert "records that come again: 100" in command("restore", named(pipeline), "s", "--yes")
    put(range(200, 230))
    run_until(pipeline, lambda: rows() == totals(range(230)))
    assert rows() == totals(range(230))


def test_a_flow_goes_on_from_its_checkpoint_alone(
    kafka_server: Any, kafka_topic: Any, postgres_url: str, tmp_path: Path, ids: Ids
) -> None:
    topic, producer = kafka_topic(partitions=2), in_order(kafka_server.bootstrap_servers)
    sent: list[int] = []

    def put(ids: range) -> None:
        for id in ids:
            producer.produce(topic, b'{"k":%d,"id":%d}' % (id % 3, id), partition=id % 2)
        assert producer.flush(30) == 0
        sent.extend(ids)

    def is_exact() -> bool:
        due = [(k, len(of), sum(of)) for k in range(3) if (of := [id for id in sent if id % 3 == k])]
        with psycopg.connect(postgres_url) as db, suppress(psycopg.errors.UndefinedTable):
            return db.execute("SELECT k, n, total FROM sums ORDER BY k").fetchall() == due
        return False

    def pipeline(name: str, store: str) -> Pipeline:
        flow, servers = Flow(name), kafka_server.bootstrap_servers
        rows = flow.source(
            KafkaSource(topic, bootstrap_servers=servers, format="json", schema="k long, id long"), uid="in"
        )
        sums = rows.key_by("k").aggregate(uid="n", n=count(), total=sum_("id"))
        how = {"mode": "upsert", "key": "k", "order": "onefold_epoch", "delivery": "two_phase"}
        sums.sink(PostgresSink(postgres_url, "sums", **how))
        return Pipeline(flow, checkpoint=str(tmp_path / name), store=f"sqlite:///{tmp_path / store}", runtime=Engine())

    old = pipeline("old", "lost.db")
    for ids_ in (range(50), range(50, 90)):
        put(ids_)
        run_until(old, is_exact)
    (tmp_path / "lost.db").rename(tmp_path / "away.db")
    folder = str(tmp_path / "old")
    with raises(ConfigError, "checkpoint-epoch-missing", "7"):
        command("new", named(old), "--name", "none", "--checkpoint", folder, "--epoch", "7000")
    with raises(ConfigError, "checkpoint-epoch-missing", "has nothing of flow 'other'"):
        command("new", named(pipeline("other", "other.db")), "--name", "none", "--checkpoint", folder)
    with raises(ConfigError, "options-conflict"):
        command("new", named(old), "--name", "none", "--checkpoint", folder, "--positions", "earliest")
    with pytest.raises(OnefoldError) as refused:  # files that were read are in the store alone
        command("new", named(ids.pipeline), "--name", "none", "--checkpoint", ids.pipeline.checkpoint)
    assert "store" in str(refused.value)
    command("new", named(old), "--name", "saved", "--checkpoint", folder)
    new = pipeline("new", "new.db")
    command("restore", named(old), "saved", "--as", named(new), "--yes")
    shutil.rmtree(folder)
    put(range(90, 120))
    run_until(new, is_exact)
    assert is_exact()


@pytest.mark.slow
def test_state_goes_from_the_engine_to_spark_and_back(ids: Ids, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    register_pickle_by_value(harness.ids_flow)
    command("create", named(ids.pipeline), "--name", "s")
    on_spark = ids.made(max_parallelism=8, on=Spark(session=spark))
    command("restore", named(on_spark), "s", "--yes")
    with raises(CheckpointMismatch, "state-missing"):
        ids.pipeline.run()
    with raises(ConfigError, "savepoint-needed"):
        command("delete", named(on_spark), "s", "--yes")
    ids.saved().rename(ids.root / "elsewhere")
    with raises(ConfigError, "savepoint-needed"):
        on_spark.run()
    (ids.root / "elsewhere").rename(ids.saved())
    ids.put(range(100, 150))
    ids.run(on_spark)
    ids.put(range(150, 160))
    ids.run(on_spark)
    command("create", named(on_spark), "--name", "back")
    back = ids.made(max_parallelism=16, workers=2)
    command("restore", named(back), "back", "--yes")
    ids.put(range(160, 220))
    ids.run(back)
    command("create", named(back), "--name", "again")
    command("restore", named(on_spark), "again", "--yes")
    ids.put(range(220, 240))
    ids.run(on_spark)

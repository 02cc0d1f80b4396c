"""What a task prepares after its run or query has ended: swept at the end, and shown to operators until it is gone."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from harness.definitions import into
from harness.support import AVAILABLE_NOW, Rig, wait_until
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import Committable, EpochRecord, Sink, TaskId
from onefold.core.findings import Level
from onefold.operate.doctor import diagnose
from onefold.sinks import KafkaSink
from onefold.spark import EpochWriter
from onefold.spark.runtime import query

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


@dataclass
class Straggler:
    """One more attempt of an epoch's task, which goes on when everything is over."""

    sink: Sink
    record: EpochRecord

    def prepare(self) -> Committable:
        task = TaskId("test", self.record.generation, self.record.epoch, self.record.timestamp_ms, uuid.uuid4())
        self.sink.open("test", SCHEMA).close()
        writer = self.sink.writer(task)
        writer.write(pa.record_batch([[1], [1]], schema=SCHEMA))
        prepared = writer.prepare()
        assert prepared is not None
        return prepared


def gids(rig: Rig) -> list[str]:
    return [gid for (gid,) in rig.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")]


def run_batch(rig: Rig) -> tuple[EpochWriter, Straggler]:
    sink = rig.sink()
    pipeline = rig.writer(sink)
    pipeline.write_batch(rig.spark.range(10).selectExpr("id", "id AS n"), "day")
    return pipeline, Straggler(sink, pipeline.history()[-1])


@pytest.mark.slow
def test_what_a_late_task_of_a_batch_run_prepares_goes_a_little_later_or_when_the_pipeline_is_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, late = run_batch(rig)
    late.prepare()
    pipeline.close()
    assert gids(rig) == []
    monkeypatch.setattr(query, "GRACE_S", 3.0)
    pipeline.write_batch(rig.spark.range(10, 20).selectExpr("id", "id AS n"), "the next day")
    Straggler(late.sink, pipeline.history()[-1]).prepare()
    wait_until(lambda: gids(rig) == [], "the sweep")
    assert len(rig.rows()) == 20


@pytest.mark.slow
def test_what_a_late_task_of_a_query_prepares_goes_when_its_end_is_awaited(rig: Rig) -> None:
    rig.put(40)
    sink = rig.sink()
    pipeline = rig.pipeline(sink)
    query = pipeline.start(rig.spark, rig.checkpoint(), AVAILABLE_NOW)
    query.awaitTermination(60)
    Straggler(sink, rig.outcomes[-1].record).prepare()
    assert len(gids(rig)) == 1
    assert pipeline.await_termination(query, 60)
    assert gids(rig) == []
    rig.assert_exact()


def test_a_sweep_at_the_end_that_fails_says_so_and_takes_nothing_from_the_runs_success(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, late = run_batch(rig)
    late.prepare()
    rig.sql("ALTER TABLE onefold_sinks.onefold_epochs RENAME TO elsewhere")
    with caplog.at_level(logging.WARNING, "onefold"):
        pipeline.close()
    rig.sql("ALTER TABLE onefold_sinks.elsewhere RENAME TO onefold_epochs")
    assert "stays until the next start" in caplog.text
    pipeline.recover()
    rig.assert_nothing_in_doubt()
    assert len(rig.rows()) == 10


@pytest.mark.slow
def test_doctor_and_txn_show_what_was_prepared_after_the_end_with_its_age_and_what_to_do(rig: Rig) -> None:
    pipeline, late = run_batch(rig)
    pipeline.close()
    prepared = late.prepare()
    found = diagnose("test", [late.sink])
    (said,) = [f.says for sink in found.sinks for f in sink.findings if f.level is Level.CAUTION and "late" in f.says]
    assert f"{prepared.handle} was prepared" in said and "s ago by a task that came late: epoch 1" in said
    assert f"`onefold txn resolve PIPELINE --gid {prepared.handle}`" in said
    defined = into(late.sink, name="test")
    listed = CliRunner().invoke(app, ["txn", "list", defined])
    assert prepared.handle in listed.output and "epoch 1 is over, and its manifest doesn't name it" in listed.output
    resolved = CliRunner().invoke(app, ["txn", "resolve", defined, "--gid", prepared.handle, "--yes"])
    assert resolved.exit_code == 0, resolved.output
    assert gids(rig) == [] and len(rig.rows()) == 10


@pytest.mark.slow
def test_doctor_shows_a_kafka_transaction_that_was_left_open_after_the_end(
    rig: Rig, kafka_topic: Callable[..., str]
) -> None:
    sink = KafkaSink(kafka_topic(partitions=1), bootstrap_servers=rig.servers, key="id")
    rig.put(20)
    pipeline = rig.pipeline(sink, store=rig.sqlite)
    rig.run(pipeline)
    prepared = Straggler(sink, rig.outcomes[-1].record).prepare()

    def cautions() -> list[str]:
        (examined,) = diagnose("test", [sink], store=rig.sqlite).sinks
        return [found.says for found in examined.findings if found.level is Level.CAUTION and "came late" in found.says]

    (said,) = cautions()
    assert f"{prepared.handle} was prepared" in said and "holds read_committed readers of its partitions back" in said
    listing = ["txn", "list", into(sink, name="test", store=rig.sqlite)]
    (shown,) = json.loads(CliRunner().invoke(app, [*listing, "--json"]).stdout)["ours"]
    assert (shown["transaction"], shown["should_become"]) == (prepared.handle, "roll back")
    assert prepared.handle in CliRunner().invoke(app, listing).stdout
    rig.run(pipeline)
    assert cautions() == []
    assert json.loads(CliRunner().invoke(app, [*listing, "--json"]).stdout)["ours"] == []


@pytest.mark.slow
def test_what_tasks_left_in_postgres_and_in_kafka_is_one_list(rig: Rig, kafka_topic: Callable[..., str]) -> None:
    sinks = (rig.sink(), KafkaSink(kafka_topic(partitions=1), bootstrap_servers=rig.servers, key="id"))
    rig.put(20)
    rig.run(rig.pipeline(*sinks))
    handles = [Straggler(sink, rig.outcomes[-1].record).prepare().handle for sink in sinks]
    defined = into(*sinks, name="test")
    shown = json.loads(CliRunner().invoke(app, ["txn", "list", defined, "--json"]).stdout)
    assert [(one.get("gid"), one.get("transaction")) for one in shown["ours"]] == [
        (handles[0], None),
        (None, handles[1]),
    ]
    assert {(one["pipeline"], one["should_become"]) for one in shown["ours"]} == {("test", "roll back")}
    listed = CliRunner().invoke(app, ["txn", "list", defined])
    assert all(handle in listed.stdout for handle in handles)
    resolved = CliRunner().invoke(app, ["txn", "resolve", defined, "--yes"])
    assert resolved.exit_code == 0 and gids(rig) == [], resolved.output
    rig.run(rig.pipeline(*sinks))
    assert json.loads(CliRunner().invoke(app, ["txn", "list", defined, "--json"]).stdout)["ours"] == []

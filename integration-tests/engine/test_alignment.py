"""Barriers that overtake: how long an epoch takes behind a slow subtask, and that every row comes once after kills."""

from __future__ import annotations

import os
import signal
import statistics
from contextlib import closing
from dataclasses import replace
from io import StringIO
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from harness.errors import raises
from rich.console import Console

from onefold.cli.commands.verify import print_verification
from onefold.core import ConfigError
from onefold.engine.dataflow.alignment import Alignment
from onefold.engine.driver import running
from onefold.engine.state import is_flight
from onefold.operate.positions import change_sinks, move
from onefold.operate.savepoint.flow_create import create_of_flow
from onefold.operate.savepoint.flow_new import SavepointBuilder
from onefold.operate.stopped import StoppedPipeline
from onefold.operate.verify import verify
from onefold.pipeline import Engine, Pipeline

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TOOK = (
    "SELECT (decided_at_ms - timestamp_ms) / 1000.0 FROM onefold_sinks.onefold_epochs WHERE epoch <= {} ORDER BY epoch"
)
HANDLES = "SELECT manifest FROM onefold_sinks.onefold_epochs ORDER BY epoch"


def flights(flows: Any) -> int:
    return sum(manifest.count(".flight") for (manifest,) in flows.sql(HANDLES))


def test_unaligned_epochs_are_short_behind_a_subtask_that_is_a_hundred_times_slower(flows: Any) -> None:
    flows.put(4_000)
    took_s = {}
    for alignment in ("aligned", "unaligned"):
        if took_s:
            with psycopg.connect(flows.url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA onefold_sinks CASCADE")
                connection.execute("DROP TABLE rows")
        job = flows.job(kind="slow", sleep_s=0.02, workers=2, at_most=1_000, alignment=alignment)
        flows.finish(replace(job, checkpoint=f"{job.checkpoint}-{alignment}"))
        flows.assert_exact(job)
        took_s[alignment] = statistics.median(float(each) for (each,) in flows.sql(TOOK.format(4)))
    assert flights(flows) > 0
    assert took_s["aligned"] > 5.0 and took_s["unaligned"] < 2.0


_WORKERS = (
    "writers:written#3",
    "writers:prepared#2",
    "before:StoreState#3",
    "before:StoreFlight#2",
    "after:StoreFlight",
)


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
@pytest.mark.parametrize("place", _WORKERS)
def test_a_worker_that_is_killed_is_replaced_and_every_row_comes_once(flows: Any, place: str, state: str) -> None:
    flows.put(1_000)
    job = flows.job(kind="slow", sleep_s=0.003, state=state, workers=2, alignment="unaligned")
    process = flows.start(job, place)
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "[worker-lost]" in process.log.read_text() and flights(flows) > 0
    flows.assert_exact(job)


_DRIVERS = ("engine:begun#2", "before:Decide#2", "after:Decide#2", "before:Commit#3", "before:WriteLedger#3")


@pytest.mark.parametrize(("workers", "alignment"), [(1, "unaligned"), (3, "unaligned"), (2, "aligned")])
@pytest.mark.parametrize("place", _DRIVERS)
def test_a_driver_that_is_killed_goes_on_with_any_number_of_workers(
    flows: Any, place: str, workers: int, alignment: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind="slow", sleep_s=0.01, workers=2, alignment="unaligned")
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(replace(job, at_most=250, workers=workers, alignment=alignment))
    assert flights(flows) > 0
    flows.assert_exact(job)


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
@pytest.mark.parametrize("place", _WORKERS)
def test_in_event_time_a_worker_that_is_killed_is_replaced_and_no_row_is_late(
    flows: Any, place: str, state: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind="windows", sleep_s=0.003, state=state, workers=2, alignment="unaligned")
    process = flows.start(job, place)
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "[worker-lost]" in process.log.read_text() and flights(flows) > 0
    flows.assert_exact(job)


@pytest.mark.parametrize("alignment", ["unaligned", "aligned", "at_least_once"])
@pytest.mark.parametrize("place", _DRIVERS)
def test_in_event_time_a_driver_that_is_killed_goes_on_with_as_many_workers_and_then_with_others(
    flows: Any, place: str, alignment: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind="windows", sleep_s=0.01, workers=2, alignment="unaligned", goes_on=True)
    process = flows.start(job, place)
    process.held()
    process.kill()
    assert flights(flows) > 0
    ((epoch,),) = flows.sql("SELECT max(epoch) FROM onefold_sinks.onefold_epochs")
    process = flows.start(replace(job, workers=3))
    assert process.wait() == 1 and "[flight-worker-count]" in process.log.read_text()
    process = flows.start(replace(job, alignment=alignment))
    flows.until(f"SELECT max(epoch) > {epoch} FROM onefold_sinks.onefold_epochs WHERE state = 'complete'", [(True,)])
    process.process.terminate()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    flows.finish(replace(job, goes_on=False, at_most=250, workers=3, alignment=alignment))
    flows.assert_exact(job)


@pytest.mark.parametrize(("kind", "delivery"), [("windows", "two_phase"), ("totals", "staged")])
def test_other_flows_are_exact_with_a_timeout(flows: Any, kind: str, delivery: str) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, delivery=delivery, workers=2, alignment="unaligned", alignment_timeout_s=0.05)
    process = flows.start(job, "engine:begun#3")
    process.held()
    process.kill()
    flows.finish(job)
    flows.assert_exact(job)


def test_broadcast_rows_are_in_all_subtasks_or_in_none(flows: Any, kafka_topic: Any) -> None:
    rules = kafka_topic(partitions=1)
    flows.produce(rules, [b'{"account":%d,"factor":1}' % account for account in range(7)], 1)
    job = flows.job(kind="ruled", other=rules, workers=2, alignment="unaligned", goes_on=True)
    process = flows.start(job, "engine:begun#4")
    flows.until("SELECT count(*) > 0 FROM onefold_sinks.onefold_epochs WHERE state = 'complete'", [(True,)])
    flows.put(1_000)
    process.held()
    process.kill()
    process = flows.start(replace(job, workers=3))
    flows.until("SELECT count(*) FROM rows", [(1_000,)])
    process.process.terminate()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert flows.sql("SELECT id, account, n FROM rows ORDER BY id") == flows.sent


def test_a_flow_without_state_has_flights_too_and_goes_on_without_them_or_with_others(flows: Any) -> None:
    flows.put(200)
    job = flows.job(kind="spread", sleep_s=0.005, workers=2, goes_on=True)
    finished(flows, job, 200)
    flows.put(1_000)
    process = flows.start(replace(job, alignment="unaligned"), "engine:begun#3")
    process.held()
    process.kill()
    assert flights(flows) > 0
    finished(flows, replace(job, workers=3), 1_200)
    flows.assert_exact(job)


def finished(flows: Any, job: Any, rows: int) -> None:
    """Run it until there are so many rows."""
    process = flows.start(job)
    flows.until("SELECT count(*) FROM rows", [(rows,)])
    process.process.terminate()
    assert process.wait() == 0, process.log.read_text()[-3000:]


def test_sigterm_ends_it_with_an_aligned_epoch_that_leaves_nothing_in_flight(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(kind="slow", sleep_s=0.02, workers=2, goes_on=True, alignment="unaligned")
    process = flows.start(job)
    flows.until("SELECT count(*) > 0 FROM onefold_sinks.onefold_epochs WHERE manifest LIKE '%.flight%'", [(True,)])
    process.process.terminate()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert not is_flight(flows.sql(HANDLES)[-1][0]) and ".flight" not in flows.sql(HANDLES)[-1][0]
    flows.finish(replace(job, goes_on=False, alignment="aligned", sleep_s=0.0))
    flows.assert_exact(job)


@pytest.mark.parametrize("kind", ["rows", "slow"])
def test_at_least_once_loses_nothing_and_counts_twice_only_where_channels_meet(flows: Any, kind: str) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, sleep_s=0.003, workers=2, alignment="at_least_once")
    process = flows.start(job, "engine:begun#3")
    process.held()
    process.kill()
    flows.finish(job)
    doubles = "SELECT count(*) > 0 FROM onefold_sinks.onefold_epochs WHERE fingerprint LIKE '%!'"
    assert flows.sql(doubles) == [(kind != "rows",)]
    if kind == "rows":
        flows.assert_exact(job)
    else:
        assert {id_ for (id_,) in flows.sql("SELECT id FROM rows")} == {id_ for id_, _, _ in flows.sent}


def test_verify_of_what_nobody_waited_for_says_that_rows_may_be_there_twice(flows: Any) -> None:
    flows.put(200)
    job = flows.job(kind="spread", workers=2, alignment="at_least_once")
    flows.finish(job)
    flows.sql("INSERT INTO rows SELECT * FROM rows LIMIT 3 RETURNING id")
    pipeline = Pipeline(job.flow(), checkpoint=job.checkpoint, runtime=Engine(workers=2))
    (told,) = verify(pipeline, key=("id",)).values()
    assert told.is_exact and told.may_double == "alignment at_least_once" and told.comparison.notes
    print_verification(console := Console(file=StringIO(), width=200), told, "rows")
    assert "at least once, by alignment" in console.file.getvalue() and "exact" not in console.file.getvalue()
    flows.sql("DELETE FROM rows WHERE id = 7 RETURNING id")
    (told,) = verify(pipeline, key=("id",)).values()
    assert not told.is_exact, "what is lost is wrong"


@pytest.mark.parametrize(("kind", "delivery"), [("slow", "two_phase"), ("windows", "staged")])
def test_stages_are_exact(flows: Any, monkeypatch: pytest.MonkeyPatch, kind: str, delivery: str) -> None:
    monkeypatch.setattr(running, "alignment_of", lambda *_: Alignment("staged"))
    flows.put(1_000)
    job = flows.job(kind=kind, delivery=delivery, workers=2)
    job.run()
    flows.assert_exact(job)


def test_a_sink_that_writes_through_refuses_barriers_that_overtake(flows: Any, kafka_topic: Any) -> None:
    flows.put(10)
    process = flows.start(flows.job(delivery="keyed", out=kafka_topic(), workers=2, alignment="unaligned"))
    assert process.wait() == 1
    assert "[alignment-write-through]" in process.log.read_text()


@pytest.mark.parametrize(
    ("kind", "alignment", "records", "at_most"),
    [("slow", "unaligned", 3_000, 300), ("numbered", "at_least_once", 400_000, 40_000)],
)
def test_a_savepoint_of_a_running_flow_is_of_an_aligned_epoch(
    flows: Any, kind: str, alignment: str, records: int, at_most: int
) -> None:
    while len(flows.sent) < records:
        flows.put(min(records, 50_000), partitions=3)
    job = flows.job(kind=kind, sleep_s=0.005, workers=2, at_most=at_most, alignment=alignment)
    process = flows.start(job)
    flows.until("SELECT count(*) > 1 FROM onefold_sinks.onefold_epochs WHERE state = 'complete'", [(True,)])
    assert (flights(flows) > 0) == (alignment == "unaligned")
    pipeline = Pipeline(job.flow(), checkpoint=job.checkpoint, runtime=Engine(workers=2))
    with closing(StoppedPipeline(pipeline, "Nothing was written")) as stopped:
        made = create_of_flow(stopped, "live", str(flows.directory / "saved"))
    assert process.process.poll() is None, "it has ended before"
    kept = [pq.read_table(each) for each in (flows.directory / "saved").rglob("*-value-*.parquet")]
    numbered = sum(sum(table["value.n"].to_pylist()) for table in kept)
    assert sum(made.positions.topics()[flows.topic].values()) == numbered < len(flows.sent)
    assert process.wait() == 0, process.log.read_text()[-3000:]
    flows.assert_exact(job)


def test_verify_of_what_runs_waits_until_nothing_is_in_flight(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(kind="slow", sleep_s=0.01, workers=2, goes_on=True, alignment="unaligned")
    process = flows.start(job)
    flows.until("SELECT count(*) > 0 FROM onefold_sinks.onefold_epochs WHERE manifest LIKE '%.flight%'", [(True,)])
    pipeline = Pipeline(job.flow(), checkpoint=job.checkpoint, runtime=Engine(workers=2))
    (told,) = verify(pipeline, key=("id",), expect="SELECT id, account FROM source").values()
    assert told.is_exact, told
    process.process.terminate()
    assert process.wait() == 0, process.log.read_text()[-3000:]


def test_a_savepoint_and_others_are_refused_while_records_are_in_flight(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(kind="slow", sleep_s=0.02, workers=2, alignment="unaligned")
    process = flows.start(job, "engine:begun#3")
    process.held()
    process.kill()
    assert flights(flows) > 0
    pipeline = Pipeline(job.flow(), checkpoint=job.checkpoint, runtime=Engine(workers=2))
    with closing(StoppedPipeline(pipeline, "Nothing was changed")) as stopped:
        with raises(ConfigError, "epoch-in-flight", "Nothing was changed"):
            create_of_flow(stopped, None, job.checkpoint)
        with raises(ConfigError, "epoch-in-flight"):
            change_sinks(stopped, stopped.facts(), [], (), "why")
        with raises(ConfigError, "epoch-in-flight", "Nothing was changed"):
            move(stopped, ["latest"], "why", take_over=True, ask=lambda *_: None)
    with raises(ConfigError, "epoch-in-flight"):
        SavepointBuilder(pipeline).of_checkpoint(job.checkpoint)
    with raises(ConfigError, "epoch-in-flight", "Nothing was verified"):
        verify(pipeline, key=("id",), expect="SELECT id, account FROM source")
    on_spark = flows.start(replace(job, runtime="spark"))
    assert on_spark.wait() == 1 and "[epoch-in-flight]" in on_spark.log.read_text()
    flows.finish(job)
    flows.assert_exact(job)
    with closing(StoppedPipeline(pipeline, "Nothing was changed")) as stopped:
        assert create_of_flow(stopped, None, job.checkpoint).flow is not None

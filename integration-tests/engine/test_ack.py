"""Flows with mechanism="ack": what acknowledgement gives, and what it loses."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from harness.definitions import named

from onefold.cli.commands.doctor import doctor
from onefold.operate.verify import verify
from onefold.pipeline import Engine, Pipeline

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def rest(flows: Any) -> None:
    """Wait until it begins no further epoch."""
    epochs, at_s = -1, time.monotonic()
    while time.monotonic() < at_s + 2.0:
        now = flows.sql("SELECT count(*) FROM onefold_sinks.onefold_epochs")[0][0]
        if now != epochs:
            epochs, at_s = now, time.monotonic()
        time.sleep(0.1)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["rows", "numbered", "totals"])
def test_a_bounded_flow_without_kills_ends_and_is_exact(flows: Any, kind: str, workers: int) -> None:
    flows.put(3_000)
    job = flows.job(kind=kind, workers=workers, mechanism="ack", at_most=100_000)
    flows.finish(job)
    flows.assert_exact(job)


def test_operators_behind_each_other_and_several_sinks_have_what_barriers_give(flows: Any) -> None:
    flows.put(2_000)
    for name, mechanism in (("a", "ack"), ("b", "barriers")):
        folder = str(flows.directory / name)
        flows.finish(flows.job(kind="all", workers=2, name=name, mechanism=mechanism, at_most=500, checkpoint=folder))
    for table, order in {"plain": "id", "parts": "id, text", "even": "id", "totals": "account"}.items():
        kept = "account, total, records, mean, least" if table == "totals" else "*"
        given, wanted = (flows.sql(f"SELECT {kept} FROM {name}_{table} ORDER BY {order}") for name in "ab")
        assert given == wanted and given, table


def test_bad_records_are_put_aside_once_each(flows: Any) -> None:
    flows.put(200)
    flows.produce(flows.topic, [b"no JSON", b"[]"])
    job = flows.job(kind="letters", workers=2, mechanism="ack")
    flows.finish(job)
    flows.assert_exact(job)
    assert flows.sql("SELECT count(*) FROM letters") == [(2,)]


def test_a_flow_that_is_asked_to_end_and_started_again_is_exact(flows: Any) -> None:
    flows.put(2_000)
    job = flows.job(workers=2, mechanism="ack", goes_on=True, epoch_interval_s=0.5)
    process = flows.start(job)
    flows.until("SELECT count(*) > 0 FROM rows", [(True,)])
    flows.put(2_000)
    time.sleep(0.2)
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0, process.log.read_text()[-3000:]
    flows.finish(replace(job, goes_on=False))
    flows.assert_exact(job)


def test_a_worker_that_is_killed_is_replaced_and_no_record_is_lost(flows: Any) -> None:
    flows.put(4_000)
    job = flows.job(workers=2, mechanism="ack")
    process = flows.start(job, "writers:prepared#2")
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "[worker-lost]" in process.log.read_text()
    assert flows.sql("SELECT DISTINCT id FROM rows ORDER BY id") == [(id_,) for id_, _, _ in flows.sent]


def test_ack_doubles_rows_and_loses_totals_after_a_kill(flows: Any) -> None:
    flows.put(2_000)
    job = flows.job(workers=2, mechanism="ack")
    process = flows.start(job, "engine:begun#2")  # the rows of the first are committed, and positions are to move
    process.held()
    process.kill()
    written = flows.sql("SELECT count(*) FROM rows")[0][0]
    assert written > 0
    flows.finish(job)
    assert flows.sql("SELECT DISTINCT id FROM rows ORDER BY id") == [(id_,) for id_, _, _ in flows.sent]  # none is lost
    assert flows.sql("SELECT count(*) FROM rows") == [(2_000 + written,)]

    with psycopg.connect(flows.url, autocommit=True) as connection:
        connection.execute("DROP TABLE rows")
    totals = replace(job, kind="totals", name="totals", goes_on=True)
    process = flows.start(totals)
    flows.until("SELECT sum(records)::int FROM rows", [(2_000,)])
    rest(flows)  # its positions are where all was merged
    process.kill()
    flows.put(700)
    flows.finish(replace(totals, goes_on=False))
    assert flows.sql("SELECT sum(records)::int FROM rows") == [(700,)]  # of those alone that came since


def test_another_mechanism_than_before_is_refused_by_name(flows: Any) -> None:
    flows.put(100)
    job = flows.job(mechanism="ack")
    flows.finish(job)
    process = flows.start(replace(job, mechanism="barriers"))
    assert process.wait() == 1
    assert "[mechanism-changed]" in process.log.read_text()


def test_a_sink_that_shows_rows_before_they_are_decided_is_refused_by_name(flows: Any, kafka_topic: Any) -> None:
    flows.put(100)
    process = flows.start(flows.job(mechanism="ack", delivery="keyed", out=kafka_topic(partitions=1)))
    assert process.wait() == 1
    assert "[mechanism-write-through]" in process.log.read_text()


@pytest.mark.usefixtures("spark")
def test_doctor_and_verify_expect_at_least_once(flows: Any, capfd: pytest.CaptureFixture[str]) -> None:
    flows.put(1_000)
    job = flows.job(workers=2, mechanism="ack")
    flow = replace(job, goes_on=True).flow()
    pipeline = Pipeline(flow, runtime=Engine(workers=2, mechanism="ack"), checkpoint=job.checkpoint)
    doctor(named(pipeline))
    said = capfd.readouterr().out
    assert "does not hold: no-duplicate (with mechanism ack records come again after a crash)" in said
    assert "caution mechanism ack: at least once" in said and "every record is there at least once" in said

    process = flows.start(job, "engine:begun#2")
    process.held()
    process.kill()
    flows.finish(job)
    (found,) = verify(pipeline, key=("id",)).values()
    assert found.is_exact and found.comparison.duplicated > 0 and found.comparison.lost == 0
    assert any("at least once" in note for note in found.comparison.notes)
    with psycopg.connect(flows.url, autocommit=True) as connection:
        connection.execute("DELETE FROM rows WHERE id = 17")
        once = "SELECT min(id) FROM (SELECT id FROM rows GROUP BY id HAVING count(*) = 1) AS once"
        connection.execute(f"UPDATE rows SET n = -1 WHERE id = ({once})".encode())
    (found,) = verify(pipeline, key=("id",)).values()
    assert not found.is_exact and (found.comparison.lost, found.comparison.changed) == (1, 1)


def test_what_comes_of_a_function_that_raises_is_a_restart_as_often_as_it_is_allowed(flows: Any) -> None:
    flows.put(400)
    flows.produce(flows.topic, [b'{"id":400,"account":1,"n":null}'])
    process = flows.start(flows.job(kind="failing", workers=2, mechanism="ack", restarts=2))
    assert process.wait() == 1
    said = process.log.read_text()
    assert "[restarts-exhausted]" in said and said.count("the workers start again") == 2

"""Flows under transactions: whatever is killed, each bundle has happened once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.disks import small_disk
from harness.kafka.reading import Reader
from harness.support import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

_IN_HOPS = ("hop:processed#3", "hop:written#4", "hop:committed#5")
_IN_EPOCHS = ("writers:written#2", "writers:prepared#2")
_OF_DRIVER = ("engine:begun#2", "before:Decide#2", "after:Decide#1", "before:WriteLedger#1")


def assert_tosses_agree(flows: Any, job: Any) -> None:
    """What a function made by chance came to both sinks, once."""
    assert flows.sql("SELECT id, account, n FROM rows ORDER BY id") == flows.sent
    of_rows = "SELECT account, sum(toss), count(*) FROM rows GROUP BY account ORDER BY account"
    assert flows.sql("SELECT account, total, records FROM totals ORDER BY account") == flows.sql(of_rows)
    flows.assert_exact(replace(job, kind="rows"))


def assert_exact(flows: Any, job: Any) -> None:
    if job.kind == "tossed":
        assert_tosses_agree(flows, job)
    else:
        flows.assert_exact(job)


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
@pytest.mark.parametrize("kind", ["numbered", "totals", "tossed"])
def test_a_flow_of_hops_is_exact_and_a_further_start_of_it_changes_nothing(flows: Any, kind: str, state: str) -> None:
    flows.put(3_000)
    job = flows.job(kind=kind, mechanism="transaction", workers=2, state=state)
    flows.finish(job)
    assert_exact(flows, job)
    flows.finish(job)
    assert_exact(flows, job)


@pytest.mark.parametrize("place", [*_IN_HOPS, *_IN_EPOCHS])
@pytest.mark.parametrize(("kind", "state"), [("numbered", "memory"), ("totals", "rocksdb"), ("tossed", "memory")])
def test_a_worker_that_is_killed_goes_on_from_its_database(flows: Any, kind: str, state: str, place: str) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, mechanism="transaction", workers=2, state=state)
    process = flows.start(job, place)
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "[worker-lost]" in process.log.read_text()
    assert_exact(flows, job)


@pytest.mark.parametrize("place", [*_OF_DRIVER, *_IN_HOPS])
@pytest.mark.parametrize(("kind", "delivery"), [("tossed", "two_phase"), ("totals", "staged"), ("numbered", "direct")])
def test_a_driver_that_is_killed_with_all_its_workers_goes_on_from_their_databases(
    flows: Any, kind: str, delivery: str, place: str
) -> None:
    flows.put(1_000)
    job = flows.job(kind=kind, delivery=delivery, mechanism="transaction", workers=2, at_most=100)
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(replace(job, at_most=170))
    assert_exact(flows, job)


@pytest.mark.parametrize("delay_s", [0.0, 0.2, 0.5, 0.9])
def test_a_kill_at_any_time_leaves_every_row_once(flows: Any, delay_s: float) -> None:
    flows.put(4_000)
    job = flows.job(kind="tossed", mechanism="transaction", workers=2, at_most=100)
    for turn in range(2):
        process = flows.start(job, "engine:begun#2")
        process.held()
        process.release()
        time.sleep(delay_s)
        if turn:
            process.workers()[-1].kill()
            time.sleep(delay_s)
        process.kill()
    flows.finish(job)
    assert_exact(flows, job)


@pytest.mark.parametrize("place", ["hop:committed#2", "writers:prepared#2", "before:WriteLedger#3"])
def test_a_sink_that_writes_through_has_each_record_with_one_value(
    flows: Any, kafka_topic: Callable[..., str], place: str
) -> None:
    flows.put(1_000)
    out = kafka_topic(partitions=2)
    job = flows.job(delivery="keyed", out=out, mechanism="transaction", workers=2)
    process = flows.start(job, place)
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    process.wait()
    flows.finish(job)
    values: dict[Any, set[Any]] = {}
    for record in Reader(flows.servers, out, 2).read():
        values.setdefault(record.key(), set()).add(record.value())
    assert {len(each) for each in values.values()} == {1}
    rows = [json.loads(value) for (value,) in values.values()]
    assert sorted((row["id"], row["account"], row["n"]) for row in rows) == flows.sent


def test_bad_records_become_dead_letters_once_also_after_a_kill_in_the_middle_of_a_split(flows: Any) -> None:
    flows.put(500)
    flows.produce(flows.topic, [b'{"id":%d' % number for number in range(10)])
    flows.put(500)
    job = flows.job(kind="letters", mechanism="transaction", workers=2)
    process = flows.start(job, "hop:written#2")
    process.held()
    process.kill()
    flows.finish(job)
    assert_exact(flows, job)
    bad = [(f'{{"id":{number}',) for number in range(10)]
    assert flows.sql("SELECT convert_from(value, 'UTF8') FROM letters ORDER BY 1") == bad


def test_files_are_read_once_and_broadcast_rows_come_back_with_the_state(flows: Any, tmp_path: Path) -> None:
    flows.put_files(tmp_path / "rules", 7)
    rules = [b'{"account":%d,"factor":%d}' % (a, a + 2) for a in range(7)]
    for number, path in enumerate(sorted((tmp_path / "rules").iterdir())):
        path.write_bytes(b"\n".join(rules[number::4]) + b"\n")
    flows.sent.clear()
    job = flows.job(kind="ruled", mechanism="transaction", workers=2, other=str(tmp_path / "rules"), goes_on=True)
    process = flows.start(job)
    read = Path(job.checkpoint) / "job/hops/1/hops.db"

    def has_read() -> bool:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{read}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT value FROM kept WHERE name LIKE 'taken %/%/1'").fetchall()
            return sum(json.loads(value)[0] for (value,) in found) >= 4
        return False

    wait_until(has_read, "the second worker has the rules")
    process.kill()
    flows.assert_rules_are_kept(job)


def test_a_second_run_beside_the_first_is_refused_and_a_paused_one_keeps_its_databases(flows: Any) -> None:
    flows.put(1_000)
    job = flows.job(kind="totals", mechanism="transaction", workers=2)
    first = flows.start(job, "engine:begun#2")
    first.held()
    second = flows.start(job)
    assert second.wait() == 1
    assert "[hops-in-use]" in second.log.read_text().splitlines()[-1]
    first.release()
    assert first.wait() == 0, first.log.read_text()[-3000:]
    assert_exact(flows, job)


def test_a_function_that_always_raises_ends_the_flow_after_its_restarts(flows: Any) -> None:
    flows.put(1_000)
    process = flows.start(flows.job(kind="raising", mechanism="transaction", workers=2))
    assert process.wait() == 1
    assert "[restarts-exhausted]" in process.log.read_text().splitlines()[-1], process.log.read_text()[-2000:]
    assert process.log.read_text().count("start again in") == 3


def test_another_number_of_workers_is_refused_and_another_function_is_not(flows: Any) -> None:
    flows.put(500)
    job = flows.job(kind="totals", mechanism="transaction", workers=2)
    flows.finish(job)
    process = flows.start(replace(job, workers=3))
    assert process.wait() == 1
    assert "[hops-changed]" in process.log.read_text().splitlines()[-1]
    other = flows.start(replace(job, mechanism="barriers"))
    assert other.wait() == 1
    assert "[mechanism-changed]" in other.log.read_text().splitlines()[-1]
    flows.finish(job)
    assert_exact(flows, job)


def test_databases_that_are_lost_or_older_than_the_store_are_named_and_nothing_is_written(flows: Any) -> None:
    flows.put(500)
    job = flows.job(kind="totals", mechanism="transaction", workers=2)
    flows.finish(job)
    before = flows.sql("SELECT account, total, records FROM rows ORDER BY account")
    hops = Path(job.checkpoint) / "job/hops"
    hops.rename(hops.with_name("aside"))
    lost = flows.start(job)
    assert lost.wait() == 1
    assert "[hops-lost]" in lost.log.read_text().splitlines()[-1]
    shutil.rmtree(hops)
    hops.with_name("aside").rename(hops)
    content = (hops / "0/hops.db").read_bytes()
    (hops / "0/hops.db").unlink()
    one_lost = flows.start(job)
    assert one_lost.wait() == 1
    assert "[hops-lost]" in one_lost.log.read_text().splitlines()[-1]
    (hops / "0/hops.db").write_bytes(content)
    flows.finish(job)
    (hops / "0/hops.db").write_bytes(b"\0" * 4096)
    damaged = flows.start(job)
    assert damaged.wait() == 1
    assert "[hops-damaged]" in damaged.log.read_text().splitlines()[-1]
    assert flows.sql("SELECT account, total, records FROM rows ORDER BY account") == before


def test_a_full_disk_is_waited_for_and_nothing_is_lost(flows: Any) -> None:
    flows.put(2_000)
    with small_disk(2) as disk:
        job = replace(flows.job(kind="totals", mechanism="transaction", at_most=200), checkpoint=str(disk.folder / "c"))
        process = flows.start(job, "hop:written#3")
        process.held()
        disk.fill()
        process.release()
        wait_until(lambda: "hops-disk-full" in process.log.read_text(), "a full disk is named")
        disk.make_room()
        assert process.wait() == 0, process.log.read_text()[-3000:]
        assert_exact(flows, job)


def test_a_checkpoint_that_is_elsewhere_or_no_folder_is_refused(flows: Any) -> None:
    flows.put(10)
    job = flows.job(kind="totals", mechanism="transaction")
    elsewhere = flows.start(replace(job, checkpoint="s3://bucket/flows"))
    assert elsewhere.wait() == 1
    assert "[mechanism-local-disk]" in elsewhere.log.read_text().splitlines()[-1]
    (Path(job.checkpoint) / "job").mkdir(parents=True)
    (Path(job.checkpoint) / "job/hops").write_text("")
    refused = flows.start(job)
    assert refused.wait() == 1
    assert "[hops-refused]" in refused.log.read_text().splitlines()[-1], refused.log.read_text()[-1500:]


def test_what_waits_between_hops_is_bounded_while_a_sink_is_away(flows: Any, postgres_server: Any) -> None:
    flows.put(20_000)
    job = flows.job(kind="rows", mechanism="transaction", at_most=50)
    process = flows.start(job, "engine:begun#2")
    process.held()
    postgres_server.kill()
    try:
        process.release()
        time.sleep(6.0)
        database = sqlite3.connect(Path(job.checkpoint) / "job/hops/0/hops.db")
        (waiting,) = database.execute("SELECT count(*) FROM outbox").fetchone()
        assert 0 < waiting <= 260
    finally:
        postgres_server.start()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert_exact(flows, job)

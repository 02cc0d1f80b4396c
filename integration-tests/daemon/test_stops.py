"""`onefold run` told to stop again and again, at any moment, with more to do than it gets done."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time

import pytest
from harness.daemons import SQL, Start, is_whole, jvm_of, producing, verify, write
from harness.support import Rig

from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = [pytest.mark.servers, pytest.mark.soak]
CYCLES = int(os.environ.get("ONEFOLD_STOPS", "3"))
PARTITIONS = 4
TABLES = ("direct", "spark")  # also the pipelines' names


def completed(rig: Rig, pipeline: str) -> dict[int, int]:
    """The position of each partition at which the pipeline's last epoch ended."""
    store = CheckpointStore(PostgresSink(rig.url, pipeline).store_url() or "")
    try:
        complete = store.facts(pipeline).complete
        return {} if complete is None else complete.range.end.topics().get(rig.topic, {})
    finally:
        store.close()


def assert_as_far_as_it_came(rig: Rig, table: str) -> int:
    """The table has each record below the pipeline's positions, once: record i is at i // 4 of partition i % 4."""
    query = f"SELECT id % {PARTITIONS}, count(*), count(DISTINCT id), max(id) FROM {table} GROUP BY 1"
    found = {number: tuple(map(int, rest)) for number, *rest in rig.sql(query)}
    positions = {number: end for number, end in completed(rig, table).items() if end}
    assert found == {number: (end, end, PARTITIONS * (end - 1) + number) for number, end in positions.items()}
    return sum(positions.values())


def test_each_stop_under_load_ends_with_0_and_exactly(rig: Rig, start: Start) -> None:
    files = [
        write(rig, tables, name=name, table=name, at_most=5000) for name, tables in zip(TABLES, ("", SQL), strict=True)
    ]
    chance = random.Random(17)
    codes: list[int] = []
    took_s: list[float] = []
    with producing(rig, 200):
        for cycle in range(CYCLES):
            daemon = start(*files)
            if cycle % 5 == 4:  # somewhere in its start
                daemon.until(lambda it=daemon: jvm_of(it) is not None, "a JVM")
                time.sleep(chance.uniform(0, 10))
            else:
                daemon.until(lambda it=daemon: it.epochs() >= 2, "two epochs")
                time.sleep(chance.uniform(0, 3))
            began_s = time.monotonic()
            daemon.process.send_signal(signal.SIGTERM)
            codes.append(daemon.wait())
            took_s.append(time.monotonic() - began_s)
            assert codes[-1] == 0, daemon.text()
            written = [assert_as_far_as_it_came(rig, table) for table in TABLES if completed(rig, table)]
            assert all(is_whole(rig, table) for table in TABLES if completed(rig, table))
            print(f"cycle {cycle}: exit {codes[-1]} after {took_s[-1]:.2f} s, rows {written}", flush=True)
    last = start(*files)
    sent = len(rig.sent)
    last.until(lambda: min(sum(completed(rig, table).values()) for table in TABLES) >= sent, f"{sent} rows", 400)
    last.process.send_signal(signal.SIGTERM)
    assert last.wait() == 0, last.text()
    assert [assert_as_far_as_it_came(rig, table) for table in TABLES] == [sent, sent]
    for file in files:
        verify(file)
    spread = (min(took_s), statistics.median(took_s), max(took_s))
    print(
        f"{CYCLES} stops: exit codes {set(codes)}, {sent} rows in each table, stopped after min {spread[0]:.2f} s,"
        f" median {spread[1]:.2f} s, max {spread[2]:.2f} s"
    )

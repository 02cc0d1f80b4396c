"""Windows from Kafka into Postgres, killed at named places and started again with others: what a plain model says."""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from timed_rows import time_of
from window_model import Model, Partitions, Row

from onefold.core import EpochState
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SECOND = 1_000_000
PARTITIONS = 4


class ById(Partitions):
    """As the job has it."""

    def reached_by(self, row: Sequence[Any]) -> int:
        return int(row[3]) * SECOND


def model(*, is_discarding: bool) -> Model:
    size, lateness = 20 * SECOND, 30 * SECOND
    return Model(size, size, 0, lateness, is_discarding=is_discarding, is_keyed=True, times=ById(0, None))


def expected(flows: Any, job: Any, *, is_discarding: bool) -> tuple[list[Row], list[Row]]:
    """All firings and late rows of the epochs as they were cut."""
    made, results, late = model(is_discarding=is_discarding), [], []
    with closing(CheckpointStore(PostgresSink(flows.url, "rows").store_url() or "")) as store:
        epochs = sorted(store.history(job.name), key=lambda record: record.epoch)
    for record in (each for each in epochs if each.state is EpochState.COMPLETE):
        start, end = dict(record.range.start.items), dict(record.range.end.items)
        rows = {}
        for name, at in end.items():
            partition = int(name.rpartition("/")[2])
            sent = flows.sent[partition::PARTITIONS][start.get(name, 0) : at]
            rows[name] = [(account, time_of(id_ - n // 16), n, id_) for id_, account, n in sent]
        is_last = sum(end.values()) == len(flows.sent)
        fired, too_late = made.epoch(rows, record.timestamp_ms / 1_000, is_last)
        results += fired
        late += too_late
    return results, late


def assert_exact(flows: Any, job: Any) -> None:
    whole, late = expected(flows, job, is_discarding=False)
    parts, _ = expected(flows, job, is_discarding=True)
    assert late and any(row["emission"] > 1 for row in whole), "the records are late enough to show it"
    newest = {(row["key"], row["window_start"]): told(row) for row in whole}
    columns = "account, window_start, total, records, emission"
    assert Counter(flows.sql(f"SELECT {columns} FROM rows")) == Counter(newest.values())
    assert Counter(flows.sql(f"SELECT {columns} FROM parts")) == Counter(map(told, parts))
    of = {id_: (account, n) for id_, account, n in flows.sent}
    found = [of[id_] for (id_,) in flows.sql("SELECT id FROM late")]
    assert Counter(found) == Counter((row["key"], row["amount"]) for row in late)
    assert sum(row["n"] for row in parts) + len(late) == len(flows.sent)


def told(row: Row) -> tuple[Any, ...]:
    start: dt.datetime = row["window_start"]
    return row["key"], start.replace(tzinfo=None), row["total"], row["n"], row["emission"]


@pytest.mark.parametrize(
    ("state", "place"),
    [("memory", "before:Decide#3"), ("rocksdb", "after:Decide#3"), ("memory", "before:Commit#3")],
)
def test_case_81_windows_are_exact_after_a_driver_is_killed_and_others_go_on(
    flows: Any, state: str, place: str
) -> None:
    flows.put(1_500)
    job = flows.job(kind="late", state=state, workers=2)
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(replace(job, workers=3, at_most=220))
    assert_exact(flows, job)


def test_windows_are_exact_after_a_worker_is_killed(flows: Any) -> None:
    flows.put(1_500)
    job = flows.job(kind="late", workers=2)
    process = flows.start(job, "before:StoreState#3")
    os.kill(process.held()[0], signal.SIGKILL)
    process.release()
    assert process.wait() == 0, process.log.read_text()[-3000:]
    assert "late rows (parts, whole)" in process.log.read_text()
    assert_exact(flows, job)

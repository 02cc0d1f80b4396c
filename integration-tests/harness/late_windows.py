"""What a plain model says of windows whose rows come late: of the epochs of a job of the kind "late", as they were
cut."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from timed_rows import time_of
from window_model import Model, Partitions, Row

from onefold.core import EpochState
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["assert_exact"]

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
        start, end = (dict(at.of_records().items) for at in (record.range.start, record.range.end))
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
    assert Counter(flows.sql(f"SELECT {columns} FROM elements")) == Counter(map(told, whole))
    of = {id_: (account, n) for id_, account, n in flows.sent}
    found = [of[id_] for (id_,) in flows.sql("SELECT id FROM late")]
    assert Counter(found) == Counter((row["key"], row["amount"]) for row in late)
    assert sum(row["n"] for row in parts) + len(late) == len(flows.sent)


def told(row: Row) -> tuple[Any, ...]:
    start: dt.datetime = row["window_start"]
    return row["key"], start.replace(tzinfo=None), row["total"], row["n"], row["emission"]

"""Reads along in the checkpoint store while the pipeline runs: every epoch's states, and what a reader would see."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import psycopg

from onefold.connectors.torture.history import History
from onefold.connectors.torture.settings import PIPELINE
from onefold.connectors.workload.settings import TABLE, Job
from onefold.core import EpochRecord, EpochState, OnefoldError
from onefold.core.invariants import Glimpse, Transition
from onefold.core.store import KEEP_EPOCHS, CheckpointStore

__all__ = ["View", "Watcher"]

View = tuple[tuple[int, int], ...]  # the rows of a table of versions: key and version

EVERY_S = 0.4
RECENT = 20
_DECIDED = (EpochState.DECIDED, EpochState.COMPLETE)
_LAST_DECIDED = "FROM onefold_epochs WHERE pipeline = %s AND state IN ('decided', 'complete')"
_COUNTED = (
    f"SELECT (SELECT count(*) FROM {TABLE}), max(epoch), (array_agg(rows ORDER BY epoch DESC))[1] {_LAST_DECIDED}"
)
_COUNTED_WITH_DEAD = _COUNTED.replace(
    f"FROM {TABLE})",
    f"FROM {TABLE}) + (SELECT count(*) FROM onefold_sinks.onefold_dead_letters)",
)
_VERSIONS = f"""
SELECT (SELECT array_agg(id ORDER BY id) FROM {TABLE}), (SELECT array_agg(version ORDER BY id) FROM {TABLE}), max(epoch)
{_LAST_DECIDED}
"""


@dataclass
class Watcher:
    """What was seen of each epoch, also of those that the store has pruned since."""

    job: Job
    history: History
    records: dict[int, EpochRecord] = field(default_factory=dict)
    transitions: list[Transition] = field(default_factory=list)
    glimpses: set[Glimpse] = field(default_factory=set)
    views: dict[tuple[int, int], View] = field(default_factory=dict)  # by epoch and content, not judged yet
    _looked_s: float = 0.0

    def __post_init__(self) -> None:
        url = self.job.sink().store_url()
        assert url is not None
        self._store = CheckpointStore(url, lock_timeout_s=2.0)

    @property
    def complete(self) -> int:
        """The last complete epoch's number."""
        return max((r.epoch for r in self.records.values() if r.state is EpochState.COMPLETE), default=0)

    def tick(self) -> None:
        """Look, if it is time. A server that is down is looked at again later."""
        now_s = time.monotonic()
        if now_s - self._looked_s < EVERY_S:
            return
        self._looked_s = now_s
        try:
            self.look(RECENT)
            if self.job.delivery == "staged":
                self._glimpse()
        except (OnefoldError, psycopg.Error):
            self._store.close()

    def look(self, limit: int = KEEP_EPOCHS) -> None:
        """Take over what the store says of the newest epochs. Raises OnefoldError."""
        for record in self._store.history(PIPELINE, limit):
            before = self.records.get(record.epoch)
            self.records[record.epoch] = record
            if before is None or before.state is not record.state:
                self._passed(record, before.state if before else None)

    def close(self) -> None:
        self._store.close()

    def _passed(self, record: EpochRecord, before: EpochState | None) -> None:
        if record.state is EpochState.COMPLETE and before is not EpochState.DECIDED:
            self.transitions.append(Transition(record.epoch, EpochState.DECIDED))  # it was, while nobody looked
        self.transitions.append(Transition(record.epoch, record.state))
        self.history.write(
            "epoch",
            epoch=record.epoch,
            generation=record.generation,
            state=record.state.value,
            rows=record.rows,
            start=dict(record.range.start.items),
            end=dict(record.range.end.items),
        )

    def _glimpse(self) -> None:
        """In one snapshot: the table, and how many rows of the last decided epoch are in it beyond those before."""
        query = _COUNTED_WITH_DEAD if self.job.bad_rows else _COUNTED
        with psycopg.connect(self.job.postgres_url, connect_timeout=2, application_name="torture") as connection:
            connection.execute("SET statement_timeout = 2000")
            row = connection.execute(
                (_VERSIONS if self.job.mode == "upsert" else query).encode(), (PIPELINE,)
            ).fetchone()
        assert row is not None
        if self.job.mode == "upsert":
            keys, versions, last = row
            view = tuple(zip(keys or (), versions or (), strict=True))
            if last is not None:
                self.views[last, hash(view)] = view
            return
        seen, last, rows_whole = row
        if last not in self.records:
            return
        before = sum(r.rows for r in self.records.values() if r.epoch < last and r.state in _DECIDED)
        self.glimpses.add(Glimpse(TABLE, last, seen - before, rows_whole))

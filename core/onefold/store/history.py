"""A pipeline's epochs as the checkpoint store has them, read beside the driver that writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from onefold.clients.sql.database import Transaction
from onefold.core.contract import MOVED, EpochRecord, EpochState
from onefold.core.errors import OnefoldError
from onefold.core.invariants import ADOPTED
from onefold.core.positions import Positions
from onefold.core.source import Journal
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.journal import StoreJournal
from onefold.store.savepoint_notes import MADE, RESTORED, SavepointNote
from onefold.store.store_rows import pipeline_row, record_of

_ALL = "SELECT * FROM onefold_epochs WHERE pipeline = %(pipeline)s"


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """An epoch with its times, in ms since 1970 by the driver's clock, and the evidence of its damage."""

    record: EpochRecord
    bytes: int
    opened_ms: int | None
    decided_ms: int | None
    completed_ms: int | None
    error: str | None

    @property
    def duration_s(self) -> float | None:
        """From its opening to its completion; of one that writes through from its first opening, across crashes."""
        return _between_s(self.opened_ms, self.completed_ms)

    @property
    def commit_s(self) -> float | None:
        """From its decision to its completion in every sink."""
        return _between_s(self.decided_ms, self.completed_ms)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The status of a pipeline, as its store has it. Of the epochs that the store keeps, `counts` has how many are in
    each state, and `starts` by how many starts of a query they were opened: each start has a generation of its own."""

    generation: int
    frozen: Positions | None
    counts: Mapping[EpochState, int]
    starts: int
    complete: StoredEpoch | None  # the last one
    failed: StoredEpoch | None  # the last one that was given up or is damaged
    unfinished: tuple[StoredEpoch, ...]  # open or decided
    savepoint: SavepointNote | None  # the last one that was made
    restored: SavepointNote | None  # the last one that was restored into it

    @property
    def positions(self) -> Positions | None:
        """What is complete in every sink ends here; None before the first start."""
        return self.frozen if self.complete is None else self.complete.record.range.end


class History:
    """Reads a store through connections of its own: no call changes anything, or waits for a driver.

    Each call raises `Retriable` where the store does not answer, `ConfigError` where it cannot be read.
    """

    def __init__(self, url: str, within_s: float) -> None:
        self._store = CheckpointStore(url, lock_timeout_s=within_s, reads_only=True)

    def close(self) -> None:
        self._store.close()

    def journal(self, pipeline: str, source: str) -> Journal:
        """That of one of its sources: to be read."""
        return StoreJournal(self._store, pipeline, source, self._store.look())

    def status(self, pipeline: str) -> PipelineStatus | None:
        """None where there is no store yet, or it does not know the pipeline."""
        if self._store.look() is None:
            return None
        of = {"pipeline": pipeline, "moved": MOVED, "adopted": ADOPTED}
        counted = "SELECT state, count(*) AS epochs FROM onefold_epochs WHERE pipeline = %(pipeline)s GROUP BY state"
        started = (
            "SELECT count(DISTINCT generation) AS starts FROM onefold_epochs WHERE pipeline = %(pipeline)s"
            " AND query_id NOT IN (%(moved)s, %(adopted)s)"
        )
        last = f"{_ALL} AND state IN ({{}}) ORDER BY epoch DESC LIMIT 1"
        with self._store.database.transaction() as transaction:
            row = pipeline_row(transaction, pipeline)
            if row is None:
                return None
            savepoints = _savepoints(transaction, pipeline)
            return PipelineStatus(
                generation=row.generation,
                frozen=Positions.from_json(row.frozen) if row.frozen else None,
                counts={EpochState(state): count for state, count in transaction.rows(counted, of)},
                starts=transaction.rows(started, of)[0].starts,
                complete=next(iter(_found(transaction, last.format("'complete'"), of)), None),
                failed=next(iter(_found(transaction, last.format("'given_up', 'damaged'"), of)), None),
                unfinished=tuple(_found(transaction, f"{_ALL} AND state IN ('open', 'decided')", of)),
                savepoint=savepoints.get(MADE),
                restored=savepoints.get(RESTORED),
            )

    def epochs(self, pipeline: str, limit: int, before: int | None = None) -> list[StoredEpoch]:
        """The newest epochs, with lower numbers than `before`; the newest first."""
        older = "" if before is None else " AND epoch < %(before)s"
        query = f"{_ALL}{older} ORDER BY epoch DESC LIMIT %(limit)s"
        return self._read(query, {"pipeline": pipeline, "limit": limit, "before": before})

    def completed(self, pipeline: str, after: int, from_generation: int, limit: int) -> list[StoredEpoch]:
        """The complete epochs with higher numbers than `after`, of these generations; the oldest first."""
        query = (
            f"{_ALL} AND epoch > %(after)s AND state = 'complete' AND generation >= %(generation)s"
            " ORDER BY epoch LIMIT %(limit)s"
        )
        values = {"pipeline": pipeline, "after": after, "generation": from_generation, "limit": limit}
        return self._read(query, values)

    def epoch(self, pipeline: str, number: int) -> StoredEpoch | None:
        """None where the store does not know it, or no longer does."""
        found = self._read(f"{_ALL} AND epoch = %(epoch)s", {"pipeline": pipeline, "epoch": number})
        return next(iter(found), None)

    def _read(self, query: str, values: Mapping[str, Any]) -> list[StoredEpoch]:
        if self._store.look() is None:
            return []
        with self._store.database.transaction() as transaction:
            return _found(transaction, query, values)


def _between_s(start_ms: int | None, end_ms: int | None) -> float | None:
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms) / 1000


def _savepoints(transaction: Transaction, pipeline: str) -> dict[str, SavepointNote]:
    query = "SELECT name, value FROM onefold_pins WHERE pipeline = %(of)s AND name IN (%(made)s, %(restored)s)"
    found = transaction.rows(query, {"of": pipeline, "made": MADE, "restored": RESTORED})
    return {row.name: SavepointNote(**json.loads(row.value)) for row in found}


def _found(transaction: Transaction, query: str, values: Mapping[str, Any]) -> list[StoredEpoch]:
    return [
        StoredEpoch(record_of(row), row.bytes, row.opened_at_ms, row.decided_at_ms, row.completed_at_ms, row.error)
        for row in transaction.rows(query, values)
    ]


def epochs_on_record(url: str, pipeline: str, most: int = 100_000) -> tuple[list[StoredEpoch], list[str]]:
    """The newest epochs, the oldest first. Where the store cannot be read there are none, and it is said why."""
    try:
        with closing(History(url, within_s=10)) as history:
            return history.epochs(pipeline, most)[::-1], []
    except OnefoldError as error:
        return [], [f"the epochs are not known: {error}"]


def slowest_decision_s(store: CheckpointStore, pipeline: str) -> float | None:
    """The longest that one of the epochs that the store still knows took from its opening to its decision.

    One that writes through counts from its first opening on, also where a crash lies between. None before the first.
    """
    longest = "SELECT max(decided_at_ms - opened_at_ms) AS ms FROM onefold_epochs WHERE pipeline = %(pipeline)s"
    with store.database.transaction() as transaction:
        (found,) = transaction.rows(longest, {"pipeline": pipeline})
    return None if found.ms is None else int(found.ms) / 1000

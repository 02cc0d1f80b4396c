"""A pipeline's epochs as the checkpoint store has them, read beside the driver that writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from onefold.core.contract import MOVED, EpochRecord, EpochState
from onefold.core.invariants import ADOPTED
from onefold.core.positions import Positions
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.savepoint_notes import MADE, RESTORED, SavepointNote
from onefold.core.store.store_rows import last_epoch, pipeline_row, record_of
from onefold.core.store.tables import epochs, pins

__all__ = ["History", "Standing", "StoredEpoch"]

_FAILED = (EpochState.GIVEN_UP.value, EpochState.DAMAGED.value)


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
class Standing:
    """Where a pipeline stands. Of the epochs that the store keeps, `counts` has how many are in each state, and
    `starts` by how many starts of a query they were opened: each start has a generation of its own."""

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

    def standing(self, pipeline: str) -> Standing | None:
        """None where there is no store yet, or it does not know the pipeline."""
        if self._store.look() is None:
            return None
        mine = epochs.c.pipeline == pipeline
        of_queries = mine & epochs.c.query_id.not_in((MOVED, ADOPTED))
        started = sa.select(sa.func.count(epochs.c.generation.distinct())).where(of_queries)
        counted = sa.select(epochs.c.state, sa.func.count()).where(mine).group_by(epochs.c.state)
        unfinished = epochs.c.state.in_((EpochState.OPEN.value, EpochState.DECIDED.value))
        with self._store.database.transaction() as connection:
            row = connection.execute(pipeline_row(pipeline)).one_or_none()
            if row is None:
                return None
            complete = last_epoch(connection, pipeline, (EpochState.COMPLETE.value,))
            failed = last_epoch(connection, pipeline, _FAILED)
            savepoints = _savepoints(connection, pipeline)
            return Standing(
                generation=row.generation,
                frozen=Positions.from_json(row.frozen) if row.frozen else None,
                counts={EpochState(state): int(count) for state, count in connection.execute(counted)},
                starts=int(connection.execute(started).scalar_one()),
                complete=_one(connection, pipeline, complete.epoch) if complete else None,
                failed=_one(connection, pipeline, failed.epoch) if failed else None,
                unfinished=tuple(_found(connection, sa.select(epochs).where(mine, unfinished))),
                savepoint=savepoints.get(MADE),
                restored=savepoints.get(RESTORED),
            )

    def epochs(self, pipeline: str, limit: int, before: int | None = None) -> list[StoredEpoch]:
        """The newest epochs, with lower numbers than `before`; the newest first."""
        query = sa.select(epochs).where(epochs.c.pipeline == pipeline)
        if before is not None:
            query = query.where(epochs.c.epoch < before)
        return self._read(query.order_by(epochs.c.epoch.desc()).limit(limit))

    def completed(self, pipeline: str, after: int, from_generation: int, limit: int) -> list[StoredEpoch]:
        """The complete epochs with higher numbers than `after`, of these generations; the oldest first."""
        query = sa.select(epochs).where(epochs.c.pipeline == pipeline, epochs.c.epoch > after)
        query = query.where(epochs.c.state == EpochState.COMPLETE.value, epochs.c.generation >= from_generation)
        return self._read(query.order_by(epochs.c.epoch).limit(limit))

    def epoch(self, pipeline: str, number: int) -> StoredEpoch | None:
        """None where the store does not know it, or no longer does."""
        query = sa.select(epochs).where(epochs.c.pipeline == pipeline, epochs.c.epoch == number)
        return next(iter(self._read(query)), None)

    def _read(self, query: sa.Select[Any]) -> list[StoredEpoch]:
        if self._store.look() is None:
            return []
        with self._store.database.transaction() as connection:
            return _found(connection, query)


def _between_s(start_ms: int | None, end_ms: int | None) -> float | None:
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms) / 1000


def _one(connection: sa.Connection, pipeline: str, number: int) -> StoredEpoch | None:
    query = sa.select(epochs).where(epochs.c.pipeline == pipeline, epochs.c.epoch == number)
    return next(iter(_found(connection, query)), None)


def _savepoints(connection: sa.Connection, pipeline: str) -> dict[str, SavepointNote]:
    query = sa.select(pins.c.name, pins.c.value).where(pins.c.pipeline == pipeline, pins.c.name.in_((MADE, RESTORED)))
    return {row.name: SavepointNote(**json.loads(row.value)) for row in connection.execute(query)}


def _found(connection: sa.Connection, query: sa.Select[Any]) -> list[StoredEpoch]:
    return [
        StoredEpoch(record_of(row), int(row.bytes), row.opened_at_ms, row.decided_at_ms, row.completed_at_ms, row.error)
        for row in connection.execute(query)
    ]

"""The checkpoint store, broken in ways that only a crash shows, and in one that its rules show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onefold.clients.sql.database import Transaction
from onefold.clients.sql.database_backend import Answer, Statement
from onefold.core import Committable, Decided, EpochRecord, Generation, Joined, Positions
from onefold.core.protocol.coordinator import Merge
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.store_rows import LOCKED_ROW


class FencesNobody(CheckpointStore):
    """Any generation may do anything."""

    @contextmanager
    def _mine(
        self, generation: Generation, *then: Statement, joined: Joined | None = None
    ) -> Iterator[tuple[Transaction, Any, list[Answer]]]:
        first = LOCKED_ROW, {"pipeline": generation.pipeline}
        with self.database.transaction(first, *then, joined=joined) as transaction:
            locked, *found = transaction.found
            yield transaction, locked.rows[0], found


class MergesFirst(CheckpointStore):
    """The merge has a transaction of its own, before the decision."""

    def decide(
        self,
        generation: Generation,
        record: EpochRecord,
        manifest: Sequence[Committable],
        now_ms: int,
        merge: Merge | None = None,
        completes: Decided | None = None,
    ) -> Decided:
        facts = self.facts(record.pipeline)
        if merge is not None and (facts.last is None or facts.last.epoch < record.epoch):
            with self._mine(generation) as (transaction, _, _):
                merge(transaction.connection)
        return super().decide(generation, record, manifest, now_ms, None, completes)


class AnswersEarly(CheckpointStore):
    """freeze answers at once, and takes effect with the next call."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.later: list[Callable[[], object]] = []

    def freeze(self, generation: Generation, initial: Positions) -> Positions:
        with self._mine(generation):
            self.later.append(lambda: super(AnswersEarly, self).freeze(generation, initial))
        return super().facts(generation.pipeline).frozen or initial

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation:
        self._do_it()
        return super().acquire(pipeline, above, last)

    def facts(self, pipeline: str) -> StoreFacts:
        self._do_it()
        return super().facts(pipeline)

    def open_epoch(
        self,
        generation: Generation,
        request: EpochRequest,
        after: int,
        now_ms: int,
        completes: Decided | None = None,
    ) -> EpochRecord:
        self._do_it()
        return super().open_epoch(generation, request, after, now_ms, completes)

    def _do_it(self) -> None:
        while self.later:
            self.later.pop()()

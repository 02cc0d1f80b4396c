"""The lifecycle of a pipeline in one process: its starts, its epochs and their sweeps, each under a generation."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from onefold.core.checks import present
from onefold.core.contract import EpochRecord
from onefold.core.errors import Fenced, InDoubt, OnefoldError
from onefold.core.protocol.effects import EpochRequest, Protocol, ReadStore, StoreFacts, retry
from onefold.core.protocol.epoch import Initial, Outcome, Started, StoreCache, complete_last, epoch, start, sweep


class Lifecycle:
    """A pipeline's starts, epochs and sweeps in one process. Each call is a protocol that a coordinator runs.

    `sinks` are in the order in which an epoch commits them. Of these, those that `may_come_late` need not have been
    there from the first epoch on.
    """

    HAS_CHECKPOINT: ClassVar[bool] = False  # which is held against the store before anything is swept

    def __init__(
        self,
        pipeline: str,
        sinks: tuple[str, ...],
        may_come_late: Collection[str] = (),
    ) -> None:
        self.pipeline = pipeline
        self.sinks = sinks
        self.started: Started | None = None
        self._may_come_late = may_come_late
        self._is_in_doubt = False  # whether the last epoch's decision may still land
        self.is_swept = False  # since the last start
        self._cache = StoreCache()  # under the generation of the last start

    @property
    def is_at_rest(self) -> bool:
        """Whether the store has the last epoch as complete."""
        return self._cache.committed is None

    def start(
        self, initial: Initial | None, adopt_ledger: bool = False, accept_damage: int | None = None
    ) -> Protocol[Started]:
        """Take over the pipeline: a new generation, recovery, frozen positions. Before every query and batch run."""
        self._cache = StoreCache()
        self.started = yield from start(self.sinks, initial, adopt_ledger, accept_damage, self._may_come_late)
        self._is_in_doubt = self.is_swept = False
        return self.started

    def complete(self) -> Protocol[None]:
        """Where no epoch follows soon: tell the store that the last one is complete."""
        started = present(self.started, "nothing is completed without a start")
        self._cache = yield from complete_last(started.generation, self._cache)

    def complete_beside(self) -> Protocol[None]:
        """Where an epoch runs for long: tell the store that the one before is complete. Its decision tells it again."""
        yield from complete_last(present(self.started, "nothing is completed without a start").generation, self._cache)

    def sweep(self) -> Protocol[int]:
        """Complete the last epoch, then remove what was prepared and no manifest names. Returns how many parts that
        were."""
        started = present(self.started, "no sweep without a start")
        yield from self.complete()
        removed = yield from sweep(started.generation, self.sinks)
        self.is_swept = True
        return removed

    def run_epoch(
        self, request: EpochRequest, runs_max: int = 3, opened: EpochRecord | None = None
    ) -> Protocol[Outcome]:
        """One range, exactly once, under the generation of the last start; the writers run at most `runs_max` times.
        `opened` is the epoch, where it was opened before.

        After an epoch that ended in doubt the next call takes over anew: no decision of the old generation lands then.
        """
        started = present(self.started, "no epoch without a start")
        if self._is_in_doubt:
            facts: StoreFacts = yield from retry(ReadStore())
            fenced = taken_over(
                started, facts, InDoubt("decision-unanswered", "the last epoch's decision went unanswered")
            )
            if fenced is not None:
                raise fenced
            started = yield from self.start(None)
        cache, self._cache = self._cache, StoreCache(None, self._cache.committed)  # the one left if this one fails
        try:
            outcome = yield from epoch(started.generation, started.store_id, request, runs_max, cache, opened)
        except InDoubt:
            self._is_in_doubt = True
            raise
        self._cache = outcome.cache
        if not self.is_swept and not outcome.replayed:  # it took over anew meanwhile
            yield from self.sweep()
        return outcome


def taken_over(started: Started, facts: StoreFacts, because: OnefoldError | None = None) -> Fenced | None:
    """Fenced, if the store knows a newer generation; None if not. `because` is what this process ended with."""
    mine = started.generation
    if facts.generation <= mine.number:
        return None
    told = "" if because is None else f" It ended with: {because.message}"
    return Fenced(
        "taken-over",
        f"generation {mine.number} of pipeline {mine.pipeline!r} was taken over (now: {facts.generation})."
        f" Another process runs this pipeline: stop this one and do not restart it.{told}",
    )

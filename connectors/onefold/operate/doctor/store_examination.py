"""Examines a checkpoint store without changing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from onefold.core import EpochState, LedgerEntry, Positions, Sink
from onefold.core.findings import Finding, Level, tried
from onefold.core.job.targets import check_targets
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.recovery import resolve
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.metrics import slowest_decision_s

__all__ = ["StoreLook"]


class StoreLook:
    """What is known once `at` was read through: which store it is, where the pipeline stands, and how fast it is."""

    def __init__(self, pipeline: str, url: str | None) -> None:
        self.pipeline = pipeline
        self.url = url
        self.store_id: str | None = None
        self.position: Positions | None = None
        self.deciding_s: float | None = None
        self._before: StoreFacts | None = None

    def facts(self) -> StoreFacts | None:
        """The store's facts now; None where there is no store, or none that could be read."""
        if self.store_id is None or self.url is None:
            return None
        with closing(CheckpointStore(self.url, lock_timeout_s=10)) as store:
            return store.facts(self.pipeline)

    def at(self) -> Iterator[Finding]:
        """What the store says, and what a start would check of it."""
        if self.url is None:
            yield Finding(
                Level.UNCHECKED,
                "no checkpoint store is named, and what it knows of the pipeline was not looked at: a pipeline without "
                f"store= keeps it in .onefold/{self.pipeline}.db, which store= names to diagnose() as sqlite:////...",
            )
            return
        with closing(CheckpointStore(self.url, lock_timeout_s=10)) as store:
            where = f"the checkpoint store at {store.database}"
            self.store_id = yield from store.checks()
            if self.store_id is None:
                self._before = StoreFacts("a new one", 0)
                return
            self._before = facts = store.facts(self.pipeline)
            if facts.generation == 0:
                yield Finding(Level.FINE, f"{where} ({self.store_id}) knows no pipeline {self.pipeline!r} yet")
                return
            self.position = facts.last.range.end if facts.last is not None else facts.frozen
            self.deciding_s = slowest_decision_s(store, self.pipeline)
            complete = f"epoch {facts.complete.epoch} is" if facts.complete is not None else "no epoch is"
            yield Finding(Level.FINE, f"{where} ({self.store_id}): {complete} complete, generation {facts.generation}")
            for record in facts.unfinished:
                if record.state is not EpochState.DAMAGED:
                    says = f"epoch {record.epoch} is {record.state.value}: a driver works at it, or the next start"
                    yield Finding(Level.FINE, f"{says} resolves it")

    def target(self, sink: Sink) -> Iterator[Finding]:
        """A caution where the sink's table was emptied. Raises DataLoss where its table or topic is gone, or was made
        anew, under its ledger."""
        if self.store_id is not None and self.url is not None:
            with closing(CheckpointStore(self.url, lock_timeout_s=10)) as store:
                yield from check_targets(store, self.pipeline, [sink])

    def against(self, ledgers: Mapping[str, LedgerEntry | None]) -> Iterator[Finding]:
        """What a start finds where it compares the store with the ledgers of all sinks, which were read since `at`."""
        before = self._before
        if before is None:
            if any(ledgers.values()):
                says = "the sinks have ledgers, which a start compares with its checkpoint store: there is none to read"
                yield Finding(Level.UNCHECKED, says)
        elif self.store_id is not None and before != self.facts():
            says = "a driver went on meanwhile: whether store and ledgers agree is compared at the next start"
            yield Finding(Level.UNCHECKED, says)
        else:
            yield from tried(lambda: resolve(before, ledgers))

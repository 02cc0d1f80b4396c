"""What a checkpoint store says of a pipeline, to those who examine it and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from onefold.core import EpochState, Positions
from onefold.core.findings import Finding, Level
from onefold.core.invariants import NoLoss, ResolveOnce
from onefold.core.protocol.effects import StoreFacts
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.metrics import slowest_decision_s

__all__ = ["StoreLook"]


class StoreLook:
    """What is known once `at` was read through: which store it is, where the pipeline stands, and how fast it is."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.store_id: str | None = None
        self.position: Positions | None = None
        self.deciding_s: float | None = None
        self._url: str | None = None  # of a store that knows the pipeline

    def facts(self) -> StoreFacts | None:
        """As they are now; None where no store says anything of the pipeline."""
        if self._url is None:
            return None
        with closing(CheckpointStore(self._url, lock_timeout_s=10)) as store:
            return store.facts(self.pipeline)

    def at(self, url: str | None) -> Iterator[Finding]:
        if url is None:
            yield Finding(
                Level.CAUTION,
                "no checkpoint store is named, and what it knows of the pipeline was not looked at: a pipeline without "
                f"store= keeps it in .onefold/{self.pipeline}.db (--store sqlite:////...)",
            )
            return
        with closing(CheckpointStore(url, lock_timeout_s=10)) as store:
            where = f"the checkpoint store at {store.database}"
            self.store_id = store.look()
            if self.store_id is None:
                yield Finding(Level.FINE, f"{where} is made by the first start")
                return
            facts = store.facts(self.pipeline)
            if facts.generation == 0:
                yield Finding(Level.FINE, f"{where} ({self.store_id}) knows no pipeline {self.pipeline!r} yet")
                return
            self._url = url
            self.position = facts.last.range.end if facts.last is not None else facts.frozen
            self.deciding_s = slowest_decision_s(store, self.pipeline)
            complete = f"epoch {facts.complete.epoch} is" if facts.complete is not None else "no epoch is"
            yield Finding(Level.FINE, f"{where} ({self.store_id}): {complete} complete, generation {facts.generation}")
            yield from _unfinished(facts)


def _unfinished(facts: StoreFacts) -> Iterator[Finding]:
    for record in facts.unfinished:
        if record.state is EpochState.DAMAGED:
            yield Finding(
                Level.PROBLEM,
                f"epoch {record.epoch} is damaged: it was decided, and a part of it can no longer be committed. Mend "
                f"what its error names, then call pipeline.recover(accept_damage={record.epoch})",
                (NoLoss.name, ResolveOnce.name),
            )
        else:
            says = f"epoch {record.epoch} is {record.state.value}: a driver works at it, or the next start settles it"
            yield Finding(Level.FINE, says)

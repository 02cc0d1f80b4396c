"""Reads along in the checkpoint store while the pipeline runs: every epoch's states, and what a reader would see."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from onefold.core import EpochRecord, EpochState
from onefold.core.invariants import Transition
from onefold.store.checkpoint_store import KEEP_EPOCHS, CheckpointStore
from onefold.trials.torture.destinations.destination import SERVER_ERRORS
from onefold.trials.torture.history import HistoryLog
from onefold.trials.torture.snapshot_reader import TableReader
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.workload_settings import Job

EVERY_S = 0.4
RECENT = 100  # a flow has several epochs a second


@dataclass
class Watcher:
    """What was seen of each epoch, also of those that the store has pruned since."""

    job: Job
    history: HistoryLog
    records: dict[int, EpochRecord] = field(default_factory=dict)
    transitions: list[Transition] = field(default_factory=list)
    _looked_s: float = 0.0

    def __post_init__(self) -> None:
        self._store = CheckpointStore(self.job.store_url(), lock_timeout_s=2.0)
        self.reader = TableReader(self.job) if self.job.into_postgres in ("staged", "direct") else None

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
            if self.reader is not None:
                self.reader.look()
        except SERVER_ERRORS:
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

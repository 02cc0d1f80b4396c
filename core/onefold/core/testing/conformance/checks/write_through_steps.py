"""Write-through sinks: what their checks work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Announcement, Committer, Decided, EpochRecord
from onefold.core.protocol.committer_kinds import write_through
from onefold.core.testing.conformance.checks.two_phase import TwoPhaseEpochs
from onefold.core.testing.conformance.promises import CheckedPromise
from onefold.core.testing.conformance.workbench import Work, Workbench


@dataclass(slots=True)
class WriteThroughEpochs(TwoPhaseEpochs):
    """Epochs that this object numbers; each is noted as written before it is decided."""

    def open(self) -> EpochRecord:
        return replace(TwoPhaseEpochs.open(self), write_through=(self.bench.sink.name,))

    def decide(self, record: EpochRecord, works: Sequence[Work]) -> Decided:
        self.bench.retry(lambda: write_through(self.bench.committer).seal([work.committable for work in works]))
        return TwoPhaseEpochs.decide(self, record, works)


def epochs(bench: Workbench, generation: int) -> WriteThroughEpochs:
    bench.generation = generation
    return WriteThroughEpochs(bench)


def begun(bench: Workbench, mine: WriteThroughEpochs) -> EpochRecord:
    """The next epoch, announced."""
    record = mine.open()
    bench.retry(lambda: write_through(bench.committer).announce(record))
    return record


def told(committer: Committer) -> Announcement | None:
    ledger = committer.ledger()
    return ledger.announced if ledger is not None else None


def rewritten(bench: Workbench, record: EpochRecord, ids: Sequence[int], batches: Sequence[pa.RecordBatch]) -> Work:
    """These rows written by one more attempt of the epoch, whole."""
    writer = bench.sink.writer(bench.task(record.epoch))
    for batch in batches:
        writer.write(batch)
    committable = present(writer.prepare(), "prepare returned None though rows were written")
    return Work(committable, tuple(ids))


def announced(record: EpochRecord) -> Announcement:
    return Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)


def expect_told(held: CheckedPromise, bench: Workbench, record: EpochRecord) -> None:
    for committer in (bench.committer, bench.elsewhere()):
        there = told(committer)
        held.expect(there == announced(record), str(announced(record)), there)

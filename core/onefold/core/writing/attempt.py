"""One attempt of a task: its rows to every sink of the epoch, its bad records to theirs, and then all prepare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Committable, Sink, SinkWriter, TaskId
from onefold.core.failpoints import failpoint
from onefold.core.writing.bad_records import Bad, Found, Letters, Policy

__all__ = ["Batches", "Written", "write_task"]

Batches = Iterable[pa.RecordBatch | Bad]


@dataclass(frozen=True, slots=True)
class Written:
    """What one task prepared, and how many bad records it found; or what all did, and what became of those `found`."""

    committables: tuple[Committable, ...]
    bad: int = 0
    found: tuple[Found, ...] = ()


def write_task(sinks: Sequence[Sink], task: TaskId, batches: Batches, policy: Policy | None = None) -> Written:
    """Runs one attempt: every batch goes to every sink, bad records to theirs, then all prepare. A failure aborts what
    this attempt has not prepared."""
    with ExitStack() as undo:

        def writer_of(sink: Sink) -> SinkWriter:
            writer = sink.writer(task)
            undo.callback(_abort, writer)
            return writer

        writers = [writer_of(sink) for sink in sinks]
        dead = writer_of(policy.sink) if policy is not None and policy.sink is not None else None
        letters = Letters(policy, task, dead) if policy is not None else None
        for batch in batches:
            if isinstance(batch, Bad):
                present(letters, "bad records are fetched where a policy says what becomes of them").take(batch.records)
                continue
            for writer in writers:
                writer.write(batch)
        failpoint("writers:written")
        prepared = [writer.prepare() for writer in (*writers, *([dead] if dead is not None else []))]
        undo.pop_all()
    failpoint("writers:prepared")
    committables = tuple(committable for committable in prepared if committable is not None)
    return Written(committables, letters.count if letters is not None else 0)


def _abort(writer: SinkWriter) -> None:
    with suppress(Exception):  # the first error is the one to report; what stays behind, the sweep removes
        writer.abort()

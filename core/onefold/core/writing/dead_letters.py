"""Source records that could not be read: they become rows for a sink of their own, which every source and every sink
knows, or are skipped; and too many of them stop an epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from onefold.core.contract import Sink, TaskId
from onefold.core.errors import BadRecord
from onefold.core.source import Source

log = logging.getLogger("onefold")

# A record as it was, and why it could not be read.
BAD_COLUMNS = pa.schema(
    {
        "source_topic": pa.string(),
        "source_partition": pa.int32(),
        "source_offset": pa.int64(),
        "source_timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "reason": pa.string(),
    }
)

# And which epoch of which pipeline it belongs to.
LETTER_COLUMNS = pa.schema([*BAD_COLUMNS, pa.field("pipeline", pa.string()), pa.field("epoch", pa.int64())])

# What a Kafka topic of dead letters keeps as headers, beside the record's own: KafkaSink(format="raw", headers=...).
LETTER_HEADERS = tuple(name for name in LETTER_COLUMNS.names if name not in ("key", "value", "headers"))


def letters(bad: pa.RecordBatch, task: TaskId) -> pa.RecordBatch:
    """Bad records (`BAD_COLUMNS`) as the dead letters (`LETTER_COLUMNS`) of a task's epoch."""
    of = [pa.scalar(task.pipeline, pa.string()), pa.scalar(task.epoch, pa.int64())]
    arrays = [*bad.columns, *(pa.repeat(value, bad.num_rows) for value in of)]
    return pa.RecordBatch.from_arrays(arrays, schema=LETTER_COLUMNS)


@dataclass(frozen=True)
class Policy:
    """What happens to an epoch's bad records: `sink` takes them; more than `bad_max` stop the epoch. Pickles."""

    sink: Sink | None
    bad_max: int

    @classmethod
    def of(cls, source: Source, dead_letters: Sink | None) -> Policy | None:
        """None where the first bad record stops the pipeline: the reader does that."""
        if source.on_error == "fail":
            return None
        return cls(dead_letters if source.on_error == "dead_letter" else None, source.bad_records_max)

    def refuse(self, task: TaskId, count: int, found: pa.RecordBatch | None = None) -> None:
        """Raise `BadRecord` where `count` is too many. `found` are the newest of those that a task has found so far."""
        if count > self.bad_max:
            last = "" if found is None else _told(found.slice(found.num_rows - 1).to_pylist()[0])
            raise BadRecord(
                "too-many-bad-records",
                f"epoch {task.epoch} of pipeline {task.pipeline!r} has {'at least ' if last else ''}{count}"
                f" records that cannot be read, more than bad_records_max={self.bad_max}"
                f"{last}. Nothing of the epoch was decided. Correct"
                " the source's format or schema; if these are right and the records are not, raise bad_records_max",
            )


def _told(last: Mapping[str, Any]) -> str:
    where = f"{last['source_topic']}/{last['source_partition']} offset {last['source_offset']}"
    return f"; the last of them: {where}: {last['reason']}"


Found: TypeAlias = tuple[int, Policy]
"""How many bad records of a source an epoch has, and what becomes of them."""


class Tally:
    """How many records were skipped, or became dead letters, in the epochs that a pipeline has written so far; and how
    many rows came too late for an operator.

    What Spark itself reads, and skips, shows in the executors' logs alone.
    """

    def __init__(self) -> None:
        self.dead_letters = self.skipped = self.late = 0
        self._running: tuple[int, tuple[Found, ...], int] = (0, (), 0)

    def count(self, epoch: int, found: tuple[Found, ...], late: int = 0) -> None:
        """Notes an epoch whose writers are done; they may run again before it is complete."""
        self._running = epoch, found, late

    def confirm(self) -> None:
        """Adds the counted epoch, which is complete now."""
        (epoch, found, late), self._running = self._running, (0, (), 0)
        self.late += late
        for bad, policy in found:
            if not bad:
                continue
            if policy.sink is None:
                self.skipped += bad
                log.warning("epoch %d: unreadable records, skipped: %d", epoch, bad)
            else:
                self.dead_letters += bad
                log.warning("epoch %d: unreadable records, dead letters in %r: %d", epoch, policy.sink.name, bad)

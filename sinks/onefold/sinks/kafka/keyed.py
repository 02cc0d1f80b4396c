"""mode="keyed": every record carries a unique id, is written at least once, and is the same whenever it is written.

A plain idempotent producer in each task; the driver notes in the progress topic which epoch was begun, written whole,
and complete. Readers drop what they have seen by the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from onefold.core.contract import (
    Announcement,
    Committable,
    Decided,
    EpochRecord,
    Guarantee,
    LedgerEntry,
    SinkKind,
    TaskId,
)
from onefold.core.errors import BadRecord, CheckpointMismatch, Damaged, Fenced, WorkLost
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions
from onefold.sinks.kafka.ascent import Ascent
from onefold.sinks.kafka.encoding import check_columns
from onefold.sinks.kafka.notes import Notes, State
from onefold.sinks.kafka.plan import Settings
from onefold.sinks.kafka.sending import Outbox

__all__ = ["KEYED", "KeyedCommitter", "KeyedWriter"]

KEYED = Guarantee(
    "keyed",
    SinkKind.WRITE_THROUGH,
    False,
    (
        "readers drop the records whose id they have seen (KafkaSource(deduplicate=...)): each may be there repeatedly",
        "ids are unique, and those of one source of ids are in one task, in their order",
        "the transformation is deterministic and its code unchanged between replays, and the source still has an epoch "
        "that was begun: it cannot be given up, only written again",
        "no partitions are added to the topic while an epoch is open: what is written again would go elsewhere",
        "both topics keep what they acknowledged (min.insync.replicas from 2 on, no unclean leader election)",
    ),
)


class KeyedWriter:
    """One attempt of one task. Its records show as they are written."""

    def __init__(self, settings: Settings, schema: pa.Schema, task: TaskId) -> None:
        self._settings, self._schema, self._task = settings, schema, task
        self._where = f"{settings.where(task.pipeline)}, epoch {task.epoch}"
        self._outbox: Outbox | None = None
        self._ascent = Ascent()
        self._rows = self._bytes = 0
        self._is_over = False

    def write(self, batch: pa.RecordBatch) -> None:
        assert not self._is_over, "a writer takes no rows after prepare or abort"
        if batch.num_rows == 0:
            return
        check_columns(batch, self._schema, self._where)
        if self._outbox is None:
            self._outbox = Outbox.borrowed(self._settings, f"{self._where}, writing")
        try:
            for records in self._settings.ids.records(self._settings.encoding, batch, self._ascent):
                self._outbox.send(self._settings.topic, records)
                self._rows += len(records.values)
                self._bytes += records.bytes
        except BadRecord as error:
            raise BadRecord(f"{self._where}: {error}") from error

    def prepare(self) -> Committable | None:
        assert not self._is_over, "a writer prepares once"
        self._is_over = True
        if self._outbox is None:
            return None
        failpoint("before:prepare")
        self._outbox.flush()
        self._outbox.give_back()
        self._outbox = None
        failpoint("after:prepare")
        task = self._task
        return Committable(
            sink=self._settings.name,
            kind=SinkKind.WRITE_THROUGH,
            handle=f"{task.pipeline}/{task.generation}/{task.epoch}/{task.attempt}",
            generation=task.generation,
            epoch=task.epoch,
            rows=self._rows,
            bytes=self._bytes,
        )

    def abort(self) -> None:
        """What was written stays, for the epoch is written again; what was not sent yet is dropped."""
        self._outbox, self._is_over = None, True


class KeyedCommitter:
    """Idempotent, from any process."""

    def __init__(self, settings: Settings, pipeline: str) -> None:
        self._settings = settings
        self._where = settings.where(pipeline)
        self._notes = Notes(settings, pipeline)

    def announce(self, record: EpochRecord) -> None:
        new = Announcement(record.epoch, record.generation, record.timestamp_ms, record.range)
        state = self._notes.read()
        self._refuse_behind(state, new)
        old = state.announced
        if old is not None and old.epoch == new.epoch:
            if (old.timestamp_ms, old.range) != (new.timestamp_ms, new.range):
                raise CheckpointMismatch(
                    f"{self._where}: epoch {new.epoch} was begun at {old.timestamp_ms} ms, up to"
                    f" {old.range.end.to_json()}, and is now to be one of {new.timestamp_ms} ms up to"
                    f" {new.range.end.to_json()}: the checkpoint store is an older copy, or another. Restore the one"
                    " that the pipeline had"
                )
            new = replace(new, is_written=old.is_written)
        if old != new:
            self._refuse_behind(self._notes.write(replace(state, announced=new), new.generation), new)

    def verify(self, committables: Sequence[Committable]) -> None:
        # Under the key of the generation that wrote, whoever has announced the epoch since: a key has one writer.
        for epoch, generation in sorted({(c.epoch, c.generation) for c in committables}):
            state = self._notes.read()
            told = state.announced
            if told is None or told.epoch < epoch:
                raise WorkLost(
                    f"{self._where}: the progress topic knows nothing of epoch {epoch}, which was announced there: it"
                    " is another copy. The epoch's writers must run again"
                )
            if told.epoch == epoch and not told.is_written:
                self._notes.write(replace(state, announced=replace(told, is_written=True)), generation)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        """All of it shows: only look that these are the brokers that it was written to."""
        failpoint("kafka:commit")
        record, told = decided.record, self._notes.read().announced
        if told is not None and told.epoch > record.epoch:
            return
        if told is None or (told.epoch, told.timestamp_ms) != (record.epoch, record.timestamp_ms):
            raise Damaged(self._evidence(record, "does not know that it was begun"))
        if committables and not told.is_written:
            raise Damaged(self._evidence(record, "does not know that it was written whole"))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Nothing can be taken back."""

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:  # noqa: ARG002
        return ()

    def ledger(self) -> LedgerEntry | None:
        state = self._notes.read()
        if state == State():
            return None
        return replace(state.entry or LedgerEntry(0, 0, 0, Positions(), ""), announced=state.announced)

    def record(self, entry: LedgerEntry) -> None:
        entry = replace(entry, members=(), announced=None)
        state = self._notes.read()
        self._refuse_older(state, entry)
        if state.entry != entry:
            self._refuse_older(self._notes.write(State(entry), entry.generation), entry)

    def close(self) -> None:
        self._notes.close()

    def _refuse_older(self, state: State, entry: LedgerEntry) -> None:
        there = state.entry
        if there is not None and (there.epoch, there.generation) > (entry.epoch, entry.generation):
            raise self._fenced((there.epoch, there.generation), entry.epoch, entry.generation)

    def _refuse_behind(self, state: State, new: Announcement) -> None:
        if state.at > (new.epoch, new.generation):
            raise self._fenced(state.at, new.epoch, new.generation)

    def _fenced(self, there: tuple[int, int], epoch: int, generation: int) -> Fenced:
        return Fenced(
            f"{self._where}: the progress topic stands at epoch {there[0]} of generation {there[1]}, and epoch {epoch}"
            f" of generation {generation} is behind it. Another process runs this pipeline: stop this one"
        )

    def _evidence(self, record: EpochRecord, what: str) -> str:
        return (
            f"{self._where}: epoch {record.epoch} was decided, and the topic {self._settings.progress_topic!r} {what}:"
            f" the brokers are an older copy, or others. Its records may be missing in the topic"
            f" {self._settings.topic!r}. Restore the newer copy; or write them by hand, from the source's"
            f" {record.range.start.to_json()} to {record.range.end.to_json()}"
        )

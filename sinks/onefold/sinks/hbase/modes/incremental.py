"""mode="incremental": messages have a sequence that grows within their row, and the row stores the last one applied.

A message at or below the stored sequence was applied before. A row is written in one mutation together with its new
sequence, on condition that the stored one is still the one that was read; or, where values are replaced, that it is
lower. So the mode needs to know nothing of replays, or of other writers of the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core.contract import Guarantee, SinkKind, TaskId
from onefold.core.errors import ConfigError
from onefold.sinks.hbase.aggregates import Function
from onefold.sinks.hbase.merge import Merge, bound, check, merge_of, own_family_of, states_of
from onefold.sinks.hbase.modes.appliers import Applier, MergeApplier, ReplaceApplier, SequenceColumn
from onefold.sinks.hbase.sink_plan import HBasePlan, Mode
from onefold.sinks.write_through import WritingThrough


@dataclass(frozen=True, slots=True)
class Incremental(Mode):
    """`sequence` is the column that orders the messages of a row. `merge` None: the values of the highest replace what
    is there."""

    sequence: str
    merge: Merge | None
    is_dense: bool

    @classmethod
    def of(cls, sequence: str, merge: Mapping[str, str] | Function | str, is_dense: bool) -> Incremental:
        """The mode as a user has written it. Raises ConfigError."""
        has_last = isinstance(merge, Mapping) and "last" in merge.values()
        order = (sequence,) if has_last else ()
        return cls(sequence, None if merge == "replace" else merge_of(merge, order), is_dense)

    @property
    def name(self) -> str:
        return "incremental"

    @property
    def only_replaces(self) -> bool:
        """Whether only the message with the highest sequence counts."""
        return self.merge is None and not self.is_dense

    def check(self, declared: TableMapping) -> None:
        check(self.merge, declared)
        if self.sequence in declared.row_key.names:
            raise ConfigError(
                "options-conflict",
                f"sequence={self.sequence!r} is in the row key: it must tell the messages of one row apart",
            )

    def guarantee(self) -> Guarantee:
        conditions = (
            "sequences are unique within a row and come in their order, but for repeats: a message at or below the last"
            " that was applied is taken for a repeat",
            "the rows of a key are in one task (repartition=False leaves that to you)",
            "a replay brings the same messages with the same sequences; the source still has an epoch that was begun",
            "readers see an epoch's rows one by one, as they are written; each row whole",
            "another writer of these rows applies the same messages in the same way",
            "a family's TTL is longer than messages may be repeated: the last sequence is forgotten with its row",
        )
        return Guarantee(self.name, SinkKind.WRITE_THROUGH, False, conditions)

    def bound(self, declared: TableMapping, schema: pa.Schema) -> TableMapping:
        SequenceColumn.bound(self.sequence, self.is_dense, schema)
        is_kept = self.sequence in [column.name for column in declared.columns]
        return bound(self.merge, declared, schema, () if is_kept else (self.sequence,))

    def identity(self, declared: TableMapping) -> Mapping[str, str]:
        return {"sequence": self.sequence, **own_family_of(declared)}

    def layout(self, mapping: TableMapping, schema: pa.Schema) -> Mapping[str, str]:
        """While values are replaced, their types may change: stored values are never merged into then."""
        ids = {"sequence's values": SequenceColumn.bound(self.sequence, self.is_dense, schema).column.kept}
        if self.merge is None:
            return ids | {"merge": "replace"}
        return ids | {"merge": "by column, or a function"} | states_of(mapping)

    def order_by(self, declared: TableMapping) -> tuple[str, ...]:
        """A task may get more messages than it holds at once: one behind a higher sequence would look like a repeat."""
        return () if self.only_replaces else (*declared.row_key.names, self.sequence)

    def counts(self) -> tuple[str, ...]:
        return (self.sequence,)

    def writer(self, plan: HBasePlan, task: TaskId) -> IncrementalWriter:
        return IncrementalWriter(self, plan, task)


class IncrementalWriter(WritingThrough):
    """One attempt of one task. Readers see its rows as they are applied."""

    def __init__(self, mode: Incremental, plan: HBasePlan, task: TaskId) -> None:
        super().__init__(plan.settings.name, task, plan.schema)
        self._plan = plan
        self._ids = SequenceColumn.bound(mode.sequence, mode.is_dense, plan.schema)
        self._applier: Applier = (
            ReplaceApplier(plan) if mode.only_replaces else MergeApplier(plan, self._ids, mode.merge, self._where)
        )

    def _add(self, batch: pa.RecordBatch) -> None:
        self._applier.take(self._plan.mapping.keys(batch), self._ids.encode(batch), batch)
        self._bytes += batch.nbytes

    def _finish(self) -> None:
        self._applier.finish()

    def _undo(self) -> None:
        """Does nothing: rows that wait are dropped with the writer."""

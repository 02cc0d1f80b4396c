"""mode="incremental": messages have ids that grow within their row, and the row says which was applied last.

What is at or below that id was applied before, whoever brings it again. A row is written in one mutation with its new
last id, on condition that it still says the one that was read; or, where values are replaced, that it says a lower one.
So neither replays nor other writers of the same messages need to be known of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core.contract import Guarantee, SinkKind, TaskId
from onefold.core.errors import ConfigError
from onefold.sinks.hbase.merge.aggregates import Function
from onefold.sinks.hbase.merge.merge import Merge, bound, check, merge_of, own_family_of, states_of
from onefold.sinks.hbase.modes.applying import Applying, Merging, Replacing
from onefold.sinks.hbase.plan import Plan
from onefold.sinks.hbase.sequence import Ids
from onefold.sinks.hbase.writer import HBaseWriter

__all__ = ["Incremental", "IncrementalWriter"]


@dataclass(frozen=True, slots=True)
class Incremental:
    """`id` is the column of the messages' ids; `merge` None: the values of the highest id replace what is there."""

    id: str
    merge: Merge | None
    dense_ids: bool = False

    @classmethod
    def of(cls, id: str, merge: Mapping[str, str] | Function | str, dense_ids: bool = False) -> Incremental:
        """As a user writes it. Raises ConfigError."""
        has_last = isinstance(merge, Mapping) and "last" in merge.values()
        return cls(id, merge_of(merge, (id,) if has_last else ()), dense_ids)

    @property
    def name(self) -> str:
        return "incremental"

    @property
    def only_replaces(self) -> bool:
        """Whether the highest id is all that is asked of a row's messages."""
        return self.merge is None and not self.dense_ids

    def check(self, declared: TableMapping) -> None:
        check(self.merge, declared)
        if self.id in declared.row_key.names:
            raise ConfigError(f"id={self.id!r} is in the row key: ids tell the messages of one row apart")

    def guarantee(self) -> Guarantee:
        conditions = (
            "ids are unique within a row and come in their order, but for repeats: one that comes at or below the"
            " last that was applied is taken for a repeat",
            "the rows of a key are in one task (repartition=False leaves that to you)",
            "a replay brings the same messages under the same ids; the source still has an epoch that was begun",
            "readers see an epoch's rows one by one, as they are written; each row whole",
            "whoever else writes these rows applies the same messages in the same way",
            "a family's TTL is longer than messages may be repeated: the last id is forgotten with its row",
        )
        return Guarantee(self.name, SinkKind.WRITE_THROUGH, False, conditions)

    def bound(self, declared: TableMapping, schema: pa.Schema) -> TableMapping:
        Ids.bound(self.id, self.dense_ids, schema)
        is_kept = self.id in [column.name for column in declared.columns]
        return bound(self.merge, declared, schema, () if is_kept else (self.id,))

    def rests_on(self, declared: TableMapping) -> Mapping[str, str]:
        return {"id": self.id, **own_family_of(declared)}

    def goes_on_from(self, mapping: TableMapping, schema: pa.Schema) -> Mapping[str, str]:
        """While values are replaced, their types may change: what is there then is nothing to merge into."""
        ids = {"id's values": Ids.bound(self.id, self.dense_ids, schema).column.kept}
        if self.merge is None:
            return ids | {"merge": "replace"}
        return ids | {"merge": "by column, or a function"} | states_of(mapping)

    def order_by(self, declared: TableMapping) -> tuple[str, ...]:
        """Of more messages than a task holds at once, one that comes behind a higher id would pass for a repeat."""
        return () if self.only_replaces else (*declared.row_key.names, self.id)

    def counts(self) -> tuple[str, ...]:
        return (self.id,)

    def writer(self, plan: Plan, task: TaskId) -> IncrementalWriter:
        return IncrementalWriter(self, plan, task)


class IncrementalWriter(HBaseWriter):
    """One attempt of one task. Its rows show as they are applied."""

    def __init__(self, mode: Incremental, plan: Plan, task: TaskId) -> None:
        super().__init__(plan, task)
        self._ids = Ids.bound(mode.id, mode.dense_ids, plan.schema)
        self._applying: Applying = (
            Replacing(plan) if mode.only_replaces else Merging(plan, self._ids, mode.merge, self._where)
        )

    def _take(self, batch: pa.RecordBatch) -> None:
        self._applying.take(self._plan.mapping.keys(batch), self._ids.encode(batch), batch)
        self._bytes += batch.nbytes

    def _finish(self) -> None:
        self._applying.finish()

    def _drop(self) -> None:
        """What it holds goes with it."""

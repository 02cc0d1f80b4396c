"""What an HBase sink was told, and what `open` made of it: both travel to the executors inside the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.settings import HBaseSettings
from onefold.clients.hbase.table import HBaseTable
from onefold.core.contract import Committable, Guarantee, SinkWriter, TaskId
from onefold.sinks.write_through import written

__all__ = ["Mode", "Plan", "Settings"]


class Mode(Protocol):
    """How rows become cells, and how often they may without harm. A frozen dataclass of its own settings; pickles."""

    @property
    def name(self) -> str: ...

    def check(self, declared: TableMapping) -> None:
        """Raise ConfigError where the mode's settings and the mapping, as it was declared, don't go together."""
        ...

    def guarantee(self) -> Guarantee: ...

    def bound(self, declared: TableMapping, schema: pa.Schema) -> TableMapping:
        """The mapping of rows of that schema. Raises SchemaMismatch, also for rows that lack what the mode needs."""
        ...

    def rests_on(self, declared: TableMapping) -> Mapping[str, str]:
        """What else but table and row key must stay as it is: with another, a row would not be known again."""
        ...

    def goes_on_from(self, mapping: TableMapping, schema: pa.Schema) -> Mapping[str, str]:
        """What must stay as it is, besides the row key's bytes, where it was written before: by what people call it,
        as text. Empty text: nothing was written yet that the next one could take for something else."""
        ...

    def order_by(self, declared: TableMapping) -> tuple[str, ...]:
        """The columns by which a task's rows are to ascend; none where it makes no difference."""
        ...

    def counts(self) -> tuple[str, ...]:
        """The columns by which rows are compared with those that other epochs wrote; none if they aren't."""
        ...

    def writer(self, plan: Plan, task: TaskId) -> SinkWriter: ...


@dataclass(frozen=True, slots=True)
class Settings:
    name: str
    hbase: HBaseSettings
    declared: TableMapping
    mode: Mode
    repartition: bool
    regions: int
    ledger: str

    def where(self, pipeline: str) -> str:
        return f"sink {self.name!r} of pipeline {pipeline!r}"

    def rests_on(self) -> dict[str, str]:
        """What the sink is as long as it has its name: by the words of its settings, as text."""
        key = self.declared.row_key
        fronts = [f"{name}={number}" for name, number in (("salt", key.salt), ("hash", key.hash)) if number]
        always = {"table": self.declared.table, "mode": self.mode.name, "row_key": ", ".join([*key.names, *fronts])}
        return always | dict(self.mode.rests_on(self.declared))


@dataclass(frozen=True, slots=True)
class Plan:
    """What the writers of one opened sink get. `mapping` is that of the rows' `schema`."""

    settings: Settings
    mapping: TableMapping
    schema: pa.Schema

    def where(self, task: TaskId) -> str:
        """For errors."""
        return f"{self.settings.where(task.pipeline)}, epoch {task.epoch}"

    def table(self) -> HBaseTable:
        return HBaseTable(self.settings.hbase, self.mapping.table)

    def goes_on_from(self) -> dict[str, str]:
        """What must stay as it is: with another, a row would not be known again, or its values not be what they were.
        By what people call it, as text."""
        key = {f"row key's {column.name}": column.kept for column in self.mapping.row_key.columns}
        return key | dict(self.settings.mode.goes_on_from(self.mapping, self.schema))

    def committable(self, task: TaskId, rows: int, bytes: int = 0) -> Committable:
        """What a task that has written these rows hands to the driver."""
        return written(self.settings.name, task, rows, bytes)

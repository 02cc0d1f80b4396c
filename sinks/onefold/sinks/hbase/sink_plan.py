"""The settings of an HBase sink, and the plan that `open` makes of them: both travel to the executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.table import HBaseTable
from onefold.core.contract import Guarantee, SinkWriter, TaskId


class Mode(ABC):
    """How rows become cells, and what makes a replay harmless. A frozen dataclass of the mode's options; pickles."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def check(self, declared: TableMapping) -> None:
        """Raise ConfigError where the mode's options contradict the declared mapping."""

    @abstractmethod
    def guarantee(self) -> Guarantee: ...

    @abstractmethod
    def bound(self, declared: TableMapping, schema: pa.Schema) -> TableMapping:
        """The mapping for rows of that schema. Raises SchemaMismatch, also where the mode lacks a column."""

    def identity(self, declared: TableMapping) -> Mapping[str, str]:
        """What must not change under the sink's name, besides table and row key, as name and text."""
        del declared
        return {}

    @abstractmethod
    def layout(self, mapping: TableMapping, schema: pa.Schema) -> Mapping[str, str]:
        """How cells are written, besides the row key's bytes, as name and text: another layout would misread them.

        Empty text: the cell is not written yet, so its layout may be chosen later.
        """

    def order_by(self, declared: TableMapping) -> tuple[str, ...]:
        """The columns by which a task's rows must ascend; none where the order makes no difference."""
        del declared
        return ()

    def counts(self) -> tuple[str, ...]:
        """The columns by which rows are compared with those of other epochs; none where they are not compared."""
        return ()

    @abstractmethod
    def writer(self, plan: HBasePlan, task: TaskId) -> SinkWriter: ...


@dataclass(frozen=True, slots=True)
class HBaseSinkSettings:
    name: str
    hbase: HBaseSettings
    declared: TableMapping
    mode: Mode
    repartition: bool
    regions: int
    ledger: str

    def where(self, pipeline: str) -> str:
        return f"sink {self.name!r} of pipeline {pipeline!r}"

    def identity(self) -> dict[str, str]:
        """What must not change under the sink's name: option names and their values as text."""
        key = self.declared.row_key
        fronts = [f"{name}={number}" for name, number in (("salt", key.salt), ("hash", key.hash)) if number]
        always = {"table": self.declared.table, "mode": self.mode.name, "row_key": ", ".join([*key.names, *fronts])}
        return always | dict(self.mode.identity(self.declared))


@dataclass(frozen=True, slots=True)
class HBasePlan:
    """What the writers of an opened sink need. `mapping` is bound to the rows' `schema`."""

    settings: HBaseSinkSettings
    mapping: TableMapping
    schema: pa.Schema

    def table(self) -> HBaseTable:
        return HBaseTable(self.settings.hbase, self.mapping.table)

    def layout(self) -> dict[str, str]:
        """How keys and cells are written, as name and text: another layout would not find rows, or misread them."""
        key = {f"row key's {column.name}": column.kept for column in self.mapping.row_key.columns}
        return key | dict(self.settings.mode.layout(self.mapping, self.schema))

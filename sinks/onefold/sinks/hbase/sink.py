"""HBaseSink: what a user names, and what travels to the executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from onefold.clients.hbase import tables
from onefold.clients.hbase.rows.mapping import RowKey, TableMapping
from onefold.clients.hbase.settings import HBaseSettings
from onefold.clients.hbase.tables import Family
from onefold.core.contract import Committer, Guarantee, SinkWriter, TaskId
from onefold.core.errors import ConfigError
from onefold.core.findings import Finding
from onefold.sinks.columns import names_of
from onefold.sinks.hbase import doctor
from onefold.sinks.hbase.epoch_log import LEDGER_FAMILY, TableNotes
from onefold.sinks.hbase.merge.aggregates import Function
from onefold.sinks.hbase.modes.modes import mode_of
from onefold.sinks.hbase.plan import Plan, Settings
from onefold.sinks.write_through import AnnouncingCommitter, Place

__all__ = ["HBaseSink"]


class HBaseSink:
    """Writes rows into an HBase table, through its Thrift2 servers.

    `servers` is `"thrift1:9090,thrift2:9090"`, or HBaseSettings where more is to be said. `table` is `"orders"` or
    `"shop:orders"` with `row_key`, `columns` and `family`, or a TableMapping, which a reader or verify may share:

        HBaseSink("localhost:9090", "orders", row_key="customer, id", family="f")
        HBaseSink("localhost:9090", "orders", row_key=RowKey.of("id", salt=16), columns={"n": "f:n integer"})

    The table is made if it is missing, with `regions` regions where row keys have a salt or a hash in front.

    `mode="row_key"`: each row becomes the HBase row of its key, every cell at the timestamp of its epoch, so that a
    replay writes the same cells and an older epoch stays below. The row of the newest epoch stays; of several rows of
    a key in one epoch the one that is highest by the columns `order`. Null becomes a cell that stands for null. A row
    whose boolean column `delete` is true becomes a tombstone: the cell `deleted` (`family:_deleted` unless it is named)
    says so in every row, the others are null. With `deletes="real"` HBase's own deletes take the row away.

    `mode="rolling"`: rows are merged into what the table has, as `merge` says: `"replace"`, or for each column
    `"sum"`, `"count"`, `"min"`, `"max"`, `"last"` (by `order`) or `"union"`, or a function `merge(base, new)` over
    record batches whose rows at one place are of one key, associative and commutative. The row keeps what it had
    before the epoch, and a replay merges into that.

    `mode="incremental"`: the same, with messages whose `id` grows within their row. What is at or below the last id
    that a row was given is not applied again, whoever brings it. With `dense_ids` a row also counts the ids that it
    never saw.

    The rows of a key are brought into one task, which is a shuffle. `repartition=False` leaves that out: where keys are
    unique, or come from a topic that is partitioned by them.

    The sink's ledger is a row of `ledger_table`, made if it is missing. Raises ConfigError for settings that make no
    sense.
    """

    def __init__(
        self,
        servers: str | HBaseSettings,
        table: str | TableMapping,
        *,
        row_key: str | Sequence[str] | RowKey | None = None,
        columns: Mapping[str, str] | str | None = None,
        family: str | None = None,
        deleted: str | None = None,
        mode: str = "row_key",
        name: str | None = None,
        order: str | Sequence[str] = (),
        delete: str | None = None,
        deletes: str = "tombstone",
        merge: Mapping[str, str] | Function | str | None = None,
        id: str | None = None,
        dense_ids: bool = False,
        repartition: bool = True,
        regions: int = 1,
        ledger_table: str = "onefold_ledger",
    ) -> None:
        chosen = mode_of(
            mode, order=names_of(order), delete=delete, deletes=deletes, merge=merge, id=id, dense_ids=dense_ids
        )
        if isinstance(table, TableMapping):
            if row_key is not None or columns or family or deleted:
                raise ConfigError("row_key, columns, family and deleted are in the mapping that was given as table=")
            declared = table
        else:
            if delete is not None and deletes == "tombstone" and deleted is None:
                deleted = _deleted_cell(columns, family)
            declared = _declared(table, row_key, columns, family, deleted)
        self._settings = Settings(
            name=name or declared.table,
            hbase=servers if isinstance(servers, HBaseSettings) else HBaseSettings(servers),
            declared=declared,
            mode=chosen,
            repartition=repartition,
            regions=regions,
            ledger_table=ledger_table,
        )
        _check(self._settings)
        self._plan: Plan | None = None

    def __repr__(self) -> str:
        table = self._settings.declared.table
        return f"HBaseSink(table={table!r}, name={self.name!r}, mode={self._settings.mode.name!r})"

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def settings(self) -> Settings:
        """What the sink was told, for those who check its work."""
        return self._settings

    def guarantee(self) -> Guarantee:
        return self._settings.mode.guarantee()

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterator[Finding]:  # noqa: ARG002
        return doctor.examine(self._settings)

    def exposure(self) -> str:
        return self._settings.hbase.exposure()

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> Committer:
        return self._committer(pipeline, None)

    def _committer(self, pipeline: str, plan: Plan | None) -> AnnouncingCommitter:
        settings = self._settings
        ledger = tables.ensure(settings.hbase, settings.ledger_table, [Family(LEDGER_FAMILY)])
        if any(family.ttl_s is not None for family in ledger.families):
            raise ConfigError(
                f"the table {settings.ledger_table!r} has a TTL, and forgets where its pipelines stand: alter it"
                f" (alter '{settings.ledger_table}', NAME => '{LEDGER_FAMILY.decode()}', TTL => 'FOREVER')"
            )
        place = Place(
            sink=settings.name,
            where=settings.where(pipeline),
            ledger=f"the table {settings.ledger_table!r}",
            target=f"the table {settings.declared.table!r}",
            servers=f"HBase at {settings.hbase.servers} is",
        )
        return AnnouncingCommitter(place, TableNotes(settings, pipeline, plan), settings.mode.counts())

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        settings = self._settings
        mapping = settings.mode.bound(settings.declared, schema)
        families = [Family(name) for name in sorted(mapping.families)]
        cuts = mapping.row_key.split_keys(settings.regions) if settings.regions > 1 else ()
        tables.ensure(settings.hbase, mapping.table, families, cuts)
        plan = Plan(settings, mapping, schema)
        committer = self._committer(pipeline, plan)
        committer.ledger()  # refuses rows that would become other bytes, before anybody writes one
        self._plan = plan
        return committer

    def writers_max(self) -> int | None:
        return None

    def partition_by(self) -> tuple[str, ...]:
        """The rows of a key are in one task, in every mode."""
        settings = self._settings
        return settings.declared.row_key.names if settings.repartition else ()

    def in_place(self) -> bool:
        return not self._settings.repartition

    def order_by(self) -> tuple[str, ...]:
        settings = self._settings
        return settings.mode.order_by(settings.declared) if settings.repartition else ()

    def writer(self, task: TaskId) -> SinkWriter:
        if self._plan is None:
            raise ConfigError(f"sink {self.name!r} was not opened: the driver calls open() before any writer runs")
        return self._settings.mode.writer(self._plan, task)


def _declared(
    table: str,
    row_key: str | Sequence[str] | RowKey | None,
    columns: Mapping[str, str] | str | None,
    family: str | None,
    deleted: str | None,
) -> TableMapping:
    if not row_key:
        raise ConfigError("row_key= names the column or columns of which row keys are made: row_key='customer, id'")
    if not columns and not family:
        raise ConfigError("columns={'amount': 'f:amount'} says which cell a column goes to, or family='f' for all")
    return TableMapping.of(table, row_key, columns, family, deleted)


def _deleted_cell(columns: Mapping[str, str] | str | None, family: str | None) -> str:
    """In the family of all others, or where there is no such thing, in that of the first column."""
    if family is None and columns:
        named = TableMapping.of("t", "k", columns).columns
        family = named[0].family.decode(errors="replace")
    return f"{family}:_deleted"


def _check(settings: Settings) -> None:
    table = settings.declared.table
    if not table or not isinstance(table, str):
        raise ConfigError(f"{table!r} is not a table's name: HBaseSink('localhost:9090', 'orders', ...)")
    if table.removeprefix("default:") == settings.ledger_table.removeprefix("default:"):
        raise ConfigError("ledger_table is the sink's own book-keeping: it cannot be the table that it writes to")
    if settings.regions < 1:
        raise ConfigError(f"regions is how many a new table gets, from 1 on: not {settings.regions}")
    if settings.regions > 1:
        settings.declared.row_key.split_keys(settings.regions)
    settings.mode.check(settings.declared)

"""HBaseSink: the public sink of HBase tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from onefold.clients.hbase import table_admin
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.table import HBaseTable
from onefold.clients.hbase.table_admin import ColumnFamily, TableShape
from onefold.clients.options import constructed_from
from onefold.core.contract import Committer, Guarantee, SinkWriter, TaskId, Upsert
from onefold.core.errors import ConfigError
from onefold.core.findings import Checks, Finding, Level, Target, tried
from onefold.sinks.hbase import guarantee_checks
from onefold.sinks.hbase.epoch_log import LEDGER_FAMILY, TableNotes
from onefold.sinks.hbase.modes.incremental import Incremental
from onefold.sinks.hbase.modes.row_key import ByRowKey
from onefold.sinks.hbase.sink_options import HBaseSinkConfig, mode_of
from onefold.sinks.hbase.sink_plan import HBasePlan, HBaseSinkSettings
from onefold.sinks.sink_base import SettledSink
from onefold.sinks.sink_writer import opened
from onefold.sinks.write_through import AnnouncingCommitter, ErrorNames

_LEDGER = (ColumnFamily(LEDGER_FAMILY),)


class HBaseSink(SettledSink[HBaseSinkSettings]):
    """Writes rows into an HBase table, through its Thrift2 servers.

        HBaseSink("localhost:9090", "orders", row_key="customer, id", family="f")
        HBaseSink("localhost:9090", "orders", row_key="id", salt=16, columns={"n": "f:n integer"})

    `HBaseTableConfig` has the options of the servers, the table, and how its rows are written; `table` may be a
    TableMapping, which a source or verify can share. The sink makes a missing table, with `regions` regions where row
    keys have a salt or a hash.

    `mode="row_key"`: each row becomes the HBase row of its key, every cell at the timestamp of its epoch, so that a
    replay writes the same cells and an older epoch stays below. The row of the newest epoch stays; of several rows of
    a key in one epoch the one that is highest by the columns `order`. Null becomes a cell that stands for null. A row
    whose boolean column `delete_when_true` is true becomes a tombstone: `tombstone_column` (`family:_deleted` unless
    it is named) says so in every row, the other cells are null. With `delete_mode="real"` HBase's own deletes remove
    the row.

    `mode="rolling"`: rows are merged into what the table has, as `merge` says: `"replace"`, or for each column
    `"sum"`, `"count"`, `"min"`, `"max"`, `"last"` (by `order`) or `"union"`, or a function `merge(base, new)` over
    record batches whose rows at one place are of one key, associative and commutative. The row keeps the values that it
    had before the epoch, and a replay merges into those.

    `mode="incremental"`: the same, for messages whose column `sequence` grows within their row. The row stores the
    last sequence that was applied, and a message at or below it is never applied again, whichever process brings it.
    With `dense_sequence` each is one more than the one before, and a row also counts those that it never saw.

    A shuffle brings the rows of a key into one task. `repartition=False` leaves it out: where keys are unique, or come
    from a topic that is partitioned by them.

    The sink's ledger is a row of the table `ledger`, which the sink makes if it is missing. `name` is the sink's name
    in the pipeline, by default the table's. Raises ConfigError for options that contradict each other.
    """

    @constructed_from(HBaseSinkConfig)
    def __init__(self, options: HBaseSinkConfig) -> None:
        declared = _declared(options)
        self._settings = HBaseSinkSettings(
            name=options.name or declared.table,
            hbase=options.settings,
            declared=declared,
            mode=mode_of(options),
            repartition=options.repartition,
            regions=options.regions,
            ledger=options.ledger,
        )
        _check(self._settings)
        self._plan: HBasePlan | None = None

    def __repr__(self) -> str:
        table = self._settings.declared.table
        return f"HBaseSink(table={table!r}, name={self.name!r}, mode={self._settings.mode.name!r})"

    def guarantee(self) -> Guarantee:
        return self._settings.mode.guarantee()

    def checks(self, pipeline: str, schema: pa.Schema | None) -> Checks[Committer | None]:
        settings, families = self._settings, self._settings.declared.families
        plan: HBasePlan | None = None
        ledger = yield from self._check_ledger()
        if schema is None:
            says = "the rows are not known here: whether they can be cells of the table is checked at the start"
            yield Finding(Level.UNCHECKED, says)
        else:
            mapping = settings.mode.bound(settings.declared, schema)
            families, plan = mapping.families, HBasePlan(settings, mapping, schema)
        yield from table_admin.checks(settings.hbase, settings.declared.table, _wanted(families), _cuts(settings))
        return self._made(pipeline, plan) if ledger is not None else None

    def _check_ledger(self) -> Checks[TableShape | None]:
        shape = yield from table_admin.checks(self._settings.hbase, self._settings.ledger, _LEDGER)
        if shape is not None:
            yield from tried(lambda: self._check_kept(shape))
        return shape

    def _check_kept(self, ledger: TableShape) -> None:
        if any(family.ttl_s is not None for family in ledger.families):
            raise ConfigError(
                "ledger-expires",
                f"the table {ledger.name!r} has a TTL, so it would forget where its pipelines stand: alter it"
                f" (alter '{ledger.name}', NAME => '{LEDGER_FAMILY.decode()}', TTL => 'FOREVER')",
            )

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterator[Finding]:  # noqa: ARG002
        return guarantee_checks.examine(self._settings)

    def target_now(self, pipeline: str) -> Target:  # noqa: ARG002 - the protocol's
        table = self._settings.declared.table
        return Target(f"table {table}", table_admin.describe(self._settings.hbase, table) is not None)

    def is_empty(self, pipeline: str) -> bool:  # noqa: ARG002 - the protocol's
        """Not even a delete is left of a table that was truncated, or dropped and made anew."""
        declared = self._settings.declared
        return not HBaseTable(self._settings.hbase, declared.table).has_newer(b"", b"", [*declared.families], -1)

    def exposure(self) -> str:
        return self._settings.hbase.exposure()

    def recover(self, pipeline: str) -> Committer:
        return self._committer(pipeline, None)

    def _committer(self, pipeline: str, plan: HBasePlan | None) -> AnnouncingCommitter:
        self._check_kept(table_admin.ensure(self._settings.hbase, self._settings.ledger, _LEDGER))
        return self._made(pipeline, plan)

    def _made(self, pipeline: str, plan: HBasePlan | None) -> AnnouncingCommitter:
        settings = self._settings
        names = ErrorNames(
            sink=settings.name,
            where=settings.where(pipeline),
            ledger=f"the table {settings.ledger!r}",
            target=f"the table {settings.declared.table!r}",
            servers=f"HBase at {settings.hbase.servers} is",
        )
        return AnnouncingCommitter(names, TableNotes(settings, pipeline, plan), settings.mode.counts())

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        settings = self._settings
        mapping = settings.mode.bound(settings.declared, schema)
        table_admin.ensure(settings.hbase, mapping.table, _wanted(mapping.families), _cuts(settings))
        plan = HBasePlan(settings, mapping, schema)
        committer = self._committer(pipeline, plan)
        committer.ledger()  # refuses rows that would become other bytes, before anybody writes one
        self._plan = plan
        return committer

    def partition_by(self) -> tuple[str, ...]:
        """The rows of a key are in one task, in every mode."""
        settings = self._settings
        return settings.declared.row_key.names if settings.repartition else ()

    def in_place(self) -> bool:
        return not self._settings.repartition

    def order_by(self) -> tuple[str, ...]:
        settings = self._settings
        return settings.mode.order_by(settings.declared) if settings.repartition else ()

    def upsert(self) -> Upsert | None:
        key = self._settings.declared.row_key.names
        match self._settings.mode:
            case ByRowKey(order, delete_when_true):
                return Upsert(key, (), delete_when_true, order)
            case Incremental(sequence, None):
                return Upsert(key, (sequence,))
        return None

    def merges(self) -> bool:
        return self.upsert() is None

    def absorbs_repeats(self) -> bool:
        """A row that comes again covers itself, under a newer timestamp. Those of other modes are built on what is
        there."""
        return self._settings.mode.name == "row_key"

    def writer(self, task: TaskId) -> SinkWriter:
        return self._settings.mode.writer(opened(self._plan, self.name), task)


def _cuts(settings: HBaseSinkSettings) -> Sequence[bytes]:
    """Where the regions of a table begin that the sink makes, after the first."""
    return settings.declared.row_key.split_keys(settings.regions) if settings.regions > 1 else ()


def _wanted(families: Iterable[bytes]) -> list[ColumnFamily]:
    return [ColumnFamily(name) for name in sorted(families)]


def _declared(options: HBaseSinkConfig) -> TableMapping:
    """The table's mapping, with a tombstone column where deleted rows need one and none is named."""
    if isinstance(options.table, TableMapping):
        return options.table
    if not options.columns and not options.family:
        raise ConfigError(
            "option-missing", "columns={'amount': 'f:amount'} says which cell a column goes to, or family='f' for all"
        )
    has_tombstones = options.delete_when_true is not None and options.delete_mode == "tombstone"
    if not has_tombstones or options.tombstone_column is not None:
        return options.mapping
    named = options.mapping.columns
    family = options.family or named[0].family.decode(errors="replace")
    return replace(options, tombstone_column=f"{family}:_deleted").mapping


def _check(settings: HBaseSinkSettings) -> None:
    table = settings.declared.table
    if table.removeprefix("default:") == settings.ledger.removeprefix("default:"):
        raise ConfigError(
            "ledger-is-target",
            f"ledger={table!r} is the table that the sink writes to: the ledger needs a table of its own",
        )
    if settings.regions < 1:
        raise ConfigError("option-value", f"regions is how many a new table gets, from 1 on: not {settings.regions}")
    if settings.regions > 1:
        settings.declared.row_key.split_keys(settings.regions)
    settings.mode.check(settings.declared)

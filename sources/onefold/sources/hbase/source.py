"""HBaseSource: an HBase table to read, its options as a data source's, and the regions that its tasks read."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.clients.hbase.rows.table_config import HBaseTableConfig
from onefold.clients.hbase.table import HBaseTable
from onefold.clients.hbase.table_admin import describe
from onefold.clients.hbase.thrift_errors import no_table
from onefold.clients.option_texts import from_texts, to_texts
from onefold.clients.options import in_one_form, options_model
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.core.source import Keep
from onefold.core.values.exact import Mismatch, exact_cast
from onefold.sources.table_source import TableSource


@dataclass(frozen=True)
class RegionPart:
    """What one task reads: the rows from `start` to before `stop`, b"" for the end. Pickles."""

    settings: HBaseSettings
    mapping: TableMapping
    schema: pa.Schema
    start: bytes
    stop: bytes
    range_ms: tuple[int, int] | None
    deleted_as: str | None

    @property
    def label(self) -> str:
        until = f"{self.stop!r}" if self.stop else "the end"
        return f"reading table {self.mapping.table} of HBase from {self.start!r} to {until}"


@options_model
@dataclass(frozen=True, kw_only=True)
class HBaseSource(HBaseTableConfig, TableSource):
    """A table, read once and as a whole, one part for each of its regions.

        HBaseSource("localhost:9090", "orders", row_key="customer string, id integer", columns={"n": "f:n integer"})

    `table` may be the TableMapping that a sink writes with; else `row_key`, `salt`, `hash`, `columns`, `family` and
    `tombstone_column` say the same as in the sink. Encodings that are not said come from the schema that it is read
    with.

    since, until  only cells whose timestamps are at or above the first, and below the second: milliseconds since 1970,
                  or an aware datetime. Of an overwritten cell HBase has only the newest value, unless the family keeps
                  more versions
    deleted_as    "gone": rows that `tombstone_column` marks as deleted are read too, and the boolean column `gone`
                  tells which they are. Otherwise they are left out
    name          tells sources of one flow apart

    A row is read whole, and rows at different moments: HBase has no snapshot to read at. In a flow it is read in one
    epoch, and `columns` says every encoding.
    """

    since: int | dt.datetime | None = None
    until: int | dt.datetime | None = None
    deleted_as: str | None = None
    name: str = field(default="", metadata={"option": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        mapping = self.mapping
        in_one_form(self, name=self.name or f"HBase table {mapping.table}")
        if self.deleted_as is not None and mapping.tombstone_column is None:
            raise ConfigError(
                "option-missing",
                "deleted_as= needs tombstone_column=, the HBase column that marks deleted rows: 'f:_deleted'",
            )
        if self.deleted_as in (*mapping.row_key.names, *(column.name for column in mapping.columns)):
            raise ConfigError("column-name-taken", f"deleted_as={self.deleted_as!r} is a column of the table already")
        start, end = self.range_ms
        if not 0 <= start < end:
            raise ConfigError(
                "option-value", f"until= must be later than since=, in milliseconds from 0 on: not {start} and {end}"
            )

    def resolved(self, keep: Keep) -> HBaseSource:
        del keep  # HBase knows no types: what is declared is all there is
        return self

    def arrow_schema(self) -> pa.Schema:
        """The declared columns. Raises ConfigError where an encoding has to be said."""
        return self.reading()[1]

    def parts(self, schema: pa.Schema | None = None) -> list[RegionPart]:
        """One for each region; together they have each row once, also while regions are split or merged.

        Raises `SchemaMismatch`, `ConfigError`, `Retriable`.
        """
        mapping, delivered = self.reading(schema)
        self._check(mapping)
        regions = HBaseTable(self.settings, mapping.table).regions()
        range_ms = None if self.since is None and self.until is None else self.range_ms
        # By their starts: a region that is being split is listed beside its halves, and no row may come twice.
        starts = sorted({start for start, _ in regions} | {b""})
        return [
            RegionPart(self.settings, mapping, delivered, start, stop, range_ms, self.deleted_as)
            for start, stop in zip(starts, [*starts[1:], b""], strict=True)
        ]

    def batches(self, part: RegionPart) -> Iterator[pa.RecordBatch]:
        """The rows of the part that have at least one of its cells, as batches of exactly its schema.

        Raises `BadRecord`, `Retriable`, `ConfigError`; batches that came before an error must not be used.
        """
        mapping = part.mapping
        marker = mapping.tombstone_column
        columns = mapping.cell_columns + ([] if marker is None else [(marker.family, marker.qualifier)])
        table = HBaseTable(part.settings, mapping.table)
        for rows in table.scan(part.start, part.stop, columns, part.range_ms):
            keys, values = rows.keys, list(rows.values)
            added = {}
            if marker is not None:
                living = mapping.living(values.pop())
                if part.deleted_as is None:
                    keys, values = keys.filter(living), [array.filter(living) for array in values]
                else:
                    added[part.deleted_as] = pc.invert(living)
            try:
                found = mapping.decode(keys, values)
                there = {name: found.column(name) for name in found.schema.names} | added
                # The mapping knows a decimal as it was written; the schema says as what it is read.
                arrays = [_as(there[field.name], field) for field in part.schema]
                yield pa.record_batch(arrays, schema=part.schema)
            except BadRecord as error:
                raise error.reworded(f"{part.label}: {error.message}") from error
            except ValueError as error:
                raise BadRecord("value-not-readable", f"{part.label}: {error}") from error

    @property
    def range_ms(self) -> tuple[int, int]:
        return _in_ms("since", self.since, 0), _in_ms("until", self.until, 2**63 - 1)

    def reading(self, schema: pa.Schema | None = None) -> tuple[TableMapping, pa.Schema]:
        """The bound mapping and the schema of what is read: the given one, or without one all declared columns.

        Raises SchemaMismatch, and ConfigError where an encoding has to be said.
        """
        if schema is None:
            mapping = self.mapping.reading()
            flags = [] if self.deleted_as is None else [pa.field(self.deleted_as, pa.bool_())]
            return mapping, pa.schema([*mapping.schema, *flags])
        if self.deleted_as in schema.names and schema.field(self.deleted_as).type != pa.bool_():
            raise SchemaMismatch(
                "column-type", f"deleted_as={self.deleted_as!r} is boolean, not {schema.field(self.deleted_as).type}"
            )
        mapping = self.mapping.reading(pa.schema([field for field in schema if field.name != self.deleted_as]))
        return mapping, schema

    def _check(self, mapping: TableMapping) -> None:
        """Raise ConfigError where the table or a family is missing: reading them would find no rows, and no error."""
        there = describe(self.settings, mapping.table)
        if there is None:
            raise no_table(mapping.table, self.settings.servers)
        wanted = [column.family for column in (*mapping.columns, mapping.tombstone_column) if column is not None]
        if lacking := [family for family in wanted if there.family(family) is None]:
            raise ConfigError(
                "hbase-column-family-missing",
                f"{self.name} has no column family {lacking[0].decode(errors='replace')!r}, but "
                f"{', '.join(family.name.decode(errors='replace') for family in there.families)}: correct the mapping",
            )

    def exposure(self) -> str:
        return self.settings.exposure()

    def options(self) -> dict[str, str]:
        """The options of the data source `onefold_hbase`."""
        start, end = self.range_ms
        own = {
            **self.mapping.options(),
            "since": None if self.since is None else start,
            "until": None if self.until is None else end,
        }
        return to_texts(self.settings) | to_texts(dataclasses.replace(self, servers=self.settings.servers, **own))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> HBaseSource:
        """The source that these data source options describe. The case of their names makes no difference."""
        required = ("servers", "table", "row_key")
        given = from_texts("onefold_hbase", options, HBaseSettings, HBaseSource, required=required)
        connection = {field.name for field in dataclasses.fields(HBaseSettings)} & given.keys()
        settings = HBaseSettings(**{name: given.pop(name) for name in connection})
        return cls(settings, **given)


def _in_ms(name: str, moment: int | dt.datetime | None, otherwise: int) -> int:
    if moment is None:
        return otherwise
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is None:
            raise ConfigError(
                "option-value", f"{name}={moment} is in no time zone: give it a tzinfo, or give milliseconds"
            )
        # Rounded up, since cells have whole milliseconds. Not by timestamp(): a float is too short for some years.
        return -((dt.datetime(1970, 1, 1, tzinfo=dt.UTC) - moment) // dt.timedelta(milliseconds=1))
    if isinstance(moment, bool) or not isinstance(moment, int):
        raise ConfigError("option-value", f"{name}={moment!r} must be milliseconds since 1970, or an aware datetime")
    return moment


def _as(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return exact_cast(array, field.type)
    except Mismatch as error:
        raise ValueError(f"column {field.name}: {error}") from None

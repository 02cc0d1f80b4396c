"""What a user names: a table, how its rows are mapped, which of its cells; and the same as a data source's options."""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.clients.hbase.rows.mapping import RowKey, TableMapping
from onefold.clients.hbase.settings import HBaseSettings
from onefold.core.errors import ConfigError, SchemaMismatch

__all__ = ["HBaseSource"]

Moment = int | dt.datetime | None

_SETTINGS = {field.name: field for field in dataclasses.fields(HBaseSettings)}
_MAPPING = ("table", "rowKey", "salt", "hash", "columns", "family", "deleted")
_OWN = {"fromMs": int, "untilMs": int, "deletedAs": str}


@dataclass(frozen=True)
class HBaseSource:
    """A table, read once and as a whole, a part for each of its regions.

        HBaseSource("localhost:9090", "orders", row_key="customer string, id integer", columns={"n": "f:n integer"})

    `table` may be the TableMapping that a sink writes with; else `row_key`, `columns`, `family` and `deleted` say the
    same as there. Encodings that are not said come from the schema that it is read with.

    Rows that the mapping's `deleted` cell says are deleted are left out; with `deleted_as="gone"` they come too, and
    the boolean column `gone` tells which they are. `time_range=(from, until)`: only cells whose timestamps are at or
    above the first, and below the second: milliseconds since 1970, aware datetimes, or None for no bound. Of a cell
    that was overwritten since, HBase has only the newest, unless its family keeps more versions.

    A row is read whole, and rows at different moments: HBase has no snapshot to read at.
    """

    servers: str | HBaseSettings
    table: str | TableMapping
    row_key: str | Sequence[str] | RowKey | None = None
    columns: Mapping[str, str] | str | None = None
    family: str | None = None
    deleted: str | None = None
    time_range: tuple[Moment, Moment] = (None, None)
    deleted_as: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.table, TableMapping):
            if self.row_key is not None or self.columns or self.family or self.deleted:
                raise ConfigError("row_key, columns, family and deleted are in the mapping that was given as table=")
        elif not self.row_key:
            raise ConfigError("row_key= names the columns of which row keys are made: row_key='customer string, id'")
        if self.deleted_as is not None and self.mapping.deleted is None:
            raise ConfigError("deleted_as= needs deleted=, the cell that says which rows are deleted: 'f:_deleted'")
        if self.deleted_as in (*self.mapping.row_key.names, *(column.name for column in self.mapping.columns)):
            raise ConfigError(f"deleted_as={self.deleted_as!r} is a column of the table already")
        start, end = self.range_ms
        if not 0 <= start < end:
            raise ConfigError(f"time_range is a moment and a later one, in milliseconds from 0 on: not {start}, {end}")
        _ = self.settings

    @property
    def settings(self) -> HBaseSettings:
        return self.servers if isinstance(self.servers, HBaseSettings) else HBaseSettings(self.servers)

    @property
    def mapping(self) -> TableMapping:
        """As it was declared."""
        if isinstance(self.table, TableMapping):
            return self.table
        assert self.row_key is not None
        return TableMapping.of(self.table, self.row_key, self.columns, self.family, self.deleted)

    @property
    def name(self) -> str:
        """For people."""
        return f"table {self.mapping.table} of HBase at {self.settings.servers}"

    @property
    def range_ms(self) -> tuple[int, int]:
        start, end = self.time_range
        return _in_ms(start, 0), _in_ms(end, 2**63 - 1)

    def reading(self, schema: pa.Schema | None = None) -> tuple[TableMapping, pa.Schema]:
        """The mapping, bound, and what is delivered: of a schema its columns, as its types; else all that is declared.

        Raises SchemaMismatch, and ConfigError where an encoding has to be said.
        """
        if schema is None:
            mapping = self.mapping.reading()
            told = [] if self.deleted_as is None else [pa.field(self.deleted_as, pa.bool_())]
            return mapping, pa.schema([*mapping.schema, *told])
        if self.deleted_as in schema.names and schema.field(self.deleted_as).type != pa.bool_():
            raise SchemaMismatch(f"deleted_as={self.deleted_as!r} is boolean, not {schema.field(self.deleted_as).type}")
        mapping = self.mapping.reading(pa.schema([field for field in schema if field.name != self.deleted_as]))
        return mapping, schema

    def options(self) -> dict[str, str]:
        """The options of the data source `onefold_hbase`."""
        settings = self.settings
        told = {_camel(name): getattr(settings, name) for name in _SETTINGS}
        given = {option: str(value) for option, value in told.items() if value is not None} | self.mapping.options()
        start, end = (None if moment is None else _in_ms(moment, 0) for moment in self.time_range)
        own = {"fromMs": start, "untilMs": end, "deletedAs": self.deleted_as}
        return given | {option: str(value) for option, value in own.items() if value is not None}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> HBaseSource:
        """The source that these data source options describe. Names are matched without regard to case."""
        known = {option.lower(): option for option in (*map(_camel, _SETTINGS), *_MAPPING, *_OWN)}
        given: dict[str, str] = {}
        for key, value in options.items():
            if key.lower() not in known:
                near = difflib.get_close_matches(key.lower(), known, 1)
                hint = f"did you mean {known[near[0]]!r}?" if near else f"known are {', '.join(known.values())}"
                raise ConfigError(f"onefold_hbase has no option {key!r}; {hint}")
            given[known[key.lower()]] = value
        if "servers" not in given:
            raise ConfigError("the option 'servers' is missing: host:port of one or several Thrift2 servers")
        told: dict[str, Any] = {}
        for name, setting in _SETTINGS.items():
            if (option := _camel(name)) in given:
                is_number = isinstance(setting.default, int | float)
                told[name] = _parsed(option, given[option], type(setting.default) if is_number else str)
        own = {option: _parsed(option, given[option], kind) for option, kind in _OWN.items() if option in given}
        return cls(
            HBaseSettings(**told),
            TableMapping.from_options(given),
            time_range=(own.get("fromMs"), own.get("untilMs")),
            deleted_as=own.get("deletedAs"),
        )


def _in_ms(moment: Moment, otherwise: int) -> int:
    if moment is None:
        return otherwise
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is None:
            raise ConfigError(f"time_range has {moment}, which is in no time zone: give it a tzinfo, or milliseconds")
        # Rounded up: what is at or above it, and what is below, is told of cells by whole milliseconds. And not by
        # timestamp(): a float has no place for milliseconds of any year.
        return -((dt.datetime(1970, 1, 1, tzinfo=dt.UTC) - moment) // dt.timedelta(milliseconds=1))
    if isinstance(moment, bool) or not isinstance(moment, int):
        raise ConfigError(f"time_range has {moment!r}: milliseconds since 1970, an aware datetime, or None")
    return moment


def _camel(name: str) -> str:
    """Spark's style of an option's name."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _parsed(option: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{option} is a number, not {text!r}") from None

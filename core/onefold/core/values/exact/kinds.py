"""Families of Arrow types, what each takes, and the error for a value that its type does not take."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pyarrow as pa

from onefold.core.values.ddl import type_name
from onefold.core.values.plain import plain

SHOWN_MAX = 100  # characters of a value in an error


class Family(Enum):
    """Types that differ in width, unit or encoding alone."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    DURATION = "duration"
    ZONED = "timestamp with a zone"
    NAIVE = "timestamp without a zone"
    LIST = "list"
    STRUCT = "struct"
    MAP = "map"
    OTHER = "other"


TAKES = {
    Family.NULL: "takes null alone",
    Family.BOOLEAN: "takes true and false",
    Family.INTEGER: "takes integers of its range, and decimals that are such integers, but no floats",
    Family.FLOAT: "takes floats, and integers up to those that it all has exactly, but no decimals",
    Family.DECIMAL: "takes decimals and integers that fit its precision and scale exactly, but no floats",
    Family.TEXT: "takes texts, and bytes that are UTF-8",
    Family.BINARY: "takes bytes (of its length, where it has one), and texts as their UTF-8",
    Family.DATE: "takes dates, but no timestamps",
    Family.TIME: "takes times of day without a zone, in its unit",
    Family.DURATION: "takes durations within its range, in its unit",
    Family.ZONED: "takes timestamps with a zone within its range, in its unit",
    Family.NAIVE: "takes timestamps without a zone within its range, in its unit",
    Family.LIST: "takes lists (of its length, where it has one), and no null where it says NOT NULL",
    Family.STRUCT: "takes structs of its fields, of which nullable ones may be missing",
    Family.MAP: "takes maps in which no key is null or there twice",
    Family.OTHER: "is a type that no value is converted to",
}


class Mismatch(ValueError):
    """A value that its type does not take. `row` counts from 0, and is None where no single value is to blame; `path`
    leads from the column to the value: `.a[].b`."""

    def __init__(self, value: str, reason: str, path: str = "", row: int | None = None) -> None:
        super().__init__(value, reason, path, row)
        self.value, self.reason, self.path, self.row = value, reason, path, row

    def __str__(self) -> str:
        row = "" if self.row is None else f"row {self.row}, "
        return f"{row}{self.path and f'{self.path}: '}{self.value}: {self.reason}"

    def below(self, step: str, row: int | None = None) -> Mismatch:
        """The same within a list, a struct or a map; `row` is that of the whole value."""
        return Mismatch(self.value, self.reason, step + self.path, row)


def family(kind: pa.DataType) -> Family:
    """Of dictionaries and of run ends: that of their values."""
    is_ = pa.types
    if is_.is_dictionary(kind) or is_.is_run_end_encoded(kind):
        return family(kind.value_type)
    if is_.is_timestamp(kind):
        return Family.NAIVE if kind.tz is None else Family.ZONED
    return next((found for found, tests in _TESTS.items() if any(test(kind) for test in tests)), Family.OTHER)


_TESTS = {
    Family.INTEGER: [pa.types.is_integer],
    Family.TEXT: [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view],
    Family.FLOAT: [pa.types.is_floating],
    Family.BOOLEAN: [pa.types.is_boolean],
    Family.DECIMAL: [pa.types.is_decimal],
    Family.DATE: [pa.types.is_date],
    Family.BINARY: [
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ],
    Family.TIME: [pa.types.is_time],
    Family.DURATION: [pa.types.is_duration],
    Family.LIST: [
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    ],
    Family.STRUCT: [pa.types.is_struct],
    Family.MAP: [pa.types.is_map],
    Family.NULL: [pa.types.is_null],
}


def shown(value: Any) -> str:
    """A value as an error shows it."""
    name = type(value).__name__
    try:
        text = repr(value)
    except Exception as error:  # the value's own
        text = f"<a {name} whose repr raises {type(error).__name__}>"
    return plain(text, SHOWN_MAX)


def refused(value: Any, kind: pa.DataType) -> Mismatch:
    """The error for a single Python value."""
    return Mismatch(shown(value), f"{type_name(kind)} {TAKES[family(kind)]}")


def lacks(step: str, kind: pa.DataType) -> Mismatch:
    """The error for a null, or nothing, where the type says NOT NULL."""
    return Mismatch("null", f"{type_name(kind)} is NOT NULL here", step)


def unknown(names: list[str], kind: pa.DataType) -> Mismatch:
    """The error for fields that a struct does not have."""
    return Mismatch(", ".join(map(shown, names)), f"{type_name(kind)} has no such field")

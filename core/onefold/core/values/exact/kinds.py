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
    found = _FAMILIES.get(kind.id, Family.OTHER)
    if found is Family.OTHER and is_encoded(kind):
        return family(kind.value_type)
    return Family.ZONED if found is Family.NAIVE and kind.tz is not None else found


def is_encoded(kind: pa.DataType) -> bool:
    """Whether its values are elsewhere than in its rows."""
    return kind.id in _ENCODED


_NAMES = {
    Family.NULL: "NA",
    Family.BOOLEAN: "BOOL",
    Family.INTEGER: "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64",
    Family.FLOAT: "HALF_FLOAT FLOAT DOUBLE",
    Family.DECIMAL: "DECIMAL32 DECIMAL64 DECIMAL128 DECIMAL256",
    Family.TEXT: "STRING LARGE_STRING STRING_VIEW",
    Family.BINARY: "BINARY LARGE_BINARY BINARY_VIEW FIXED_SIZE_BINARY",
    Family.DATE: "DATE32 DATE64",
    Family.TIME: "TIME32 TIME64",
    Family.DURATION: "DURATION",
    Family.NAIVE: "TIMESTAMP",
    Family.LIST: "LIST LARGE_LIST FIXED_SIZE_LIST LIST_VIEW LARGE_LIST_VIEW",
    Family.STRUCT: "STRUCT",
    Family.MAP: "MAP",
}
_FAMILIES = {getattr(pa.lib, f"Type_{name}"): found for found, names in _NAMES.items() for name in names.split()}
_ENCODED = {pa.lib.Type_DICTIONARY, pa.lib.Type_RUN_END_ENCODED}


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

"""Encodes one column's values as bytes, in the row key or in a cell."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows import encodings
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch

# A null's cell. A value that was left out would keep its older cell; FF is in no UTF-8, and no encoding has 5 bytes.
NULL = b"\xffnull"

_CELL = re.compile(r"(?P<family>[^:\s]+):(?P<qualifier>\S*)(\s+(?P<encoding>\S.*))?", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column in the row key. `encoding` and `kind` (its Arrow type) may be left to the rows."""

    name: str
    encoding: str | None = None
    kind: pa.DataType | None = None

    @classmethod
    def of(cls, text: str) -> KeyColumn:
        """Parses `id`, or `id integer`."""
        name, _, encoding = text.strip().partition(" ")
        return cls(name, *_encoded(encoding))

    @property
    def text(self) -> str:
        """As `of` reads it."""
        return f"{self.name} {_encoding(self)}".rstrip()

    def bound(self, kind: pa.DataType) -> Self:
        """The column for values of this type. Raises SchemaMismatch."""
        encoding = self.encoding or encodings.natural(kind)
        if encoding is None:
            raise SchemaMismatch(
                "column-type",
                f"the column {self.name!r} is {kind}, which has no encoding: cast it to a text or a number",
            )
        fitting = encodings.fitting(encoding, kind)
        if fitting is None:
            raise SchemaMismatch(
                "column-type", f"the column {self.name!r} is {kind}, which cannot be written as {encoding}"
            )
        is_declared = encoding == "decimal" and self.kind is not None
        return replace(self, encoding=encoding, kind=self.kind if is_declared else fitting)

    @property
    def is_bound(self) -> bool:
        return self.kind is not None

    def encode(self, values: pa.Array) -> pa.BinaryArray:
        """The bytes of each value; null stays null. Raises BadRecord."""
        assert self.encoding is not None and self.kind is not None, f"{self.name} is not bound to a type"
        try:
            return encodings.encode(values, self.encoding, self.kind)
        except ValueError as error:
            raise BadRecord(
                "value-not-encodable",
                f"the column {self.name!r} cannot be written as {self._what}: {error}. Filter such rows before the "
                "sink, or mend them",
            ) from error

    def decode(self, values: pa.BinaryArray) -> pa.Array:
        """The values of these bytes; null where there are none. Raises BadRecord."""
        assert self.encoding is not None and self.kind is not None, f"{self.name} is not bound to a type"
        try:
            return encodings.decode(values, self.encoding, self.kind)
        except ValueError as error:
            raise BadRecord(
                "cell-not-decodable",
                f"the column {self.name!r} cannot be read as {self._what}: found {error}. Somebody else wrote it, or "
                "the mapping is not the one that wrote it",
            ) from error

    @property
    def kept(self) -> str:
        """The part of the encoding that must not change: stored bytes would be read as another value."""
        assert self.encoding is not None and self.kind is not None, f"{self.name} is not bound to a type"
        return encodings.kept(self.encoding, self.kind)

    @property
    def _what(self) -> str:
        return str(self.encoding if self.encoding in ("bytes", "json") else f"{self.encoding} ({self.kind})")


@dataclass(frozen=True, slots=True)
class CellColumn(KeyColumn):
    """A column in a cell `family:qualifier`. Null has a cell too, whose value is `NULL`."""

    family: bytes = b""
    qualifier: bytes = b""

    @classmethod
    def cell(cls, name: str, text: str) -> CellColumn:
        """Parses `f:amount`, or `f:amount decimal(12,2)`; odd bytes of a qualifier as in HBase's shell, `\\x20`."""
        found = _CELL.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                "option-value", f"the column {name!r} is mapped to {text!r}: say family:qualifier, such as 'f:{name}'"
            )
        encoding, kind = _encoded(found["encoding"] or "")
        return cls(name, encoding, kind, _bytes(found["family"]), _bytes(found["qualifier"]))

    @property
    def cell_text(self) -> str:
        """As `cell` reads it."""
        return f"{self.place} {_encoding(self)}".rstrip()

    @property
    def place(self) -> str:
        """Family and qualifier, for people."""
        return f"{_text(self.family)}:{_text(self.qualifier)}"

    def encode(self, values: pa.Array) -> pa.BinaryArray:
        """Each value's bytes, `NULL` for null. Raises BadRecord."""
        encoded = KeyColumn.encode(self, values)
        if self.encoding == "bytes" and pc.any(pc.equal(encoded, NULL)).as_py():
            raise BadRecord(
                "value-reserved",
                f"the column {self.name!r} has the value {NULL!r}, which stands for null in HBase: filter such rows "
                "before the sink, or mend them",
            )
        return pc.fill_null(encoded, NULL)

    def decode(self, values: pa.BinaryArray) -> pa.Array:
        """The values of these cells; null where there is none, or where it is `NULL`. Raises BadRecord."""
        return KeyColumn.decode(self, pc.if_else(pc.equal(values, NULL), pa.scalar(None, pa.binary()), values))


def _encoded(text: str) -> tuple[str | None, pa.DataType | None]:
    return encodings.parsed(text) if text.strip() else (None, None)


def _encoding(column: KeyColumn) -> str:
    if column.encoding == "decimal" and column.kind is not None:
        return f"decimal({column.kind.precision},{column.kind.scale})"
    return column.encoding or ""


def _bytes(text: str) -> bytes:
    parts = _ESCAPED.split(text)  # every second one is the digits of a byte
    return b"".join(bytes.fromhex(part) if i % 2 else part.encode() for i, part in enumerate(parts))


def _text(name: bytes) -> str:
    plain = range(0x21, 0x7F)
    return "".join(chr(c) if c in plain and c not in b"\\,=" else f"\\x{c:02x}" for c in name)

"""Row keys: of one column or several, so that byte order is the columns' order, and that they can be read back.

Of one column, the key is its bytes. Of several, they follow one another; a value without a fixed length that is not the
last ends with 00 00, and each 00 inside of it is written 00 FF. In front stands, if asked for, a salt or a hash: both
are the CRC-32 of the rest, so that any other program can find a row, and the rest is whole behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.buffers import crc32, from_fixed, lengths, sliced
from onefold.clients.hbase.rows.cells import KEY_BYTES_MAX
from onefold.clients.hbase.rows.column_encoder import KeyColumn
from onefold.clients.hbase.rows.encodings import width
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch

_END, _ZERO, _INNER_ZERO = b"\x00\x00", b"\x00", b"\x00\xff"
_BETWEEN = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class RowKey:
    """`salt=16`: one byte in front, the CRC-32 modulo 16, so that writers of neighbouring keys use 16 places of the
    table. `hash=4`: the first bytes of the CRC-32 in front (1 to 4), so that no two keys are neighbours."""

    columns: tuple[KeyColumn, ...]
    salt: int | None = None
    hash: int | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or not all(names) or len(set(names)) != len(names):
            raise ConfigError("option-value", f"the row key names columns, each once: {', '.join(names) or 'none'}")
        if bad := [column for column in self.columns if column.encoding in ("double", "json")]:
            raise ConfigError(
                "option-value", f"the row key's {bad[0].name!r} is {bad[0].encoding}, by which no row is found again"
            )
        if self.salt is not None and not 2 <= self.salt <= 256:
            raise ConfigError("option-value", f"salt is the number of places, 2 to 256, not {self.salt!r}")
        if self.hash is not None and not 1 <= self.hash <= 4:
            raise ConfigError("option-value", f"hash is the number of bytes in front, 1 to 4, not {self.hash!r}")
        if self.salt is not None and self.hash is not None:
            raise ConfigError("options-conflict", "a row key has a salt or a hash in front, not both")

    @classmethod
    def of(cls, columns: str | Sequence[str], salt: int | None = None, hash: int | None = None) -> RowKey:
        """Parses `customer, id`, or `customer string, id integer`, or a list of these."""
        parts = _BETWEEN.split(columns) if isinstance(columns, str) else columns
        return cls(tuple(KeyColumn.of(part) for part in parts), salt, hash)

    @property
    def text(self) -> str:
        """The columns, as `of` reads them."""
        return ", ".join(column.text for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def bound(self, schema: pa.Schema, is_whole: bool = True) -> RowKey:
        """The row key for rows of this schema. Without `is_whole` the schema may lack columns that have an encoding.

        Raises SchemaMismatch.
        """
        missing = [c.name for c in self.columns if c.name not in schema.names and (is_whole or not c.is_bound)]
        if missing:
            raise SchemaMismatch(
                "column-missing", f"the row key names {missing[0]!r}, and the rows have {', '.join(schema.names)}"
            )
        there = {field.name: field.type for field in schema}
        return replace(self, columns=tuple(c.bound(there[c.name]) if c.name in there else c for c in self.columns))

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The key of each row. Raises BadRecord for null, for no bytes at all, and for too many."""
        parts: list[pa.Array | pa.Scalar] = []
        for column in self.columns:
            values = batch.column(column.name)
            if values.null_count:
                raise BadRecord(
                    "key-null",
                    f"the column {column.name!r} is null, and it is in the row key: filter such rows before the sink",
                )
            encoded = column.encode(values)
            is_ended = column is not self.columns[-1] and width(column.encoding or "") is None
            parts.append(pc.replace_substring(encoded, _ZERO, _INNER_ZERO) if is_ended else encoded)
            if is_ended:
                parts.append(pa.scalar(_END, pa.binary()))
        keys = self._prefixed(pc.binary_join_element_wise(*parts, b"") if len(parts) > 1 else parts[0])
        sizes = lengths(keys)
        if not ((sizes >= 1) & (sizes <= KEY_BYTES_MAX)).all():
            raise BadRecord(
                "row-key-length",
                f"a row key of {', '.join(self.names)} has {sizes.min()} to {sizes.max()} "
                f"bytes in this batch, and HBase takes 1 to {KEY_BYTES_MAX}: filter such rows before the sink",
            )
        return keys

    def decode(self, keys: pa.BinaryArray) -> list[pa.Array]:
        """The columns of these keys. Raises BadRecord for a key that this would not have written."""
        ends = lengths(keys)
        at = np.full_like(ends, self._prefix_bytes)
        self._check(keys, at <= ends)
        parts = []
        for column in self.columns[:-1]:
            length = width(column.encoding or "")
            if length is not None:
                until = after = at + length
            else:
                rest = sliced(keys, at, ends)
                until = at + pc.find_substring(rest, _END).to_numpy(zero_copy_only=False)
                after = until + len(_END)
            self._check(keys, (at <= until) & (after <= ends))
            part = sliced(keys, at, until)
            parts.append(part if length is not None else pc.replace_substring(part, _INNER_ZERO, _ZERO))
            at = after
        parts.append(sliced(keys, at, ends))
        arrays = [column.decode(part) for column, part in zip(self.columns, parts, strict=True)]
        again = self.encode(pa.RecordBatch.from_arrays(arrays, [column.name for column in self.columns]))
        self._check(keys, pc.equal(keys, again).to_numpy(zero_copy_only=False))
        return arrays

    def split_keys(self, regions: int) -> list[bytes]:
        """The keys at which a new table is split into regions. Raises ConfigError where only the user can know them."""
        if self.salt is not None:
            if regions > self.salt:
                raise ConfigError(
                    "table-not-splittable", f"{regions} regions of {self.salt} salted places: a place is never cut"
                )
            return [bytes([i * self.salt // regions]) for i in range(1, regions)]
        if self.hash is not None:
            whole = 256**self.hash
            if regions > whole:
                raise ConfigError(
                    "table-not-splittable", f"{regions} regions of {whole} hashes: take more bytes of hash"
                )
            return [(i * whole // regions).to_bytes(self.hash, "big") for i in range(1, regions)]
        raise ConfigError(
            "table-not-splittable",
            "a table is cut by itself only where its row keys have a salt or a hash: give the keys at which to cut",
        )

    @property
    def _prefix_bytes(self) -> int:
        return 1 if self.salt is not None else self.hash or 0

    def _prefixed(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        if self.salt is not None:
            front = (crc32(keys) % np.uint32(self.salt)).astype(np.uint8)[:, None]
        elif self.hash is not None:
            front = crc32(keys).astype(">u4").view(np.uint8).reshape(-1, 4)[:, : self.hash]
        else:
            return keys
        return pc.binary_join_element_wise(from_fixed(front, keys), keys, b"")

    def _check(self, keys: pa.BinaryArray, are_ours: npt.NDArray[np.bool_]) -> None:
        if are_ours.all():
            return
        front = f", salt={self.salt}" if self.salt is not None else f", hash={self.hash}" if self.hash else ""
        raise BadRecord(
            "row-key-mismatch",
            f"the row {keys[int(np.argmin(are_ours))].as_py()!r} was not written with the row key "
            f"({self.text}{front}): somebody else wrote it, or the mapping is not the one that wrote it",
        )

"""The same requests as in `binary_protocol`, in the compact protocol or any other, by the objects that thriftpy2 makes
of hbase.thrift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import thriftpy2
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.protocol.cybin import TCyBinaryProtocol
from thriftpy2.transport import TCyMemoryBuffer

from onefold.clients.hbase.rows.cells import Cells, Columns

thrift: Any = thriftpy2.load(str(Path(__file__).with_name("hbase.thrift")), module_name="onefold_hbase_thrift")
SERVICE: Any = thrift.THBaseService


_STRING, _LIST, _STRUCT = 8, 9, 12
_LONG = 15  # a list of this many or more has its length after its type


def arguments(call: str, protocol: str, **given: Any) -> bytes:
    values = getattr(SERVICE, f"{call}_args")()
    for name, value in given.items():
        setattr(values, name, value)
    return encoded(values, protocol)


def encoded(value: Any, protocol: str = "compact") -> bytes:
    memory = TCyMemoryBuffer()
    value.write(TCompactProtocol(memory) if protocol == "compact" else TCyBinaryProtocol(memory))
    return bytes(memory.getvalue())


def puts(keys: pa.BinaryArray, cells: Sequence[Cells], timestamp_ms: int | None) -> pa.BinaryArray:
    return _encoded(list(_puts(keys, cells, timestamp_ms)))


def gets(keys: pa.BinaryArray, columns: Columns) -> pa.BinaryArray:
    wanted = [thrift.TColumn(family, qualifier) for family, qualifier in columns]
    return _encoded([thrift.TGet(row, wanted) for row in keys.to_pylist()])


def deletes(keys: pa.BinaryArray, columns: Columns, timestamp_ms: int) -> pa.BinaryArray:
    wanted = [thrift.TColumn(family, qualifier, timestamp_ms) for family, qualifier in columns]
    return _encoded([thrift.TDelete(row, wanted) for row in keys.to_pylist()])


def checks(
    table: bytes,
    keys: pa.BinaryArray,
    guard: Cells,
    operator: int,
    values: pa.BinaryArray,
    cells: Sequence[Cells],
) -> pa.BinaryArray:
    return pa.array(
        [
            arguments(
                "checkAndMutate",
                "compact",
                table=table,
                row=put.row,
                family=guard.family,
                qualifier=guard.qualifier,
                compareOperator=operator,
                value=value,
                rowMutations=thrift.TRowMutations(put.row, [thrift.TMutation(put=put)]),
            )
            for put, value in zip(_puts(keys, cells, None), values.to_pylist(), strict=True)
        ],
        pa.binary(),
    )


def rows_head(table: bytes, rows: int) -> bytes:
    head = bytes([1 << 4 | _STRING]) + varint(len(table)) + table + bytes([1 << 4 | _LIST])
    return head + (bytes([rows << 4 | _STRUCT]) if rows < _LONG else bytes([0xF0 | _STRUCT]) + varint(rows))


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _puts(keys: pa.BinaryArray, cells: Sequence[Cells], timestamp_ms: int | None) -> Iterator[Any]:
    columns = [(column.family, column.qualifier, column.values.to_pylist()) for column in cells]
    for place, row in enumerate(keys.to_pylist()):
        theirs = [
            thrift.TColumnValue(family, qualifier, values[place])
            for family, qualifier, values in columns
            if values[place] is not None
        ]
        yield thrift.TPut(row, theirs, timestamp_ms)


def _encoded(values: Sequence[Any]) -> pa.BinaryArray:
    return pa.array([encoded(value) for value in values], pa.binary())

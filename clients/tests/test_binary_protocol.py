"""Requests made of Arrow's buffers are, byte by byte, what thriftpy2's own encoder makes of its objects."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.clients.hbase import Cells, binary_protocol, compact_protocol
from onefold.clients.hbase.compact_protocol import thrift

PROTOCOLS = ("binary", "compact")
COLUMNS = [(b"f", b"q"), (b"family", b"")]
bytes_ = st.binary(max_size=40)
keys_ = st.binary(min_size=1, max_size=40)
stamps = st.none() | st.integers(0, 2**62)


def _array(values: list[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def _put(key: bytes, values: tuple[bytes | None, ...], stamp: int | None) -> object:
    cells = [
        thrift.TColumnValue(family, qualifier, value)
        for (family, qualifier), value in zip(COLUMNS, values, strict=True)
        if value is not None
    ]
    return thrift.TPut(key, cells, stamp)


rows_ = st.lists(st.tuples(keys_, st.none() | bytes_, st.none() | bytes_), min_size=1, max_size=20)


def _cells(rows: list[tuple[bytes, bytes | None, bytes | None]]) -> tuple[pa.BinaryArray, list[Cells]]:
    keys, *columns = zip(*rows, strict=True)
    theirs = zip(COLUMNS, columns, strict=True)
    return _array(list(keys)), [Cells(*column, _array(list(values))) for column, values in theirs]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(rows=rows_, stamp=stamps, cut=st.integers(0, 19))
def test_a_put_request_is_thriftpy2s(
    protocol: str, rows: list[tuple[bytes, bytes | None, bytes | None]], stamp: int | None, cut: int
) -> None:
    keys, cells = _cells(rows)
    encoding = compact_protocol if protocol == "compact" else binary_protocol
    start = min(cut, len(rows) - 1)
    made = encoding.puts(keys, cells, stamp)
    request = encoding.rows_head(b"ns:t", len(rows) - start) + bytes(binary_protocol.slice_of(made, start)) + b"\0"
    puts = [_put(key, values, stamp) for key, *values in rows[start:]]
    assert request == compact_protocol.arguments("putMultiple", protocol, table=b"ns:t", tputs=puts)
    assert all(
        len(row) <= most for row, most in zip(made.to_pylist(), binary_protocol.bytes_of(keys, cells), strict=True)
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(keys=st.lists(keys_, min_size=1, max_size=20), stamp=st.integers(0, 2**62))
def test_gets_and_deletes_are_thriftpy2s(protocol: str, keys: list[bytes], stamp: int) -> None:
    encoding = compact_protocol if protocol == "compact" else binary_protocol
    gets = [thrift.TGet(key, [thrift.TColumn(*column) for column in COLUMNS]) for key in keys]
    assert encoding.gets(_array(keys), COLUMNS).to_pylist() == [compact_protocol.encoded(get, protocol) for get in gets]
    columns = [thrift.TColumn(*column, stamp) for column in COLUMNS]
    deletes = [thrift.TDelete(key, columns, None, thrift.TDeleteType.DELETE_COLUMNS) for key in keys]
    made = encoding.deletes(_array(keys), COLUMNS, stamp).to_pylist()
    assert made == [compact_protocol.encoded(delete, protocol) for delete in deletes]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(rows=rows_, compared=bytes_)
def test_conditional_writes_are_thriftpy2s(
    protocol: str, rows: list[tuple[bytes, bytes | None, bytes | None]], compared: bytes
) -> None:
    keys, cells = _cells(rows)
    encoding = compact_protocol if protocol == "compact" else binary_protocol
    greater = thrift.TCompareOperator.GREATER
    values = _array([compared] * len(rows))
    made = encoding.checks(b"t", keys, cells[0], greater, values, cells).to_pylist()
    for request, (key, *row) in zip(made, rows, strict=True):
        mutations = thrift.TRowMutations(key, [thrift.TMutation(put=_put(key, tuple(row), None))])
        assert request == compact_protocol.arguments(
            "checkAndMutate",
            protocol,
            table=b"t",
            row=key,
            family=b"f",
            qualifier=b"q",
            compareOperator=greater,
            value=compared,
            rowMutations=mutations,
        )


@given(keys=st.lists(keys_, min_size=3, max_size=20), start=st.integers(0, 2))
def test_a_slice_of_an_array_is_encoded_as_its_rows(keys: list[bytes], start: int) -> None:
    sliced = _array(keys)[start:]
    assert binary_protocol.gets(sliced, COLUMNS) == binary_protocol.gets(_array(keys[start:]), COLUMNS)
    values = _array([*keys[1:], None])[start:]
    cells = [Cells(b"f", b"q", values)]
    assert binary_protocol.puts(sliced, cells, 7) == binary_protocol.puts(
        _array(keys[start:]), [Cells(b"f", b"q", _array(values.to_pylist()))], 7
    )


@given(sizes=st.lists(st.integers(1, 300), max_size=50), room=st.integers(1, 1000))
def test_rows_are_cut_into_requests_that_have_room_or_hold_one_row(sizes: list[int], room: int) -> None:
    cuts = list(binary_protocol.cuts(np.array(sizes, np.int64), room))
    assert [at for start, stop in cuts for at in range(start, stop)] == list(range(len(sizes)))
    for start, stop in cuts:
        assert sum(sizes[start:stop]) <= room or stop == start + 1
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > room, "one more would have had room"


def test_lists_of_any_length_begin_as_thriftpy2_begins_them() -> None:
    for rows in (0, 1, 14, 15, 127, 128, 20_000):
        for protocol, encoding in (("binary", binary_protocol), ("compact", compact_protocol)):
            gets = [thrift.TGet(b"k", [])] * rows
            whole = compact_protocol.arguments("getMultiple", protocol, table=b"t", tgets=gets)
            assert whole.startswith(encoding.rows_head(b"t", rows))
            assert (
                len(whole)
                == len(encoding.rows_head(b"t", rows))
                + rows * len(compact_protocol.encoded(gets[0] if rows else thrift.TGet(b"k", []), protocol))
                + 1
            )


def test_strict_binary_is_what_the_protocol_says_it_is() -> None:
    """So that a fault which we shared with thriftpy2 would show: Thrift's specification, written out."""
    text = struct.Struct(">i").pack
    cell = b"\x0b\0\1" + text(1) + b"f" + b"\x0b\0\2" + text(1) + b"q" + b"\x0b\0\3" + text(2) + b"vv" + b"\0"
    put = (
        b"\x0b\0\1" + text(3) + b"key" + b"\x0f\0\2\x0c" + text(1) + cell + b"\x0a\0\3" + struct.pack(">q", 42) + b"\0"
    )
    assert binary_protocol.puts(_array([b"key"]), [Cells(b"f", b"q", _array([b"vv"]))], 42).to_pylist() == [put]

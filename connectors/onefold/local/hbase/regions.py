"""Flushes and major compactions, now: what Thrift2 has no call for, asked of the region server itself.

Two calls of HBase's own protocol (RPC.proto, Admin.proto) are a few bytes each; a JVM for HBase's shell takes seconds
and another hundred jars.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onefold.local.server_errors import LocalServerError

_HELLO = b"HBas" + bytes([0, 80])  # version 0, no authentication
_ANSWER_S_MAX = 60.0
_COMPACTION_S_MAX = 120.0
_OPENED_S_MAX = 30.0  # a table counts as made a moment before its last region is open
_PAUSE_S = 0.02


def region_names(table_folder: Path) -> list[bytes]:
    """The regions of a table, by what HBase wrote of each into its folder."""
    return [_name(found) for found in sorted(table_folder.glob("*/.regioninfo"))]


def _name(written: Path) -> bytes:
    content = written.read_bytes().removeprefix(b"PBUF")
    length, start = _read_varint(content, 0)
    fields = _fields(content[start : start + length])  # RegionInfo of HBase.proto
    table = _fields(_bytes(fields.get(2)))
    namespace, qualifier = _bytes(table.get(1)), _bytes(table.get(2))
    name = qualifier if namespace == b"default" else namespace + b":" + qualifier
    started, encoded_name = fields[1], written.parent.name
    assert isinstance(started, int)
    return b"%s,%s,%d.%s." % (name, _bytes(fields.get(3)), started, encoded_name.encode())


def _bytes(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def flush_regions(address: tuple[str, int], regions: Sequence[bytes]) -> None:
    """Writes what the regions have in memory into files; back when it is done."""
    with _connected(address) as connection:
        for region in regions:
            _call_when_open(connection, "FlushRegion", _field(1, _region(region)))


def major_compact_regions(address: tuple[str, int], regions: Sequence[bytes]) -> None:
    """Rewrites each region's files as one, without deleted and outdated cells; back when it is done."""
    with _connected(address) as connection:
        for region in regions:
            _call_when_open(connection, "CompactRegion", _field(1, _region(region)) + _number(2, 1))
        deadline = time.monotonic() + _COMPACTION_S_MAX
        for region in regions:
            while _compacts(connection, region):
                if time.monotonic() > deadline:
                    raise LocalServerError(
                        "compaction-timeout",
                        f"region {region!r} is still being compacted after {_COMPACTION_S_MAX:.0f} s",
                    )
                time.sleep(_PAUSE_S)


def _compacts(connection: socket.socket, region: bytes) -> bool:
    answer = _call(connection, "GetRegionInfo", _field(1, _region(region)) + _number(2, 1))
    return _fields(answer).get(2, 0) != 0  # compaction_state: 0 is NONE


def _region(name: bytes) -> bytes:
    return _number(1, 1) + _field(2, name)  # RegionSpecifier: 1 is REGION_NAME


@contextmanager
def _connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    try:
        with socket.create_connection(address, timeout=_ANSWER_S_MAX) as connection:
            header = _field(1, _field(1, b"onefold")) + _field(2, b"AdminService")
            connection.sendall(_HELLO + struct.pack(">i", len(header)) + header)
            yield connection
    except OSError as error:
        raise LocalServerError(
            "region-server-unreachable", f"HBase's region server at {address[0]}:{address[1]} does not answer: {error}"
        ) from error


class _NotOpen(Exception):
    """The region server does not serve this region: not yet, or no longer."""


def _call_when_open(connection: socket.socket, method: str, request: bytes) -> None:
    deadline = time.monotonic() + _OPENED_S_MAX
    while True:
        try:
            _call(connection, method, request)
            return
        except _NotOpen as error:
            if time.monotonic() > deadline:
                raise LocalServerError("hbase-admin-failed", f"{method} failed in HBase: {error}") from None
            time.sleep(_PAUSE_S)


def _call(connection: socket.socket, method: str, request: bytes) -> bytes:
    header = _number(1, 0) + _field(3, method.encode()) + _number(4, 1)
    message = _varint(len(header)) + header + _varint(len(request)) + request
    connection.sendall(struct.pack(">i", len(message)) + message)
    (size,) = struct.unpack(">i", _received(connection, 4))
    answer = _received(connection, size)
    length, start = _read_varint(answer, 0)
    failure = _fields(answer[start : start + length]).get(2)
    if isinstance(failure, bytes):
        said = failure.decode(errors="replace")[:500]
        if "NotServingRegionException" in said or "RegionOpeningException" in said:
            raise _NotOpen(said)
        raise LocalServerError("hbase-admin-failed", f"{method} failed in HBase: {said}")
    length, start = _read_varint(answer, start + length)
    return answer[start : start + length]


def _received(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("it closed the connection")
        received += part
    return bytes(received)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next thing starts."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a message that has numbers and byte strings only."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == 2:
            found[tag >> 3] = message[at : at + value]
            at += value
        else:
            found[tag >> 3] = value
    return found

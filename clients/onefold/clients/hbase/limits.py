"""Reads a Thrift server's limits from the settings on its web page.

seen, on http://HOST:9095/conf    how long it goes on with a request whose client has given up; frames,
                                  idle connections, worker threads
asked through Thrift              versions, TTL and durability of a table (tables.describe)
not seen                          all of it where hbase.thrift.info.port is -1 or closed off; what region servers have
                                  set for themselves (hbase.server.keyvalue.maxsize, memstore limits); idle limits of
                                  a load balancer between; Thrift servers that others write through
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

from onefold.clients.hbase.client_settings import Address, HBaseSettings
from onefold.clients.hbase.pool import IDLE_S_MAX

_ANSWER_BYTES_MAX = 16 << 20
_LOOK_S_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one Thrift server, with HBase's defaults where its settings leave something out."""

    address: Address
    operation_s: float  # the longest that it goes on with one request
    is_framed: bool
    is_compact: bool
    frame_bytes_max: int
    idle_s_max: float
    workers_max: int


def limits(address: Address, info_port: int) -> Limits | None:
    """The server's limits; None where it shows no settings."""
    try:
        with urlopen(f"http://{address.host}:{info_port}/conf?format=json", timeout=_LOOK_S_MAX) as answer:
            found = json.loads(answer.read(_ANSWER_BYTES_MAX))
        return _limits(address, {one["key"]: one.get("value") for one in found["properties"]})
    except (
        OSError,
        HTTPException,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        return None


def misfits(seen: Limits, settings: HBaseSettings) -> Iterator[str]:
    """Which of a server's limits contradict the settings, and what to do."""
    where = f"the HBase Thrift server at {seen.address}"
    if seen.operation_s >= settings.timeout_s:
        yield (
            f"{where} goes on with a request for up to {seen.operation_s:g} s (hbase.client.operation.timeout), also"
            f" when its client has died or given it up, after timeout_s={settings.timeout_s:g}: set it lower"
        )
    if seen.is_framed != (settings.transport == "framed") or seen.is_compact != (settings.protocol == "compact"):
        theirs = f"{'framed' if seen.is_framed else 'buffered'}, {'compact' if seen.is_compact else 'binary'}"
        yield f"{where} speaks {theirs}, and the settings say {settings.transport}, {settings.protocol}"
    if seen.is_framed and seen.frame_bytes_max < settings.frame_bytes_max:
        yield f"{where} takes frames of {seen.frame_bytes_max:,} bytes: lower frame_bytes_max to that"
    if seen.idle_s_max <= IDLE_S_MAX:
        yield (
            f"{where} closes connections after {seen.idle_s_max:g} s (hbase.thrift.server.socket.read.timeout), and"
            f" ours rest for up to {IDLE_S_MAX:g} s: raise it, or conditional writes will now and then be in doubt"
        )
    if seen.workers_max < settings.connections:
        yield (
            f"{where} serves {seen.workers_max} connections at once (hbase.thrift.maxWorkerThreads), and each process "
            f"opens up to {settings.connections}: raise the one or lower the other"
        )


def _limits(address: Address, settings: Mapping[str, Any]) -> Limits:
    def number(name: str, default: float) -> float:
        return float(settings.get(name) or default)

    def flag(name: str) -> bool:
        return str(settings.get(name)).lower() == "true"

    return Limits(
        address,
        operation_s=number("hbase.client.operation.timeout", 1_200_000) / 1000,
        is_framed=flag("hbase.regionserver.thrift.framed"),
        is_compact=flag("hbase.regionserver.thrift.compact"),
        frame_bytes_max=int(number("hbase.regionserver.thrift.framed.max_frame_size_in_mb", 2) * (1 << 20)),
        idle_s_max=number("hbase.thrift.server.socket.read.timeout", 60_000) / 1000,
        workers_max=int(number("hbase.thrift.maxWorkerThreads", 1000)),
    )

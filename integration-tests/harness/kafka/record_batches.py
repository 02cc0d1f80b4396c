"""Record batches byte by byte, with headers that no client library makes."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Sequence

from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.util import calc_crc32c

from onefold.clients.kafka.cluster import cluster

__all__ = ["put_batch"]

_GZIP = 1
_HEADER = bytes([0, 1])  # an empty name, and a null value: zigzag of -1


def put_batch(servers: str, topic: str, records: Sequence[tuple[bytes, int]]) -> None:
    """One batch in gzip: each record a value, and so many empty headers."""
    data = gzip.compress(b"".join(_record(at, *record) for at, record in enumerate(records)), 9)
    now_ms = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", _GZIP, len(records) - 1, now_ms, now_ms, -1, -1, -1, len(records)) + data
    head = struct.pack(">ibI", 0, 2, calc_crc32c(tail))
    kafka, produce = cluster(servers, {}, 20.0), ProduceRequest.TopicProduceData
    batch = struct.pack(">qi", 0, len(head) + len(tail)) + head + tail
    part = produce.PartitionProduceData(index=0, records=batch)
    data_of = [produce(name=topic, partition_data=[part])]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data_of)
    answer = kafka.ask(kafka.leader(topic), request, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def _record(at: int, value: bytes, headers: int) -> bytes:
    body = b"\0" + _varint(0) + _varint(at) + _varint(-1) + _varint(len(value)) + value
    body += _varint(headers) + _HEADER * headers
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    """Zigzag, and seven bits a byte."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])

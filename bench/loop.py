"""The peer: what one writes by hand for one topic and one table, without any framework: in two processes for all there
is, or in one that goes on.

Exactly-once, too: the offsets are rows in the same transaction as the data. It has no protection against a zombie, no
schema that could differ, nobody who restarts it, and no transformation but its own code.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.json as pj
from confluent_kafka import Consumer, Message, TopicPartition
from pgpq import ArrowToPostgresBinaryEncoder

__all__ = ["LiveLoop", "Loop"]

_MESSAGES_MAX = 10_000
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("account", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


class Loop:
    """Two processes that are up and wait; `go` lets them run and returns when both have committed everything."""

    def __init__(
        self, bootstrap_servers: str, postgres_url: str, topic: str, table: str, ends: dict[int, int], rows: int | None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._start = context.Barrier(3)
        self._processes = [
            context.Process(
                target=_work,
                args=(bootstrap_servers, postgres_url, topic, table, share, rows and rows // 2, self._start),
                daemon=True,
            )
            for share in (dict(list(ends.items())[0::2]), dict(list(ends.items())[1::2]))
        ]
        for process in self._processes:
            process.start()

    def wait_until_up(self) -> None:
        while self._start.n_waiting < 2:
            for process in self._processes:
                process.join(0.05)
                if process.exitcode is not None:
                    raise RuntimeError("a process of the loop ended while it started")

    def go(self) -> None:
        self._start.wait()
        for process in self._processes:
            process.join()
            if process.exitcode != 0:
                raise RuntimeError(f"a process of the loop ended with {process.exitcode}")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


class LiveLoop:
    """One process that takes what there is of a topic of one partition, again and again, until it is closed. Each of
    its transactions becomes a line of the file `told`: its number, when it ended, and seconds by step."""

    def __init__(self, bootstrap_servers: str, postgres_url: str, topic: str, table: str, told: str) -> None:
        self._process = multiprocessing.get_context("spawn").Process(
            target=_go_on, args=(bootstrap_servers, postgres_url, topic, table, told), daemon=True
        )
        self._process.start()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _go_on(bootstrap_servers: str, postgres_url: str, topic: str, table: str, told: str) -> None:
    gc.disable()
    consumer = _consumer(bootstrap_servers)
    with psycopg.connect(postgres_url) as connection, Path(told).open("w", buffering=1) as file:
        row = connection.execute(f"SELECT next_offset FROM {table}_offsets".encode()).fetchone()
        connection.commit()
        assert row is not None
        positions = {0: row[0]}
        consumer.assign([TopicPartition(topic, 0, row[0])])
        number, ended_s = 0, time.monotonic()
        while True:
            if (first := consumer.poll(1.0)) is None:
                continue
            messages = [first, *consumer.consume(_MESSAGES_MAX, 0.0)]
            polled_s = time.monotonic()
            encoder = ArrowToPostgresBinaryEncoder(_SCHEMA)
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
                copy.write(encoder.write_header())
                _copy(messages, positions, encoder, copy)
                copy.write(encoder.finish())
            copied_s = time.monotonic()
            _commit(connection, table, positions)
            before_s, ended_s, number = ended_s, time.monotonic(), number + 1
            steps = {"wait": polled_s - before_s, "copy": copied_s - polled_s, "commit": ended_s - copied_s}
            file.write(json.dumps({"epoch": number, "ended_s": ended_s, "steps": steps}) + "\n")


def _work(
    bootstrap_servers: str,
    postgres_url: str,
    topic: str,
    table: str,
    ends: dict[int, int],
    rows_per_commit: int | None,
    start: Barrier,
) -> None:
    start.wait()
    gc.disable()  # messages are objects that the collector counts; nothing here makes cycles
    consumer = _consumer(bootstrap_servers)
    with psycopg.connect(postgres_url) as connection:
        positions = {
            partition: offset
            for partition, offset in connection.execute(
                f"SELECT kafka_partition, next_offset FROM {table}_offsets".encode()
            )
            if partition in ends
        }
        consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in positions.items()])
        while any(positions[partition] < end for partition, end in ends.items()):
            _one_commit(consumer, connection, table, positions, ends, rows_per_commit)
            _commit(connection, table, positions)
    consumer.close()


def _consumer(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "not used",
            "enable.auto.commit": False,
            "queued.min.messages": 200_000,
            "fetch.max.bytes": 64 << 20,
            "fetch.message.max.bytes": 8 << 20,
        }
    )


def _commit(connection: psycopg.Connection, table: str, positions: dict[int, int]) -> None:
    connection.execute("SET LOCAL synchronous_commit = on")
    for partition, offset in positions.items():
        connection.execute(
            f"UPDATE {table}_offsets SET next_offset = %s WHERE kafka_partition = %s".encode(), (offset, partition)
        )
    connection.commit()


def _one_commit(
    consumer: Consumer,
    connection: psycopg.Connection,
    table: str,
    positions: dict[int, int],
    ends: dict[int, int],
    rows_max: int | None,
) -> None:
    rows = 0
    encoder = ArrowToPostgresBinaryEncoder(_SCHEMA)
    with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
        copy.write(encoder.write_header())
        while any(positions[partition] < end for partition, end in ends.items()):
            if rows_max is not None and rows >= rows_max:
                break
            messages = consumer.consume(_MESSAGES_MAX, 0.5)
            if messages:
                _copy(messages, positions, encoder, copy)
            rows += len(messages)
        copy.write(encoder.finish())


def _copy(
    messages: Sequence[Message], positions: dict[int, int], encoder: ArrowToPostgresBinaryEncoder, copy: Any
) -> None:
    values = []
    for message in messages:
        if (error := message.error()) is not None:
            raise RuntimeError(error.str())
        values.append(message.value())
        positions[message.partition()] = message.offset() + 1
    joined = b"\n".join(values)
    parsed = pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=_SCHEMA),
    )
    if parsed.num_rows != len(values):
        raise RuntimeError("not one object in each message")
    for batch in parsed.to_batches():
        copy.write(encoder.write_batch(batch))

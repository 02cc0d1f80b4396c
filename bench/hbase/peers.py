"""What people write with happybase: batches, counters, checkAndPut; the rows are encoded beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import happybase
import pyarrow as pa
from Hbase_thrift import Mutation  # of happybase

from bench.hbase.place import KEY, SCHEMA, Place, Spent

__all__ = ["check_and_put", "counters", "in_batches"]


def in_batches(place: Place, batch_rows: int, threads: int) -> Spent:
    """At least once, as fast as it gets: no epoch, no replay, no timestamps."""
    rows = _encoded(place.batches(place.rows, place.rows))
    shares = [rows[place.rows * at // threads : place.rows * (at + 1) // threads] for at in range(threads)]
    with place.table(place.rows) as table, ThreadPoolExecutor(threads) as pool:
        connections = [_connected(place) for _ in range(threads)]
        with place.clock(place.rows) as spent:
            for done in [
                pool.submit(_put, c, table, share, batch_rows) for c, share in zip(connections, shares, strict=True)
            ]:
                done.result()
        for connection in connections:
            connection.close()
        place.check(table, place.rows)
    return spent


def counters(place: Place) -> Spent:
    """One increment a message: a message that comes again is counted again."""
    rows = _encoded(place.batches(place.one_by_one, place.one_by_one))
    with place.table(place.one_by_one) as table:
        connection = _connected(place)
        there = connection.table(table)
        with place.clock(place.one_by_one) as spent:
            for key, amount, _ in rows:
                there.counter_inc(key, b"f:amount", int.from_bytes(amount, "big") - (1 << 63))
        connection.close()
    return spent


def check_and_put(place: Place) -> Spent:
    """One conditional write a message, without the read that tells what to expect."""
    rows = _encoded(place.batches(place.one_by_one, place.one_by_one))
    with place.table(place.one_by_one) as table:
        connection = _connected(place)
        with place.clock(place.one_by_one) as spent:
            for key, amount, _ in rows:
                mutation = Mutation(column=b"f:amount", value=amount)
                if not connection.client.checkAndPut(table.encode(), key, b"f:amount", None, mutation, {}):
                    raise RuntimeError(f"{key!r} was there")
        connection.close()
        place.check(table, place.one_by_one)
    return spent


def _connected(place: Place) -> happybase.Connection:
    host, port = place.thrift1
    return happybase.Connection(host, port, timeout=60_000)


def _put(connection: happybase.Connection, table: str, rows: Sequence[tuple[bytes, bytes, bytes]], size: int) -> None:
    there = connection.table(table)
    for start in range(0, len(rows), size):
        batch = there.batch()
        for key, amount, note in rows[start : start + size]:
            batch.put(key, {b"f:amount": amount, b"f:note": note})
        batch.send()


def _encoded(batches: Sequence[pa.RecordBatch]) -> list[tuple[bytes, bytes, bytes]]:
    key = KEY.bound(SCHEMA)
    found: list[tuple[bytes, bytes, bytes]] = []
    for batch in batches:
        amounts = [(value + (1 << 63)).to_bytes(8, "big") for value in batch.column("amount").to_pylist()]
        notes = [value.encode() for value in batch.column("note").to_pylist()]
        found += zip(key.encode(batch).to_pylist(), amounts, notes, strict=True)
    return found

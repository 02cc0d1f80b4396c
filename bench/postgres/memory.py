"""Rows that are in memory already, into Postgres, by two processes: what the writers of a sink do, without Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pgpq import ArrowToPostgresBinaryEncoder

from bench.epochs import Epochs
from bench.postgres.tables import SCHEMA, Tables
from bench.team import Job, Team
from onefold.core import TaskId
from onefold.sinks import PostgresSink

__all__ = ["copy_from_files", "copy_from_memory", "through_the_sink"]

BATCH_ROWS = 10_000  # as Spark hands them out


def through_the_sink(tables: Tables, table: str, paths: Sequence[Path], delivery: str, **settings: Any) -> float:
    """Arrow batches in, committed rows out: a whole epoch of the protocol with a writer in each process."""
    sink = PostgresSink(tables.server.url, table, delivery=delivery, **settings)
    epochs = Epochs(sink, table, sink.store_url() or "", SCHEMA)
    with Team(_write, [(sink, path) for path in paths]) as team:
        began_s = time.perf_counter()
        epochs.run(team)
        seconds = time.perf_counter() - began_s
    epochs.close()
    return seconds


def copy_from_memory(tables: Tables, table: str, paths: Sequence[Path]) -> float:
    """psycopg alone: COPY of bytes that were encoded beforehand, a transaction in each process."""
    with Team(_copy_bytes, [(tables.server.url, table, path) for path in paths]) as team:
        began_s = time.perf_counter()
        team.go(None)
        team.answers()
        return time.perf_counter() - began_s


def copy_from_files(tables: Tables, table: str, paths: Sequence[Path]) -> float:
    """The server reads files that hold COPY's own format: nothing but Postgres, in as many sessions."""
    files = [path.with_suffix(".copy") for path in paths]
    for path, file in zip(paths, files, strict=True):
        file.write_bytes(b"".join(_encoded(_batches(path))))
        file.chmod(0o644)
    with Team(_copy_file, [(tables.server.url, table, file) for file in files]) as team:
        began_s = time.perf_counter()
        team.go(None)
        team.answers()
        return time.perf_counter() - began_s


def _write(sink: PostgresSink, path: Path) -> Job:
    batches = _batches(path)
    task: TaskId = yield
    while True:  # an epoch may run again
        writer = sink.writer(task.another_attempt())
        for batch in batches:
            writer.write(batch)
        task = yield writer.prepare()


def _copy_bytes(url: str, table: str, path: Path) -> Job:
    chunks = _encoded(_batches(path))
    connection = psycopg.connect(url)
    yield
    with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy:
        for chunk in chunks:
            copy.write(chunk)
    yield connection.commit()


def _copy_file(url: str, table: str, file: Path) -> Job:
    connection = psycopg.connect(url)
    yield
    connection.execute(f"COPY {table} FROM '{file}' (FORMAT binary)".encode())
    yield connection.commit()


def _batches(path: Path) -> list[pa.RecordBatch]:
    return pq.read_table(path, schema=SCHEMA).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _encoded(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    encoder = ArrowToPostgresBinaryEncoder(SCHEMA)
    return [encoder.write_header(), *map(encoder.write_batch, batches), encoder.finish()]

"""Rows that are in memory already, into Postgres, by two processes: what the writers of a sink do, without Spark."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pgpq import ArrowToPostgresBinaryEncoder

from bench.postgres.tables import SCHEMA, Tables
from onefold.core import Committable, EpochRecord, LastResource, Positions, Range, TaskId
from onefold.core.driver import Driver
from onefold.core.effects import EpochRequest, Pause
from onefold.core.protocol import Initial, epoch, start
from onefold.core.store import CheckpointStore
from onefold.sinks import PostgresSink

__all__ = ["copy_from_files", "copy_from_memory", "through_the_sink"]

BATCH_ROWS = 10_000  # as Spark hands them out


def through_the_sink(tables: Tables, table: str, paths: Sequence[Path], delivery: str, **settings: Any) -> float:
    """Arrow batches in, committed rows out: a whole epoch of the protocol with a writer in each process."""
    sink = PostgresSink(tables.server.url, table, delivery=delivery, **settings)
    pipeline, names = table, (sink.name,)
    store = CheckpointStore(sink.store_url() or "")
    driver = Driver(pipeline, store, {sink.name: sink.recover(pipeline)}, _stop)
    nowhere, all_of_it = Positions.of({"rows/0": 0}), Positions.of({"rows/0": 1})
    started = driver.run(start(names, Initial(nowhere)))
    committer = driver.committers[sink.name] = sink.open(pipeline, SCHEMA)
    if delivery == "staged":
        assert isinstance(committer, LastResource)
        driver.last_resource = sink.name
    task = TaskId(pipeline, started.generation.number, 1, 0, uuid.uuid4())
    with _Team(_write, [(sink, path) for path in paths]) as team:
        began_s = time.perf_counter()

        def write(record: EpochRecord) -> tuple[Committable, ...]:
            assert record.epoch == task.epoch
            team.go(TaskId(pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4()))
            return tuple(team.answers())

        driver.run(
            epoch(started.generation, started.store_id, EpochRequest(Range(nowhere, all_of_it), sinks=names)), write
        )
        seconds = time.perf_counter() - began_s
    driver.committers[sink.name].close()
    store.close()
    return seconds


def copy_from_memory(tables: Tables, table: str, paths: Sequence[Path]) -> float:
    """psycopg alone: COPY of bytes that were encoded beforehand, a transaction in each process."""
    with _Team(_copy_bytes, [(tables.server.url, table, path) for path in paths]) as team:
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
    with _Team(_copy_file, [(tables.server.url, table, file) for file in files]) as team:
        began_s = time.perf_counter()
        team.go(None)
        team.answers()
        return time.perf_counter() - began_s


class _Team:
    """Processes that make ready, wait, do one thing at once, and answer."""

    def __init__(self, work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready = context.Barrier(len(arguments) + 1)
        pipes = [context.Pipe() for _ in arguments]
        self._pipes = [mine for mine, _ in pipes]
        self._processes = [
            context.Process(target=_member, args=(work, theirs, self._ready, *given), daemon=True)
            for (_, theirs), given in zip(pipes, arguments, strict=True)
        ]

    def __enter__(self) -> _Team:
        for process in self._processes:
            process.start()
        self._ready.wait(120)
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def go(self, order: Any) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def answers(self) -> list[Any]:
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def _member(work: Callable[..., Any], pipe: Any, ready: Barrier, *arguments: Any) -> None:
    job = work(*arguments)
    next(job)
    ready.wait(120)
    try:
        pipe.send(job.send(pipe.recv()))
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
    time.sleep(60)  # until it is killed: how long it takes to end is nobody's time


def _write(sink: PostgresSink, path: Path) -> Any:
    batches = _batches(path)
    task: TaskId = yield
    writer = sink.writer(task.another_attempt())
    for batch in batches:
        writer.write(batch)
    yield writer.prepare()


def _copy_bytes(url: str, table: str, path: Path) -> Any:
    chunks = _encoded(_batches(path))
    connection = psycopg.connect(url)
    yield
    with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy:
        for chunk in chunks:
            copy.write(chunk)
    yield connection.commit()


def _copy_file(url: str, table: str, file: Path) -> Any:
    connection = psycopg.connect(url)
    yield
    connection.execute(f"COPY {table} FROM '{file}' (FORMAT binary)".encode())
    yield connection.commit()


def _batches(path: Path) -> list[pa.RecordBatch]:
    return pq.read_table(path, schema=SCHEMA).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _encoded(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    encoder = ArrowToPostgresBinaryEncoder(SCHEMA)
    return [encoder.write_header(), *map(encoder.write_batch, batches), encoder.finish()]


def _stop(pause: Pause) -> None:
    raise pause.because

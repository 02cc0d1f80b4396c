"""Batch runs on Spark: write a DataFrame exactly once under its run's name, however often the job runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from onefold.core import Committable, ConfigError, EpochRecord, Fenced, OnefoldError
from onefold.core.checks import present
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial, Outcome, Started
from onefold.core.protocol.in_doubt import LOOKS_MAX
from onefold.core.protocol.recovery import resolve
from onefold.core.protocol.runs import NO_RUN, DecidedRun, check_name, next_range, run_of
from onefold.spark.runtime.checkpoint import elsewhere
from onefold.spark.runtime.dataframe_columns import arrow_of
from onefold.spark.runtime.query import QuerySession
from onefold.store.job.session import Session

log = logging.getLogger("onefold")


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The result of a run: its epoch, its rows, and whether they were written before this call."""

    run: str
    epoch: int
    rows: int
    replayed: bool


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run whose writers may start, and what another process needs to decide it. Pickles."""

    started: Started
    request: EpochRequest
    record: EpochRecord
    schema: pa.Schema


class _Opened(Exception):
    """Carries an epoch out of the protocol, because another process runs its writers. It is no error."""

    def __init__(self, record: EpochRecord) -> None:
        super().__init__(record)
        self.record = record


def write_batch(session: QuerySession, df: DataFrame, run: str) -> BatchOutcome:
    """Write `df` as the run of that name, unless that was done before."""
    if df.isStreaming:
        raise ConfigError(
            "streaming-dataframe",
            "write_batch writes a batch DataFrame; a streaming one is written by df.writeStream.foreachBatch(writer)",
        )
    session.check_store_reaches(elsewhere(df.sparkSession))
    session.prepare_workers(df.sparkSession)
    session.has_worker_died = False
    with _turn(session, run):
        asked = _ask(session, run, arrow_of(df.schema))
        if isinstance(asked, BatchOutcome):
            return asked
        outcome = _outcome(session.run_epoch(asked, partial(session.write, df)))
    log.info(
        "pipeline %r: run %r is written, as epoch %d of %s rows", session.name, run, outcome.epoch, f"{outcome.rows:,}"
    )
    return outcome


def open_run(session: Session, run: str, schema: pa.Schema) -> OpenedRun | BatchOutcome:
    """Open the run's epoch for writers elsewhere, unless it was written before. `decide_run` does the rest."""

    def leave(record: EpochRecord) -> tuple[Committable, ...]:
        raise _Opened(record)

    with _turn(session, run):
        asked = _ask(session, run, schema)
        if isinstance(asked, BatchOutcome):
            return asked
        try:
            return _outcome(session.run_epoch(asked, leave))
        except _Opened as opened:
            assert session.started is not None
            return OpenedRun(session.started, asked, opened.record, schema)


def decide_run(session: Session, opened: OpenedRun, manifest: tuple[Committable, ...]) -> BatchOutcome:
    """Decide and commit what the writers of an opened run prepared, in any process of the same driver.

    The protocol runs from its start: a run that was decided already is not decided again.
    """
    with _turn(session, opened.request.query_id):
        session.lifecycle.started = opened.started
        session.open_sinks(opened.schema)
        return _outcome(session.run_epoch(opened.request, lambda _: manifest, 1, opened.record))


def give_up_run(session: Session, opened: OpenedRun) -> None:
    """Clean up after a failure: recovery finishes the run if it was decided before, and undoes it otherwise.

    A driver that was taken over leaves that to its successor.
    """
    if session.facts().generation == opened.started.generation.number:
        session.start(None)
        session.drive(session.lifecycle.sweep())


def _ask(session: Session, run: str, schema: pa.Schema) -> EpochRequest | BatchOutcome:
    """Take over the pipeline for this run, unless it was written. No older driver decides anything afterwards."""
    check_name(run)
    done = session.decided_run(run)
    if done is not None and _is_at_rest(session, done):
        return _replayed(session, done)
    next_range(session.facts(), run)  # a run that is refused fences nobody
    session.start(Initial(NO_RUN))
    session.drive(session.lifecycle.sweep())
    done = session.decided_run(run)
    if done is not None:
        return _replayed(session, done)
    fingerprint = session.open_sinks(schema)
    return EpochRequest(
        range=next_range(session.facts(), run),
        query_id=run,
        fingerprint=fingerprint,
        sinks=session.names,
        write_through=session.write_through,
    )


def _is_at_rest(session: Session, done: DecidedRun) -> bool:
    """Whether the run is complete, by store and destinations: then no driver of another run must be fenced.

    Where the two contradict each other, another run may have moved on between the two reads. So it reads again until
    the store stands still; a contradiction that stays is for the next start to report.
    """
    facts = session.facts()
    for _ in range(LOOKS_MAX):
        if any(record.epoch == done.epoch for record in facts.unfinished):
            return False
        try:
            resolve(facts, session.ledgers())
        except OnefoldError:
            before, facts = facts, session.facts()
            if facts == before:
                return False
        else:
            return True
    return False


def _replayed(session: Session, done: DecidedRun) -> BatchOutcome:
    """Raises DataLoss where what the run has written to is missing, or was made anew."""
    session.check_targets()
    log.info("run %r was written before, as epoch %d: skipped", done.run, done.epoch)
    return BatchOutcome(done.run, done.epoch, done.rows, replayed=True)


def _outcome(outcome: Outcome) -> BatchOutcome:
    record = outcome.record
    run = run_of(record.range.end)
    return BatchOutcome(present(run, f"an epoch that is no run: {record}"), record.epoch, record.rows, outcome.replayed)


@contextmanager
def _turn(session: Session, run: str) -> Iterator[None]:
    """Lets one run at a time through in this process. An error after a takeover by another process becomes Fenced."""
    with session.lock:
        try:
            yield
        except OnefoldError as error:
            fenced = error if isinstance(error, Fenced) else session.taken_over(error)
            if fenced is None:
                raise
            raise fenced.reworded(
                f"{fenced.message}. If run {run!r} is still wanted, run it again once the other has ended: what is"
                " written already is not written again"
            ) from error

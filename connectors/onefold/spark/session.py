"""A pipeline's life in one driver process: its store, its committers and its generation, for queries and batch runs."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from onefold.core import (
    Committable,
    Committer,
    ConfigError,
    Counting,
    EpochRecord,
    Fenced,
    Guarantee,
    InDoubt,
    LastResource,
    LedgerEntry,
    OnefoldError,
    Range,
    Sink,
    SinkKind,
    TaskId,
)
from onefold.core.counting import check_counted
from onefold.core.dead_letters import LETTER_COLUMNS
from onefold.core.driver import Driver
from onefold.core.effects import EpochRequest, StoreFacts
from onefold.core.protocol import Initial, Outcome, Started, epoch, start, sweep
from onefold.core.runs import DecidedRun
from onefold.core.settled import settle
from onefold.core.store import CheckpointStore
from onefold.spark import checkpoint
from onefold.spark.patience import Patience

__all__ = ["PATIENCE_S", "Session", "check_pipeline_name", "task_of"]

PATIENCE_S = 120.0

log = logging.getLogger("onefold")


class Session:
    """Runs the protocol for one pipeline. Its public calls take turns, also with the sweep's timer."""

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: CheckpointStore,
        patience_s: float,
        adopt_ledger: bool = False,
        accept_damage: int | None = None,
        dead_letters: Sink | None = None,
    ) -> None:
        self.name = name
        self.sinks = tuple(sinks)
        self.dead_letters = dead_letters  # one more sink to the protocol, of rows of its own
        self.names = tuple(sink.name for sink in self._everyone)  # in the order in which an epoch commits them
        self.store = store
        self.started: Started | None = None
        self.lock = threading.RLock()
        self.patience = Patience(patience_s)
        self.write_through: tuple[str, ...] = ()  # known once the sinks were opened
        self._counted: dict[str, str] | None = None  # the ids of topics whose offsets the sinks may compare
        self._is_in_doubt = False  # whether the last epoch's decision may still land
        self._adopt_ledger = adopt_ledger
        self._accept_damage = accept_damage
        committers: dict[str, Committer] = {}
        with ExitStack() as opened:
            for sink in self._everyone:
                committer = self.patience.insist(partial(sink.recover, name), f"opening sink {sink.name!r}")
                opened.callback(committer.close)
                committers[sink.name] = committer
            opened.pop_all()
        self._driver = Driver(name, store, committers, self.patience)

    @property
    def _may_come_late(self) -> tuple[str, ...]:
        """Before there was a sink for bad records there were none: each would have stopped the pipeline."""
        return () if self.dead_letters is None else (self.dead_letters.name,)

    @property
    def _everyone(self) -> tuple[Sink, ...]:
        return self.sinks if self.dead_letters is None else (*self.sinks, self.dead_letters)

    def start(self, initial: Initial | None) -> Started:
        """Take over the pipeline: a new generation, recovery, frozen positions. Before every query and batch run."""
        with self.lock:
            self.started = self._driver.run(
                start(self.names, initial, self._adopt_ledger, self._accept_damage, self._may_come_late)
            )
            self._is_in_doubt = False
            log.info(
                "pipeline %r: generation %d, %d epochs finished, %d given up",
                self.name,
                self.started.generation.number,
                self.started.finished,
                self.started.given_up,
            )
            return self.started

    def run_epoch(
        self,
        request: EpochRequest,
        run_writers: Callable[[EpochRecord], tuple[Committable, ...]],
        runs_max: int = 3,
    ) -> Outcome:
        """One range, exactly once, under the generation of the last start; the writers run at most `runs_max` times.

        After an epoch that ended in doubt the next call takes over anew: no decision of the old generation lands then.
        """
        assert self.started is not None, "no epoch without a start"
        if self._is_in_doubt:
            fenced = self.taken_over(InDoubt("the last epoch's decision went unanswered"))
            if fenced is not None:
                raise fenced
            self.start(None)
        protocol = epoch(self.started.generation, self.started.store_id, request, runs_max)
        try:
            return self._driver.run(protocol, run_writers)
        except InDoubt:
            self._is_in_doubt = True
            raise

    def sweep(self) -> None:
        """Between epochs: remove what zombies prepared since. Does nothing while an epoch runs."""
        if self.lock.acquire(blocking=False):
            try:
                if self.started is not None:
                    self._driver.run(sweep(self.started.generation, self.names))
            finally:
                self.lock.release()

    def check_store_reaches(self, spark: SparkSession, root: str | None = None) -> None:
        """SQLite is one file on this machine: a cluster, or a checkpoint elsewhere (`root`), would outlive it."""
        master = str(spark.conf.get("spark.master", ""))
        if self.store.is_local and not (master.startswith("local") and (root is None or checkpoint.is_local(root))):
            where = "" if root is None else f" and the checkpoint {root!r}"
            raise ConfigError(
                f"the checkpoint store is a SQLite file, but the master is {master!r}{where}: give the pipeline a"
                " Postgres store (store='postgresql+psycopg://...'), or, where a SqlSink is to write to that file, a"
                " master and a checkpoint on this machine"
            )

    def facts(self) -> StoreFacts:
        """What the store knows of the pipeline; waits for a store that is down."""
        return self.patience.insist(lambda: self.store.facts(self.name), "reading the store")

    def settle(self, name: str, find: Callable[[], str]) -> str:
        """What was first found under that name, for good."""
        return self.patience.insist(lambda: settle(self.store, self.name, name, find), "reading the store")

    def decided_run(self, run: str) -> DecidedRun | None:
        """The batch run of that name, if it was ever decided."""
        return self.patience.insist(lambda: self.store.decided_run(self.name, run), "reading the store")

    def ledgers(self) -> dict[str, LedgerEntry | None]:
        """What each destination says of the pipeline."""
        committers = self._driver.committers
        return {name: self.patience.insist(committers[name].ledger, "reading the ledger") for name in self.names}

    def taken_over(self, because: OnefoldError) -> Fenced | None:
        """Fenced, if a newer generation exists; None if not, or if the store doesn't answer now."""
        try:
            newest = self.store.facts(self.name).generation
        except OnefoldError:
            return None
        if self.started is None or newest <= self.started.generation.number:
            return None
        return Fenced(
            f"generation {self.started.generation.number} of pipeline {self.name!r} was taken over (now: {newest})."
            f" Another process runs this pipeline: stop this one and do not restart it. It ended with: {because}"
        )

    def close(self) -> None:
        with self.lock:
            for committer in self._driver.committers.values():
                committer.close()
            self.store.close()

    def open_sinks(self, schema: pa.Schema) -> str:
        """Before the first writers of a query: tables, settings, permissions. Returns the job's fingerprint."""
        for sink in self._everyone:
            rows = LETTER_COLUMNS if sink is self.dead_letters else schema
            committer = self.patience.insist(partial(sink.open, self.name, rows), f"opening sink {sink.name!r}")
            self._driver.committers[sink.name].close()
            self._driver.committers[sink.name] = committer
        guarantees = {sink.name: sink.guarantee() for sink in self._everyone}
        for name, promise in guarantees.items():
            log.info("sink %r: %s", name, promise)
        merging = [name for name, promise in guarantees.items() if promise.kind is SinkKind.LAST_RESOURCE]
        if len(merging) > 1:
            raise ConfigError(
                f"the sinks {', '.join(merging)} would each have to be the one transaction that decides, and only one"
                " can: use delivery='two_phase' for the others"
            )
        self._driver.last_resource = merging[0] if merging else None
        if merging:
            committer = self._driver.committers[merging[0]]
            assert isinstance(committer, LastResource)
            if not self.patience.insist(partial(self._is_shared, committer), "looking for the checkpoint store"):
                raise ConfigError(
                    f"sink {merging[0]!r} merges inside the decision's own transaction, so the checkpoint store must be"
                    " in its database: leave out store=, or use delivery='two_phase'"
                )
        # The shortest-lived first: the order goes into the epoch's record, and recovery keeps it.
        self.names = tuple(sorted(self.names, key=lambda name: _lifetime_s(guarantees[name])))
        kinds = {name: promise.kind for name, promise in guarantees.items()}
        self.write_through = tuple(name for name, kind in kinds.items() if kind is SinkKind.WRITE_THROUGH)
        modes = {name: promise.mode for name, promise in guarantees.items()}
        return hashlib.sha256(f"{schema.to_string()}{modes}".encode()).hexdigest()[:16]

    def check_counted(self, span: Range) -> None:
        """Before an epoch: that no sink compares its offsets with those of another topic that had the name before."""
        ids = span.end.topic_ids()
        if ids == self._counted:
            return
        for name, committer in self._driver.committers.items():
            if isinstance(committer, Counting):
                others = self.patience.insist(committer.counted, "reading the ledger")
                check_counted(name, span, others)
        self._counted = ids

    def _is_shared(self, committer: LastResource) -> bool:
        return committer.shares_store(self.store.id())


def _lifetime_s(promise: Guarantee) -> float:
    return math.inf if promise.prepared_s is None else promise.prepared_s


def task_of(record: EpochRecord) -> TaskId:
    """What the writers of an epoch are told; each attempt then takes an id of its own."""
    return TaskId(record.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())


def check_pipeline_name(name: str) -> None:
    if not re.fullmatch(r"[^\s/]+", name) or len(name) > 100:
        raise ConfigError(f"a pipeline's name has 1 to 100 characters, no white space and no slash: {name!r}")

"""A pipeline in one driver process: its store, its committers and its generation, for queries and batch runs."""

from __future__ import annotations

import hashlib
import logging
import math
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar, TypeVar

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import (
    Committable,
    Committer,
    Counting,
    EpochRecord,
    EpochState,
    Generation,
    Identifying,
    LedgerEntry,
    Sink,
    SinkKind,
    TaskId,
)
from onefold.core.errors import ConfigError, Fenced, InDoubt, InternalError, OnefoldError, Retriable
from onefold.core.findings import Finding
from onefold.core.positions import Range
from onefold.core.protocol.committer_kinds import check_shared, last_resource, sole_last_resource
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import EpochRequest, Pause, Protocol, StoreFacts
from onefold.core.protocol.epoch import Initial, Outcome, Started
from onefold.core.protocol.patience import Patience
from onefold.core.protocol.runs import DecidedRun
from onefold.core.source import Journal
from onefold.core.values.remedies import Remedies, in_words_of, remedies
from onefold.core.writing.topic_identity import check_counted
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import DriverNote
from onefold.store.epoch_steps import StepClock
from onefold.store.job.completer import Completer
from onefold.store.job.holding import HoldServer, TurnLock
from onefold.store.job.lifecycle import Lifecycle, taken_over
from onefold.store.job.logs import logged_as, note
from onefold.store.job.targets import accept_targets, check_targets, note_targets
from onefold.store.journal import StoreJournal
from onefold.store.pins import ENDPOINTS, pin, pinned
from onefold.store.savepoint_notes import check_restored

log = logging.getLogger("onefold")
T = TypeVar("T")


class Session:
    """A pipeline in one driver process, which the store knows from a start until the session is closed. Of its sinks,
    those of `letters` need not have been there from the first epoch on: before, each bad record stopped the pipeline.

    A lock lets its public calls, and the sweep's timer, run one at a time."""

    LIFECYCLE: ClassVar[type[Lifecycle]] = Lifecycle

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        store: CheckpointStore,
        patience_s: float,
        letters: Collection[str] = (),
        told: Remedies | None = None,
    ) -> None:
        self.name = name
        self.remedies = told or remedies()  # that errors name
        self.sinks = tuple(sinks)
        self.store = store
        self.lifecycle = self.LIFECYCLE(name, tuple(sink.name for sink in self.sinks), letters)
        self.lock = TurnLock()
        self.patience = Patience(patience_s)
        self.endpoints: str | None = None  # what the store keeps of it for commands that do not import its flow
        self.clock = StepClock()
        self.write_through: tuple[str, ...] = ()  # known once the sinks were opened
        self._counted: dict[str, str] | None = None  # the ids of topics whose offsets the sinks may compare
        committers: dict[str, Committer] = {}
        with ExitStack() as opened:
            for sink in self.sinks:
                committer = self.patience.retry(partial(sink.recover, name), f"opening sink {sink.name!r}")
                opened.callback(committer.close)
                committers[sink.name] = committer
            opened.pop_all()
        self.holds = HoldServer(name, self.lock, self._settle)
        self._note = DriverNote(store, self.holds.open)
        self._driver = Coordinator(name, store, committers, self.patience, on_acquired=self._note.began)
        self._completer = Completer(self._complete_idle)

    @property
    def started(self) -> Started | None:
        """The last start, of this process or, for a run that another one opened, of that."""
        return self.lifecycle.started

    @property
    def waiting_for(self) -> OnefoldError | None:
        """The error after which it asks a server again, until that answers; None where it waits for none."""
        return self._driver.waiting_for or self.patience.waiting_for

    @property
    def names(self) -> tuple[str, ...]:
        """The sinks, in the order in which an epoch commits them."""
        return self.lifecycle.sinks

    def drive(
        self, protocol: Protocol[T], run_writers: Callable[[EpochRecord], tuple[Committable, ...]] | None = None
    ) -> T:
        """Run one of the lifecycle's protocols to its end."""
        with self.lock, logged_as(pipeline=self.name), in_words_of(self.remedies):
            before = self.started
            if before is not None:
                note(generation=before.generation.number)
            try:
                return self._driver.run(self.clock.timed(protocol), run_writers)
            finally:
                if not self.lifecycle.is_at_rest:
                    self._completer.epoch_ended()
                if self.started is not before and self.started is not None:
                    note(generation=self.started.generation.number)
                    number, earlier = self.started.generation.number, resolved(self.started)
                    log.info("pipeline %r: generation %d%s", self.name, number, earlier and f". {earlier}")

    def start(
        self,
        initial: Initial | None,
        adopt_ledger: bool = False,
        accept_damage: int | None = None,
        *,
        goes_on: bool = False,
    ) -> Started:
        """Take over the pipeline: a new generation, recovery, frozen positions. Before every query and batch run.

        With `goes_on` this session does not take it back from another process: raises Fenced where one has taken over
        since the last start here, also by the later starts that a query's epochs need.
        """
        with self.lock:
            self.check_restored()
            self._driver.goes_on = goes_on
            started = self.drive(self.lifecycle.start(initial, adopt_ledger, accept_damage))
            self.check_restored()  # one that began meanwhile is fenced by now, or is noted
        note(generation=started.generation.number)
        self.clock.begin()
        return started

    def recover(
        self, *, adopt_ledger: bool = False, accept_damage: int | None = None, accept_targets: bool = False
    ) -> Started:
        """Finish or undo what earlier processes left, and fence them; the arguments are what the user accepts."""
        if accept_damage is not None:
            self.patience.retry(lambda: self._check_damaged(accept_damage), "reading the store")
        started = self.start(None, adopt_ledger, accept_damage)
        if accept_targets:
            self.accept_targets()
        if not adopt_ledger and accept_damage is None:  # else the next start sweeps, once its checkpoint agrees
            self.drive(self.lifecycle.sweep())
        return started

    def _check_damaged(self, epoch: int) -> None:
        """Raise ConfigError unless the epoch is damaged: nobody's word is needed for another one."""
        damaged = [each.epoch for each in self.facts().unfinished if each.state is EpochState.DAMAGED]
        if epoch not in damaged:
            known = f"damaged is {', '.join(map(str, damaged))}" if damaged else "no epoch is damaged"
            raise ConfigError(
                "epoch-not-damaged",
                f"epoch {epoch} of pipeline {self.name!r} is not damaged, and nothing of it is to be accepted: {known}."
                " Nothing was changed",
            )

    def check_restored(self) -> None:
        """Raises CheckpointMismatch while a savepoint's restore is not done."""
        self.patience.retry(lambda: check_restored(self.store, self.name), "reading the store")

    def run_epoch(
        self,
        request: EpochRequest,
        run_writers: Callable[[EpochRecord], tuple[Committable, ...]],
        runs_max: int = 3,
        opened: EpochRecord | None = None,
    ) -> Outcome:
        """One range, exactly once and with a sweep after it, under the generation of the last start; the writers run
        at most `runs_max` times. `opened` is the epoch, where it was opened before."""
        outcome = self.drive(self.lifecycle.run_epoch(request, runs_max, opened), run_writers)
        if not outcome.replayed:
            self.drive(self.lifecycle.sweep())
        return outcome

    @property
    def _may_sweep(self) -> bool:
        """False for a query whose checkpoint was not compared: the store may be an older copy, which knows less."""
        return self.started is not None and (self.lifecycle.is_swept or not self.lifecycle.HAS_CHECKPOINT)

    def sweep(self) -> None:
        """Between epochs: remove what zombies prepared since. Does nothing while an epoch runs."""
        if self.lock.acquire(blocking=False):
            try:
                if self._may_sweep:
                    self._driver.run(self.lifecycle.sweep())
            finally:
                self.lock.release()

    def _complete_idle(self) -> bool:
        """Complete the last epoch, between epochs or beside one. False where that is to be tried again; it waits for no
        server."""
        is_between = self.lock.acquire(blocking=False)
        try:
            if not self.lifecycle.is_at_rest:
                protocol = self.lifecycle.complete() if is_between else self.lifecycle.complete_beside()
                Coordinator(self.name, self.store, self._driver.committers, not_waiting).run(protocol)
        except (Retriable, InDoubt) as error:
            log.debug("the last epoch is completed later: %s", error)
            return False
        except Fenced:
            log.debug("another process has taken over, and completes the last epoch")
        except OnefoldError as error:
            log.warning("the last epoch is committed, and the store does not know yet that it is complete: %s", error)
        finally:
            if is_between:
                self.lock.release()
        return True

    def sweep_at_the_end(self) -> None:
        """Complete the last epoch and sweep after a run or a query, since late tasks may have prepared work after its
        last sweep.

        It waits for no server and raises nothing but InternalError: the next start removes what this one cannot.
        After a run that was refused, it sweeps nothing: the store may be an older copy.
        """
        if self.started is None or not self.lock.acquire(blocking=False):
            return
        try:
            self._complete_and_sweep()
        except InternalError:
            raise
        except OnefoldError as error:
            log.warning("what tasks that came late have prepared stays until the next start: %s", error)
        finally:
            self.lock.release()

    def _complete_and_sweep(self) -> None:
        protocol: Protocol[object] = self.lifecycle.sweep() if self._may_sweep else self.lifecycle.complete()
        Coordinator(self.name, self.store, self._driver.committers, not_waiting).run(protocol)

    def _settle(self) -> None:
        """Between epochs: complete the last one. Raises Retriable where one is unfinished all the same."""
        if self.started is not None:
            self._complete_and_sweep()
        if self.started is None or self.store.facts(self.name).unfinished:
            raise Retriable("pipeline-not-held", "it starts, or an epoch of it is unfinished")

    def check_store_reaches(self, others: str | None) -> None:
        """Raise ConfigError for a SQLite store, a file of this machine, where `others` says what is elsewhere."""
        if self.store.is_local and others is not None:
            raise ConfigError(
                "sqlite-not-shared",
                f"the checkpoint store is a SQLite file, but {others}: give the pipeline a"
                " Postgres store (store='postgresql+psycopg://...'), or, where a SqlSink is to write to that file, a"
                " master and a checkpoint on this machine",
            )

    def facts(self) -> StoreFacts:
        """The store's facts of the pipeline; waits for a store that is down."""
        return self.patience.retry(lambda: self.store.facts(self.name), "reading the store")

    def pin(self, name: str, find: Callable[[], str]) -> str:
        """The value that the pipeline's first start found under that name."""
        return self.patience.retry(lambda: pin(self.store, self.name, name, find), "reading the store")

    def journal(self, source: str) -> Journal:
        """What the planner of a source keeps beside its positions."""
        return StoreJournal(self.store, self.name, source)

    def decided_run(self, run: str) -> DecidedRun | None:
        """The batch run of that name, if it was ever decided."""
        return self.patience.retry(lambda: self.store.decided_run(self.name, run), "reading the store")

    def ledgers(self) -> dict[str, LedgerEntry | None]:
        """What each destination says of the pipeline."""
        committers = self._driver.committers
        return {name: self.patience.retry(committers[name].ledger, "reading the ledger") for name in self.names}

    def taken_over(self, because: OnefoldError | None = None) -> Fenced | None:
        """Fenced, if a newer generation exists; None if not, or if the store doesn't answer now."""
        try:
            facts = self.store.facts(self.name)
        except OnefoldError:
            return None
        return None if self.started is None else taken_over(self.started, facts, because)

    def ended(self) -> None:
        """Note in the store that no query and no run of this process is at work any more."""
        self._note.ended()  # first: who finds it noted, finds its socket
        self.holds.close()

    def close(self) -> None:
        self.holds.let_go()
        with self.lock:
            self._completer.stop()
            self.sweep_at_the_end()
            self.ended()
            self.lifecycle.started = None
            for committer in self._driver.committers.values():
                committer.close()
            self.store.close()

    def open_sinks(self, schema: pa.Schema | Mapping[str, pa.Schema]) -> str:
        """Before the first writers of a query: tables, settings, permissions. `schema` is the rows', or those of each
        sink, by its name. Returns the job's fingerprint."""
        for caution in self.check_targets():
            log.warning(caution.says)
        for sink in self.sinks:
            rows = schema if isinstance(schema, pa.Schema) else schema[sink.name]
            committer = self.patience.retry(partial(sink.open, self.name, rows), f"opening sink {sink.name!r}")
            self._driver.committers[sink.name].close()
            self._driver.committers[sink.name] = committer
        guarantees = {sink.name: sink.guarantee() for sink in self.sinks}
        for name, promise in guarantees.items():
            log.info("sink %r: %s, %s", name, promise.mode, promise.kind.value)
        self._driver.last_resource = merging = sole_last_resource(guarantees)
        if merging is not None:
            resource = last_resource(self._driver.committers[merging])
            is_shared = self.patience.retry(
                lambda: resource.shares_store(self.store.id()), "looking for the checkpoint store"
            )
            check_shared(merging, guarantees[merging], is_shared)
        if (started := self.started) is not None:
            self.patience.retry(lambda: self._note_ends(started.generation), "noting what the sinks write to")
        # The shortest-lived first: the order goes into the epoch's record, and recovery keeps it.
        lifetimes_s = {name: promise.prepared_s for name, promise in guarantees.items()}
        self.lifecycle.sinks = tuple(sorted(self.names, key=lambda name: lifetimes_s[name] or math.inf))
        kinds = {name: promise.kind for name, promise in guarantees.items()}
        self.write_through = tuple(name for name, kind in kinds.items() if kind is SinkKind.WRITE_THROUGH)
        modes = {name: promise.mode for name, promise in guarantees.items()}
        identities = {sink.name: sink.identity() for sink in self.sinks if isinstance(sink, Identifying)}
        if isinstance(schema, pa.Schema):
            columns = schema.to_string()
        else:
            columns = str(sorted((name, rows.to_string()) for name, rows in schema.items()))
        return hashlib.sha256(f"{columns}{sorted(modes.items())}{sorted(identities.items())}".encode()).hexdigest()[:16]

    def _note_ends(self, generation: Generation) -> None:
        note_targets(self.store, generation, self.sinks)
        self.note_endpoints(generation)

    def note_endpoints(self, generation: Generation) -> None:
        """What commands that do not import the flow find of it from here on."""
        now = self.endpoints or ""
        if now != (pinned(self.store, self.name, ENDPOINTS) or ""):
            self.store.note(generation, ENDPOINTS, now)

    def check_targets(self) -> Sequence[Finding]:
        """A caution for each table that was emptied. Raises DataLoss where a table or topic that a sink has written to
        is missing, or was made anew."""
        with in_words_of(self.remedies):
            return self.patience.retry(
                lambda: [*check_targets(self.store, self.name, self.sinks)], "looking at what the sinks write to"
            )

    def accept_targets(self, by: Generation | None = None) -> None:
        """On the user's word, what the sinks write to at the next start, whatever that is. `by` is the generation that
        has the pipeline where nothing was started here."""
        generation = by or present(self.started, "targets are accepted after a start").generation
        self.patience.retry(lambda: accept_targets(self.store, generation), "noting what the sinks write to")

    def check_counted(self, span: Range) -> None:
        """Raise ConfigError where a sink would compare the epoch's offsets with an earlier topic's of that name."""
        ids = span.end.topic_ids()
        if ids == self._counted:
            return
        for name, committer in self._driver.committers.items():
            if isinstance(committer, Counting):
                others = self.patience.retry(committer.counted, "reading the ledger")
                check_counted(name, span, others)
        self._counted = ids


def resolved(started: Started) -> str:
    """What became of the epochs that an earlier start had decided, as a text; empty where there was none."""
    return f"Epochs decided before: {started.finished} finished" if started.finished else ""


def not_waiting(pause: Pause, _: float) -> None:
    """In the place of patience: nobody asks again."""
    raise pause.because


def task_of(record: EpochRecord) -> TaskId:
    """What the writers of an epoch are told; each attempt then takes an id of its own."""
    return TaskId(record.pipeline, record.generation, record.epoch, record.timestamp_ms, uuid.uuid4())

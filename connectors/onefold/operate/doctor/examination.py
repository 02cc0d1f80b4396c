"""Examines the checkpoint store, the sources and the sinks of a pipeline, changing nothing: what a start checks, and
what else its guarantee rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from onefold.clients.exposure import Reaching
from onefold.clients.sql.database_backend import with_driver
from onefold.clients.sql.url import url_of
from onefold.core import (
    Committer,
    EpochState,
    Guarantee,
    LedgerEntry,
    OnefoldError,
    Positions,
    Retriable,
    Sink,
    SinkKind,
)
from onefold.core.findings import Checked, Examined, Finding, Holding, Level, passed, tried
from onefold.core.positions import Range
from onefold.core.protocol.committer_kinds import check_shared, last_resource
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.in_doubt import Fate, fates
from onefold.core.protocol.recovery import resolve
from onefold.core.source import MemoryJournal, ReadOnce, Source, own_positions, unbounded
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.history import slowest_decision_s
from onefold.store.job.targets import check_targets

if TYPE_CHECKING:
    from onefold.sources import KafkaSource

_SILENT_S_MAX = 10.0  # of Kafka's brokers: who waits for an answer waits before a terminal


class StoreLook:
    """What is known once `at` was read through: which store it is, where the pipeline stands, and how fast it is."""

    def __init__(self, pipeline: str, url: str | None) -> None:
        self.pipeline = pipeline
        self.url = url
        self.store_id: str | None = None
        self.position: Positions | None = None
        self.deciding_s: float | None = None
        self._before: StoreFacts | None = None

    def facts(self) -> StoreFacts | None:
        """The store's facts now; None where there is no store, or none that could be read."""
        if self.store_id is None or self.url is None:
            return None
        with closing(CheckpointStore(self.url, lock_timeout_s=10)) as store:
            return store.facts(self.pipeline)

    def at(self) -> Iterator[Finding]:
        """What the store says, and what a start would check of it."""
        if self.url is None:
            yield Finding(
                Level.UNCHECKED,
                "no checkpoint store is named, and what it knows of the pipeline was not looked at: a pipeline without "
                f"store= keeps it in .onefold/{self.pipeline}.db, which store= names to diagnose() as sqlite:////...",
            )
            return
        with closing(CheckpointStore(self.url, lock_timeout_s=10)) as store:
            where = f"the checkpoint store at {store.database}"
            self.store_id = yield from store.checks()
            if self.store_id is None:
                self._before = StoreFacts("a new one", 0)
                return
            self._before = facts = store.facts(self.pipeline)
            if facts.generation == 0:
                yield Finding(Level.FINE, f"{where} ({self.store_id}) knows no pipeline {self.pipeline!r} yet")
                return
            self.position = facts.last.range.end if facts.last is not None else facts.frozen
            self.deciding_s = slowest_decision_s(store, self.pipeline)
            complete = f"epoch {facts.complete.epoch} is" if facts.complete is not None else "no epoch is"
            yield Finding(Level.FINE, f"{where} ({self.store_id}): {complete} complete, generation {facts.generation}")
            for record in facts.unfinished:
                if record.state is not EpochState.DAMAGED:
                    says = f"epoch {record.epoch} is {record.state.value}: a driver works at it, or the next start"
                    yield Finding(Level.FINE, f"{says} resolves it")

    def target(self, sink: Sink) -> Iterator[Finding]:
        """A caution where the sink's table was emptied. Raises DataLoss where its table or topic is gone, or was made
        anew, under its ledger."""
        if self.store_id is not None and self.url is not None:
            with closing(CheckpointStore(self.url, lock_timeout_s=10)) as store:
                yield from check_targets(store, self.pipeline, [sink])

    def against(self, ledgers: Mapping[str, LedgerEntry | None]) -> Iterator[Finding]:
        """What a start finds where it compares the store with the ledgers of all sinks, which were read since `at`."""
        before = self._before
        if before is None:
            if any(ledgers.values()):
                says = "the sinks have ledgers, which a start compares with its checkpoint store: there is none to read"
                yield Finding(Level.UNCHECKED, says)
        elif self.store_id is not None and before != self.facts():
            says = "a driver went on meanwhile: whether store and ledgers agree is compared at the next start"
            yield Finding(Level.UNCHECKED, says)
        else:
            yield from tried(lambda: resolve(before, ledgers))


class SinkLook:
    """What is known once `findings` was called: what the sink promises, and its ledger's row.

    `promise` is None where the sink could not say what it gives; `is_read` tells whether the ledger could be read.
    """

    def __init__(self, sink: Sink, store: StoreLook, schema: pa.Schema | None) -> None:
        self.name = sink.name
        self._sink, self._store, self._schema = sink, store, schema
        self.promise: Guarantee | None = None
        self.ledger: LedgerEntry | None = None
        self.is_read = False

    def findings(self, exposed_is: Level) -> tuple[Finding, ...]:
        found = (*exposed(self._sink, exposed_is), *_once(asked(self._of_start)))
        if found and isinstance(found[-1].error, Retriable):
            return found  # the server is silent
        known = {finding.error.code for finding in found if finding.error is not None}
        more = asked(self._of_guarantee)  # a server that lets nobody in has been found to
        return (*found, *(finding for finding in more if finding.error is None or finding.error.code not in known))

    def _of_start(self) -> Iterator[Finding]:
        sink, pipeline = self._sink, self._store.pipeline
        if not isinstance(sink, Checked):
            self.promise = sink.guarantee()
            says = f"{type(sink).__name__} has no checks, so what a start checks of it shows only there"
            yield Finding(Level.UNCHECKED, says)
            return
        with suppress(OnefoldError):  # the checks find it, in the order of a start
            self.promise = sink.guarantee()
        yield from asked(lambda: self._store.target(sink))
        with ExitStack() as stack:
            committer = yield from sink.checks(pipeline, self._schema)
            if committer is not None:
                stack.callback(committer.close)
                self.ledger = committer.ledger()
            self.is_read = True
            yield from self._same_store(committer)

    def _same_store(self, committer: Committer | None) -> Iterator[Finding]:
        """A last-resource sink joins the decision's own transaction, so the store has to be in its database."""
        url = self._sink.store_url()
        if self.promise is None or self.promise.kind is not SinkKind.LAST_RESOURCE or url is None:
            return
        is_shared = self._store.url == url or self._shares(committer, url)
        if is_shared is None:
            says = "whether the checkpoint store is in the sink's own database is checked when a start has made it"
            yield Finding(Level.UNCHECKED, says)
        else:
            check_shared(self.name, self.promise, is_shared)
            yield Finding(Level.FINE, "the checkpoint store is in the sink's own database")

    def _shares(self, committer: Committer | None, url: str) -> bool | None:
        """Whether a store by another URL is in the sink's own database; None where there is no store yet to tell."""
        store = self._store
        if store.url is None or _kind(store.url) != _kind(url):
            return False
        if store.store_id is None:
            return None
        if committer is not None:
            return last_resource(committer).shares_store(store.store_id)
        with closing(CheckpointStore(url, lock_timeout_s=10)) as own:
            return passed(own.checks()) == store.store_id

    def _of_guarantee(self) -> Iterator[Finding]:
        if isinstance(self._sink, Examined):
            yield from self._sink.examine(self._store.pipeline, self._store.deciding_s)
        if isinstance(self._sink, Holding):
            yield from self._left_over(self._sink)

    def _left_over(self, sink: Holding) -> Iterator[Finding]:
        """Findings on prepared work that no epoch decides: a late task has prepared it."""
        listed = {held.committable: held for held in sink.held(self._store.pipeline)}  # before the store, as a sweep
        facts = self._store.facts() if listed else None
        if facts is None or facts.generation == 0:
            return
        for committable, fate in fates(facts, listed).items():
            held = listed[committable]
            if fate is Fate.ROLL_BACK:
                yield Finding(
                    Level.CAUTION,
                    f"{committable.handle} was prepared {held.age_s:.0f} s ago by a task that came late: epoch"
                    f" {committable.epoch} of generation {committable.generation} is over, and nobody will commit it."
                    f" {held.costs}",
                )


def examined(source: Source, at: Positions | None) -> Iterator[Finding]:
    """`at`: where the pipeline stands, if it was ever started. Raises what a start raises."""
    source = unbounded(source)  # where it ends, the first start finds
    if type(source).__name__ == "KafkaSource":  # its client need not be installed
        from onefold.sources.kafka.source_examination import examine

        topics = cast("KafkaSource", source)
        topics = replace(topics, timeout_s=min(topics.timeout_s, _SILENT_S_MAX))
        yield from examine(topics, None if at is None else own_positions(source, at))
        return
    with closing(source.planner(None, None, MemoryJournal())) as planner:
        begin = planner.initial()
        parts = planner.splits(Range(begin, planner.end(begin)))
    counted = "1 part" if len(parts) == 1 else f"{len(parts):,} parts"
    what = "once, whole, in one epoch" if isinstance(source, ReadOnce) else "again as it was, after a crash"
    yield Finding(Level.FINE, f"{source.name} is there, and is read {what}: {counted} at first")


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """What a check finds, and what is made after it would end with, too, is one problem."""
    said = set[tuple[Level, str]]()
    for finding in findings:
        if (finding.level, finding.says) not in said:
            said.add((finding.level, finding.says))
            yield finding


def _kind(url: str) -> str:
    """Of database, by its driver."""
    return with_driver(url_of(url, "the checkpoint store's")).dialect.partition("+")[2]


def exposed(part: object, level: Level) -> tuple[Finding, ...]:
    """What is wrong with the connections to its servers, or the given text."""
    says = part if isinstance(part, str) else part.exposure() if isinstance(part, Reaching) else ""
    return (Finding(level, says),) if says else ()


def asked(ask: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    """All findings up to the first error that is raised, and that as the last one."""
    found: list[Finding] = []
    try:
        found.extend(ask())
    except OnefoldError as error:
        found.append(Finding.of(error))
    return tuple(found)

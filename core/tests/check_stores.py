"""`check_store` for tests: the rules of the store's suite, and every call of the store with its process killed."""

from __future__ import annotations

import enum
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from store_suite import StoreSuite

from onefold.core.contract import Committable, Decided, EpochRecord, Generation, LedgerEntry, SinkKind
from onefold.core.errors import Fenced
from onefold.core.positions import Range
from onefold.core.protocol.coordinator import Store
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.testing.conformance.call_processes import Processes
from onefold.core.testing.conformance.promises import Book, BrokenPromise, ConformanceReport
from onefold.core.testing.conformance.report import modules_of, passed
from onefold.core.testing.conformance.strikes import Striker
from onefold.core.testing.conformance.workbench import answer_of, positions
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["StorePromise", "check_store"]

MakeStore = Callable[[str], Store]
NOW_MS = 1_700_000_000_000
MARKS = sa.Table("onefold_check_marks", sa.MetaData(), sa.Column("mark", sa.String(100)))


class StorePromise(enum.Enum):
    """As `onefold.core.testing.Promise`, of checkpoint stores."""

    RULES = "every rule of the store's suite holds"
    DURABLE = "what was acknowledged is there after a crash of the process"
    WHOLE = "what was not acknowledged took effect as a whole, or not at all"
    AGAIN = "a call whose process was killed can be made again, with the result of one call"
    FENCED = "a killed process's generation decides nothing once a newer one was acquired"


def check_store(
    url: str,
    make_store: MakeStore = CheckpointStore,
    *,
    modules: Sequence[str] = (),
    steps_max: int = 16,
    moments: int = 4,
    patience_s: float = 10.0,
) -> ConformanceReport:
    """Hold a checkpoint store at a SQLAlchemy URL to its rules, killing real processes at points of every call.

    The database must be a test's: pipelines `check_*` stay in it. `make_store(url)` makes the store, in any process;
    every one that it makes is a connection of its own to the same data. The other arguments, and the errors raised,
    are those of `check_sink`.
    """
    begun_s = time.monotonic()
    book, opened = Book(), list[Any]()

    def connect() -> Store:
        store = make_store(url)
        opened.append(store)
        return store

    try:
        _hold_the_rules(book, connect)
        with _marks(url) as count, Processes(tuple(modules) or modules_of(type(opened[0]))) as processes:
            crashes = StoreCrashes(
                url, make_store, count, patience_s, book, Striker(processes, book, steps_max, moments)
            )
            for call, prepare in CALLS.items():
                crashes.check(call, prepare, connect())
    finally:
        for store in opened:
            store.close()
    name = f"{type(opened[0]).__name__} at {sa.make_url(url).render_as_string(hide_password=True)}"
    report = passed(name, book, StorePromise, time.monotonic() - begun_s)
    return replace(report, promises=dict(book.checked))


# the rules


class _Apart:
    """A store in which the names of pipelines mean others, so that every rule finds a store without history."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation:
        return self._store.acquire(self._prefix + pipeline, above, last)

    def facts(self, pipeline: str) -> StoreFacts:
        return self._store.facts(self._prefix + pipeline)

    def find(self, pipeline: str, request: EpochRequest) -> EpochRecord | None:
        return self._store.find(self._prefix + pipeline, request)

    def moves(self, pipeline: str) -> Sequence[EpochRecord]:
        return self._store.moves(self._prefix + pipeline)


def _hold_the_rules(book: Book, connect: Callable[[], Store]) -> None:
    for name in sorted(vars(StoreSuite)):
        if not name.startswith("test_"):
            continue
        prefix = f"{_fresh()}."
        rule = name.removeprefix("test_").replace("_", " ")
        with book.holding(StorePromise.RULES, rule):
            try:
                getattr(StoreSuite(), name)(lambda prefix=prefix: _Apart(connect(), prefix))
            except Exception as error:
                line = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.name == name][-1]
                seen = f"{type(error).__name__}: {error}, at `{line}`"
                raise BrokenPromise(StorePromise.RULES, rule, "", "the rule to hold", seen) from error


# the crashes


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a store, in another process."""

    make_store: MakeStore
    url: str
    name: str
    arguments: tuple[Any, ...]

    def ready(self) -> Callable[[], Any]:
        store = self.make_store(self.url)
        store.id()
        return partial(getattr(store, self.name), *self.arguments)


@dataclass(frozen=True, slots=True)
class Mark:
    """A merge that leaves one row: it must be there exactly if the decision is."""

    mark: str

    def __call__(self, connection: Any) -> None:
        # Where a destination's tables are: the store may send its own ones to another schema.
        connection.cursor().execute(f"INSERT INTO onefold_check_marks VALUES ('{self.mark}')")


@contextmanager
def _marks(url: str) -> Iterator[Callable[[str], int]]:
    """The table of marks, and how many there are of one, seen over a connection that no store has."""
    engine = sa.create_engine(url)

    def count(mark: str) -> int:
        with engine.connect() as connection:
            found = connection.scalar(sa.select(sa.func.count()).where(MARKS.c.mark == mark))
            return int(found or 0)

    MARKS.create(engine, checkfirst=True)
    try:
        yield count
    finally:
        MARKS.drop(engine)
        engine.dispose()


@dataclass(frozen=True, slots=True)
class StoreCrashes:
    url: str
    make_store: MakeStore
    marks: Callable[[str], int]
    patience_s: float
    book: Book
    striker: Striker

    def check(self, call: str, prepare: Prepare, store: Store) -> None:
        """Each strike has a pipeline of its own. What one undisturbed call makes of it is what all must come to."""
        whole = ""
        for strike in self.striker.each(call):
            pipeline = _fresh()
            generation = store.acquire(pipeline, 0)
            arguments = prepare(store, generation)
            before = self._state(store, pipeline)
            with self.book.holding(StorePromise.WHOLE, call):
                strike.run(StoreCall(self.make_store, self.url, call, arguments))
            there = self._state(store, pipeline)
            promise = StorePromise.DURABLE if strike.is_answered else StorePromise.WHOLE
            with self.book.holding(promise, call, strike.crash) as held:
                whole = whole or there
                held.expect(whole != before, "another state than before the call", there)
                possible = (whole,) if strike.is_answered else (before, whole)
                held.expect(there in possible, " or ".join(possible), there)
            with self.book.holding(StorePromise.AGAIN, call, strike.crash) as held:
                answer_of(partial(getattr(store, call), *arguments), self.patience_s)
                there = self._state(store, pipeline)
                possible = (whole,) if call != "acquire" else (whole, whole.replace("generation 8", "generation 9"))
                held.expect(there in possible, " or ".join(possible), there)
            with self.book.holding(StorePromise.FENCED, call, strike.crash) as held:
                store.acquire(pipeline, 0)
                before = self._state(store, pipeline)
                old: dict[str, Callable[[], object]] = {
                    call: partial(getattr(store, call), *arguments),
                    "acquire": partial(store.freeze, generation, positions(1)),
                }
                held.expect_raises(Fenced, old[call], f"Fenced: generation {generation.number} is not the newest")
                there = self._state(store, pipeline)
                held.expect(there == before, before, there)

    def _state(self, store: Store, pipeline: str) -> str:
        """All that the store says of a pipeline, in words that don't name it, and how often its merge was done."""
        facts = answer_of(lambda: store.facts(pipeline), self.patience_s)
        said = {
            "last": _words(facts.last),
            "complete": _words(facts.complete),
            "unfinished": "; ".join(map(_words, facts.unfinished)),
            "frozen": facts.frozen.to_json() if facts.frozen else "",
            "merges": str(self.marks(pipeline) or ""),
        }
        return f"generation {facts.generation}" + "".join(f", {key}: {value}" for key, value in said.items() if value)


def _words(record: EpochRecord | None) -> str:
    """All of a record but the pipeline's name."""
    if record is None:
        return ""
    span = f"{record.range.start.to_json()} to {record.range.end.to_json()}"
    job = f"{record.query_id}, {record.batch_id}, {record.fingerprint}, {record.timestamp_ms} ms"
    manifest = [f"{c.sink}/{c.kind.value}/{c.handle}: {c.rows} rows" for c in record.manifest]
    state = f"{record.state.value} in generation {record.generation}"
    return f"epoch {record.epoch} {state} ({span}; {job}; {record.sinks}; {manifest})"


Prepare = Callable[[Store, Generation], tuple[Any, ...]]


def _request(start: int, end: int) -> EpochRequest:
    return EpochRequest(Range(positions(start), positions(end)), "query", 0, "job", ("sink",))


def _manifest(record: EpochRecord) -> tuple[Committable, ...]:
    return tuple(
        Committable("sink", SinkKind.TWO_PHASE, f"w'{n}", record.generation, record.epoch, n) for n in range(3)
    )


def _decided(store: Store, generation: Generation) -> Decided:
    record = _request(0, 5).opened(generation, 1, NOW_MS)
    return store.decide(generation, record, _manifest(record), NOW_MS)


def _decide(store: Store, generation: Generation) -> tuple[Any, ...]:
    record = _request(5, 7).opened(generation, 2, NOW_MS + 1)
    return (generation, record, _manifest(record), NOW_MS, Mark(generation.pipeline), _decided(store, generation))


def _complete(store: Store, generation: Generation) -> tuple[Any, ...]:
    return (generation, _decided(store, generation), NOW_MS)


def _damage(store: Store, generation: Generation) -> tuple[Any, ...]:
    return (generation, _decided(store, generation), "it's gone")


def _accept(store: Store, generation: Generation) -> tuple[Any, ...]:
    _, decided, evidence = _damage(store, generation)
    store.damage(generation, decided, evidence)
    return (generation, decided.record)


def _adopt(store: Store, generation: Generation) -> tuple[Any, ...]:
    _, done, _ = completing = _complete(store, generation)
    store.complete(*completing)
    store.open_epoch(generation, _request(5, 9), done.record.epoch, NOW_MS)
    return (generation, LedgerEntry(7, 1, NOW_MS, positions(70), "another store"), ("sink",), NOW_MS)


CALLS: dict[str, Prepare] = {
    "acquire": lambda _store, generation: (generation.pipeline, 7),
    "freeze": lambda _store, generation: (generation, positions(3)),
    "open_epoch": lambda _store, generation: (generation, _request(0, 5), 0, NOW_MS),
    "decide": _decide,
    "complete": _complete,
    "damage": _damage,
    "accept_damage": _accept,
    "adopt": _adopt,
}


def _fresh() -> str:
    return f"check_{uuid.uuid4().hex[:12]}"

"""Direct delivery: the rows come to the driver, and go into the table with the decision; what keeps them out sends them
another way, or is told by its name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.calls import BATCH, SCHEMA, Ask, prepared, task
from harness.errors import raises

from onefold.clients.postgres.message import CopyData
from onefold.core.contract import Binding, Committable, Decided, EpochRecord, Generation
from onefold.core.errors import BadRecord, ConfigError, Fenced, OnefoldError
from onefold.core.positions import Positions, Range
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import Commit, Complete, Decide, EpochRequest
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.merge import direct as of_direct
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers
TARGET = "CREATE TABLE t (id bigint, name text)"
VERSIONS = pa.record_batch({"id": [1, 2, 3], "v": [1, 1, 1], "gone": [False, False, True]})
UPSERT = {"rows": VERSIONS, "mode": "upsert", "key": "id", "order": "v", "delete_when_true": "gone"}
KEYED = "CREATE TABLE t (id bigint PRIMARY KEY, v bigint, gone bool)"


@dataclass
class Direct:
    """A pipeline whose sink decides, epoch by epoch, without its lifecycle."""

    url: str
    options: dict[str, Any]
    rows: pa.RecordBatch
    steps: int = 0  # decisions that went step by step

    def __post_init__(self) -> None:
        self.sink = PostgresSink(self.url, "t", **{"delivery": "direct", **self.options})
        self.store = CheckpointStore(self.sink.store_url() or "")
        self.generation: Generation = self.store.acquire("p", 0)
        self.committer: Any = self.sink.open("p", self.rows.schema)
        self.committer.bind(Binding(self.store.id(), self.generation.number))
        self.driver = Coordinator("p", self.store, {"t": self.committer}, lambda *_: None, "t")
        merge = self.committer.merge

        def counted(*asked: Any) -> None:
            self.steps += 1
            merge(*asked)

        self.committer.merge = counted

    def open(self) -> EpochRecord:
        last = self.store.facts("p").last
        start = last.range.end if last else Positions()
        number = last.epoch if last else 0
        request = EpochRequest(Range(start, Positions.of({"t/0": number + 1})), sinks=("t",))
        return self.store.open_epoch(self.generation, request, number, 1_000)

    def work(self, record: EpochRecord) -> Committable:
        return prepared(self.sink, task(self.generation.number, record.epoch), self.rows)

    def decide(self, record: EpochRecord, *manifest: Committable) -> Decided:
        decided: Decided = self.driver.perform(Decide(self.generation, record, manifest))
        return decided

    def write(self, attempts: int = 1) -> Decided:
        record = self.open()
        decided = self.decide(record, *(self.work(record) for _ in range(attempts)))
        self.driver.perform(Commit("t", decided))
        self.driver.perform(Complete(self.generation, decided))
        return decided


class FrozenCopy(Sequence[bytes]):
    """The pieces of a COPY, of a driver that is frozen before the last one until it `goes_on`."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces, self.is_frozen, self.goes_on = pieces, threading.Event(), threading.Event()

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, at: Any) -> Any:
        if at == len(self._pieces) - 1:
            self.is_frozen.set()
            self.goes_on.wait(30)
        return self._pieces[at]


@pytest.fixture
def freezing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Has a thread of its own call what is given, up to the middle of its first COPY, where it freezes."""
    with ExitStack() as ending:

        def freeze(call: Callable[[], Any]) -> None:
            found: SimpleQueue[FrozenCopy] = SimpleQueue()

            def frozen(pieces: Sequence[bytes]) -> CopyData:
                monkeypatch.undo()
                found.put(copy := FrozenCopy(pieces))
                return CopyData(copy)

            def called() -> None:
                with suppress(OnefoldError):
                    call()

            monkeypatch.setattr(of_direct, "CopyData", frozen)
            thread = threading.Thread(target=called)
            thread.start()
            ending.callback(thread.join)
            copy = found.get(timeout=30)
            ending.callback(copy.goes_on.set)
            assert copy.is_frozen.wait(30)

        yield freeze


@pytest.fixture
def direct(postgres_url: str) -> Iterator[Callable[..., Direct]]:
    made: list[Direct] = []

    def make(rows: pa.RecordBatch = BATCH, **options: Any) -> Direct:
        made.append(Direct(postgres_url, options, rows))
        return made[-1]

    yield make
    for each in made:
        each.committer.close()
        each.store.close()


def test_rows_ledger_and_decision_are_one_transaction(direct: Callable[..., Direct], ask: Ask) -> None:
    pipeline = direct()
    decided = pipeline.write(2)
    assert ask.ids() == [1, 1, 2, 2, 3, 3]
    assert (pipeline.steps, ask.staged(), decided.record.rows) == (0, 0, 6)
    assert all(not each.payload for each in decided.record.manifest)
    (by,) = ask("SELECT DISTINCT xmin FROM t")
    assert [by] == ask("SELECT xmin FROM onefold_sinks.onefold_ledger")
    pipeline.write()
    assert (pipeline.steps, len(ask.ids())) == (0, 9)


def test_a_decision_that_is_asked_again_writes_nothing_again(direct: Callable[..., Direct], ask: Ask) -> None:
    pipeline = direct()
    record = pipeline.open()
    work = pipeline.work(record)
    first = pipeline.decide(record, work)
    assert pipeline.decide(record, work) == first
    assert ask.ids() == [1, 2, 3]


@pytest.mark.parametrize("of_store", [True, False])
def test_a_driver_that_lost_the_pipeline_or_the_ledgers_row_decides_nothing(
    direct: Callable[..., Direct], ask: Ask, of_store: bool
) -> None:
    pipeline = direct()
    record = pipeline.open()
    work = pipeline.work(record)
    if of_store:
        pipeline.store.acquire("p", pipeline.generation.number)
    else:
        pipeline.committer.bind(Binding(pipeline.store.id(), pipeline.generation.number + 1))
    with raises(Fenced, "taken-over"):
        pipeline.decide(record, work)
    assert (ask.ids(), pipeline.store.facts("p").unfinished) == ([], (record,))


def test_a_column_that_became_wider_takes_the_rows_step_by_step(direct: Callable[..., Direct], ask: Ask) -> None:
    ask("CREATE TABLE t (id bigint, name varchar(9))")
    pipeline = direct()
    ask("ALTER TABLE t ALTER name TYPE text")
    pipeline.write()
    assert (pipeline.steps, ask.ids()) == (1, [1, 2, 3])


def test_a_column_of_another_type_is_told_and_nothing_is_written(direct: Callable[..., Direct], ask: Ask) -> None:
    ask(TARGET)
    pipeline = direct()
    ask("ALTER TABLE t ALTER id TYPE timestamp USING now()")  # as wide: COPY would take the bytes in silence
    with pytest.raises(OnefoldError) as refused:
        pipeline.write()
    assert refused.value.code == "postgres-refuses"
    assert ask("SELECT count(*) FROM t") == [(0,)]


def test_a_lock_of_another_session_is_waited_for_step_by_step(
    direct: Callable[..., Direct], ask: Ask, postgres_url: str
) -> None:
    ask(TARGET)
    pipeline = direct()
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE t IN SHARE MODE")
        timer = threading.Timer(2, other.rollback)
        timer.start()
        pipeline.write()
        timer.join()
    assert (pipeline.steps, ask.ids()) == (1, [1, 2, 3])


def test_a_row_that_postgres_refuses_is_told_as_staged_tells_it(direct: Callable[..., Direct], ask: Ask) -> None:
    ask("CREATE TABLE t (id bigint CHECK (id < 3), name text)")
    for delivery in ("staged", "direct"):
        pipeline = direct(delivery=delivery)
        with raises(BadRecord, "row-refused"):
            pipeline.write()
        ask("DELETE FROM onefold_sinks.onefold_epochs")
    assert ask.ids() == []


def test_a_row_whose_key_is_there_already_is_refused_and_the_error_names_upserts(
    direct: Callable[..., Direct], ask: Ask
) -> None:
    ask("CREATE TABLE t (id bigint PRIMARY KEY, name text); INSERT INTO t VALUES (2, 'old')")
    with raises(BadRecord, "row-refused", "mode='upsert'"):
        direct(delivery="staged").write()
    assert ask.ids() == [2]


def test_attempts_above_the_bound_are_staged_and_decided_with_the_others(
    direct: Callable[..., Direct], ask: Ask
) -> None:
    pipeline = direct()
    record = pipeline.open()
    small = pipeline.work(record)
    plan = pipeline.sink._plan
    assert plan is not None
    pipeline.sink._plan = replace(plan, direct_bytes_max=10)
    large = pipeline.work(record)
    assert (bool(small.payload), bool(large.payload), ask.stage_rows()) == (True, False, 3)
    decided = pipeline.decide(record, small, large)
    pipeline.driver.perform(Commit("t", decided))
    assert (pipeline.steps, ask.ids(), ask.stage_rows()) == (0, [1, 1, 2, 2, 3, 3], 0)


@pytest.mark.parametrize("deletes", [False, True])  # in one message; step by step
def test_a_driver_that_is_frozen_in_copy_does_not_keep_the_pipeline_from_another(
    direct: Callable[..., Direct], ask: Ask, freezing: Callable[[Callable[[], Any]], None], deletes: bool
) -> None:
    ask(KEYED)
    pipeline = direct(**{**UPSERT, "delete_when_true": "gone" if deletes else None})
    record = pipeline.open()
    work = pipeline.work(record)
    freezing(lambda: pipeline.decide(record, work))
    ask("SET lock_timeout = 3000; SELECT FROM onefold_sinks.onefold_pipelines FOR UPDATE")


def test_a_driver_that_is_frozen_in_copy_does_not_keep_others_from_its_keys(
    direct: Callable[..., Direct], ask: Ask, freezing: Callable[[Callable[[], Any]], None]
) -> None:
    ask("CREATE TABLE t (id bigint PRIMARY KEY)")
    pipeline = direct(pa.record_batch({"id": range(20_000)}))  # more than the server keeps before it writes
    record = pipeline.open()
    work = pipeline.work(record)
    freezing(lambda: pipeline.decide(record, work))
    ask("SET lock_timeout = 3000; INSERT INTO t VALUES (0); DELETE FROM t")
    pipeline.decide(record, work)
    assert len(ask.ids()) == 20_000


@pytest.mark.parametrize("deletes", [False, True])
def test_no_temporary_table_outlives_an_epoch(direct: Callable[..., Direct], ask: Ask, deletes: bool) -> None:
    ask(KEYED)
    direct(**{**UPSERT, "delete_when_true": "gone" if deletes else None}).write()
    assert ask("SELECT relname FROM pg_class WHERE relpersistence = 't'") == []


@pytest.mark.parametrize("deletes", [False, True])
def test_upserts_keep_the_newest_version(direct: Callable[..., Direct], ask: Ask, deletes: bool) -> None:
    ask(KEYED)
    pipeline = direct(**{**UPSERT, "delete_when_true": "gone" if deletes else None})
    for _ in range(2):
        pipeline.write(2)
    assert ask.ids() == ([1, 2] if deletes else [1, 2, 3])
    assert pipeline.steps == (2 if deletes else 0)


def test_a_key_that_another_session_writes_meanwhile_is_merged_step_by_step(
    direct: Callable[..., Direct], ask: Ask, postgres_url: str
) -> None:
    ask(KEYED)
    pipeline = direct(**{**UPSERT, "delete_when_true": None})
    with psycopg.connect(postgres_url) as other:
        other.execute("INSERT INTO t VALUES (2, 9)")
        timer = threading.Timer(0.5, other.commit)
        timer.start()
        pipeline.write()
        timer.join()
    assert (pipeline.steps, ask("SELECT id, v FROM t ORDER BY 1")) == (1, [(1, 1), (2, 9), (3, 1)])


def test_a_table_that_copy_does_not_fill_as_insert_does_is_refused_by_name(postgres_url: str, ask: Ask) -> None:
    ask(TARGET)
    ask("CREATE VIEW v AS SELECT * FROM t")
    with raises(ConfigError, "direct-unsuitable"):
        PostgresSink(postgres_url, "v", delivery="direct").open("p", SCHEMA)

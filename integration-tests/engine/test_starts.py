"""Starts of flows: where they begin is settled, what they forgot is noticed, and each way out that an error names leads
on."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.calls import Ask
from harness.errors import raises
from harness.kafka.topics import in_order

from onefold.core import ConfigError, DataLoss, Terminal
from onefold.core.errors import OutOfResources
from onefold.engine.driver.flow_run import FlowRun
from onefold.flow import Flow, count
from onefold.sinks import PostgresSink, SqlSink
from onefold.sources import FileSource, KafkaSource

pytestmark = pytest.mark.servers

BEFORE = 30


class Lines:
    """A flow from files of one folder into a SQLite table, with or without state; its bookkeeping is there too."""

    def __init__(self, root: Path, *, has_state: bool, checkpoint: str = "") -> None:
        self.root, self.has_state = root, has_state
        self.checkpoint = checkpoint or str(root / "checkpoint")
        self.table = root / "table.db"
        (root / "in").mkdir()
        self.put = 0
        self.more()

    def more(self, rows: int = 3) -> None:
        ids = range(self.put, self.put + rows)
        (self.root / f"in/{self.put}.json").write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))
        self.put += rows

    def flow(self, name: str = "lines") -> Flow:
        flow = Flow(name)
        source = FileSource(str(self.root / "in"), format="json", schema="id long")
        lines = flow.source(source, uid="in")
        url = f"sqlite:///{self.table}"
        if self.has_state:
            counted = lines.key_by("id").aggregate(uid="n", n=count())
            counted.sink(SqlSink(url, "t", mode="upsert", key="id", order="onefold_epoch"))
        else:
            lines.select("id").sink(SqlSink(url, "t"))
        return flow

    def run(self, name: str = "lines", checkpoint: str = "") -> None:
        self.flow(name).run(checkpoint=checkpoint or self.checkpoint, on_outcome=end_with_it)

    def recover(self, **ways: Any) -> None:
        self.flow().recover(checkpoint=self.checkpoint, **ways)

    def ids(self) -> list[int]:
        with closing(sqlite3.connect(self.table)) as rows, rows:
            return [id for (id,) in rows.execute("SELECT id FROM t ORDER BY id")]

    def drop(self, *begins: str) -> None:
        with closing(sqlite3.connect(self.table)) as rows, rows:
            names = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                if name.startswith(begins):
                    rows.execute(f'DROP TABLE "{name}"')

    def assert_exact(self) -> None:
        assert self.ids() == [*range(self.put)]


def end_with_it(_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(params=[False, True], ids=["without state", "with state"])
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> Lines:
    return Lines(tmp_path, has_state=request.param)


@pytest.mark.parametrize("is_url", [False, True], ids=["folder", "url"])
def test_a_flow_whose_bookkeeping_is_gone_is_refused_and_goes_on_once_it_is_restored(
    lines: Lines, tmp_path: Path, *, is_url: bool
) -> None:
    lines.checkpoint = f"file://{tmp_path}/checkpoint" if is_url else lines.checkpoint
    lines.run()
    shutil.copy(lines.table, f"{lines.table}.kept")
    lines.drop("onefold")
    for _ in range(2):
        with pytest.raises(Terminal) as refused:
            lines.run()
        assert refused.value.code == "bookkeeping-gone"
    shutil.copy(f"{lines.table}.kept", lines.table)
    lines.more()
    lines.run()
    lines.assert_exact()


def test_a_flow_whose_bookkeeping_is_gone_begins_anew_with_an_empty_table_and_without_its_folder(lines: Lines) -> None:
    lines.run()
    lines.drop("onefold")
    with pytest.raises(Terminal) as refused:
        lines.run()
    folder = refused.value.message.rpartition("remove the folder ")[2]
    lines.drop("t")
    shutil.rmtree(folder)
    lines.run()
    lines.assert_exact()


def test_a_flow_that_has_never_written_starts_again_without_its_bookkeeping(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(FlowRun, "_epochs", lambda *_: None)
        lines.run()
    lines.drop("onefold")
    if lines.has_state:  # its checkpoint has a ledger, of the store that is gone
        with pytest.raises(Terminal) as refused:
            lines.run()
        assert refused.value.code == "another-store"
        assert "adopt_ledger=True) and start the flow again: no epoch is complete" in refused.value.message
        lines.recover(adopt_ledger=True)
    lines.run()
    lines.assert_exact()


def test_an_epoch_that_was_decided_before_the_mark_could_be_written_is_marked_at_the_next_start(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("onefold.engine.driver.resume_point.WrittenMarker.keep", lambda *_: None)
        lines.run()
    lines.more()
    lines.run()
    lines.drop("onefold")
    with pytest.raises(Terminal) as refused:
        lines.run()
    assert refused.value.code == "bookkeeping-gone"


STORE = ("onefold_store", "onefold_pipelines", "onefold_epochs", "onefold_runs", "onefold_pins")


def lose_the_store(lines: Lines) -> None:
    lines.drop(*STORE)


def take_an_older_store(lines: Lines) -> None:
    with closing(sqlite3.connect(lines.table, isolation_level=None)) as rows:
        rows.execute(f"ATTACH '{lines.table}.older' AS older")
        for table in STORE:
            rows.execute(f"DELETE FROM {table}")
            rows.execute(f"INSERT INTO {table} SELECT * FROM older.{table}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accident", "code"), [(lose_the_store, "another-store"), (take_an_older_store, "sink-ahead-of-store")]
)
def test_a_flow_whose_store_is_lost_or_older_adopts_its_ledgers_and_goes_on_exactly(
    lines: Lines, accident: Callable[[Lines], None], code: str
) -> None:
    lines.run()
    shutil.copy(lines.table, f"{lines.table}.older")
    lines.more()
    lines.run()
    accident(lines)
    lines.more()
    with pytest.raises(Terminal) as refused:
        lines.run()
    assert refused.value.code == code
    assert "call flow.recover(checkpoint=..., adopt_ledger=True), then start the flow again" in refused.value.message
    lines.recover(adopt_ledger=True)
    for _ in range(2):
        lines.run()
        lines.assert_exact()
        lines.more()


def test_a_flow_whose_log_of_files_is_lost_with_its_store_is_refused_and_adopts_nothing(lines: Lines) -> None:
    lines.run()
    before = shutil.copy(lines.table, f"{lines.table}.before")
    lines.drop(*STORE, "onefold_journals")
    with pytest.raises(DataLoss) as refused:
        lines.recover(adopt_ledger=True)
    assert refused.value.code == "file-log-missing"
    shutil.copy(before, lines.table)  # the store is restored, and no ledger is of another one
    lines.more()
    lines.run()
    lines.assert_exact()


def test_a_flow_whose_table_was_dropped_goes_on_without_its_rows_where_the_user_says_so(tmp_path: Path) -> None:
    lines = Lines(tmp_path, has_state=False)
    lines.run()
    lines.drop("t")
    lines.more()
    with pytest.raises(DataLoss) as refused:
        lines.run()
    assert refused.value.code == "target-missing"
    assert "call flow.recover(checkpoint=..., accept_targets=True) once" in refused.value.message
    lines.recover(accept_targets=True)
    lines.run()
    assert lines.ids() == [3, 4, 5]


# topics


class Topics:
    """A flow from topics of one partition into a SQLite table."""

    def __init__(self, root: Path, servers: str, make: Any) -> None:
        self.root, self.servers, self.make = root, servers, make
        self.producer = in_order(servers)
        self.put = 0

    def topic(self) -> str:
        name = str(self.make(partitions=1))
        self.more(name, BEFORE)
        return name

    def more(self, topic: str, count: int) -> range:
        ids = range(self.put, self.put + count)
        for id in ids:
            self.producer.produce(topic, json.dumps({"id": id}).encode(), partition=0)
        assert self.producer.flush(30) == 0
        self.put += count
        return ids

    def source(self, *topics: str, **settings: Any) -> KafkaSource:
        more = {"starting_offsets": "earliest", "max_offsets_per_trigger": 1000, **settings}
        return KafkaSource(topics, bootstrap_servers=self.servers, format="json", schema="id long", **more)

    def run(self, *sources: Any, name: str = "topics") -> None:
        flow = Flow(name)
        first, *others = [flow.source(each, uid=str(number)) for number, each in enumerate(sources)]
        rows = first.union(*others) if others else first
        rows.sink(SqlSink(f"sqlite:///{self.root}/{name}.db", "t"))
        flow.run(checkpoint=str(self.root / "checkpoint"), on_outcome=end_with_it)

    def ids(self, name: str = "topics") -> list[int]:
        with closing(sqlite3.connect(self.root / f"{name}.db")) as rows:
            return [id for (id,) in rows.execute("SELECT id FROM t ORDER BY id")]


@pytest.fixture
def topics(tmp_path: Path, kafka_server: Any, kafka_topic: Any) -> Topics:
    return Topics(tmp_path, kafka_server.bootstrap_servers, kafka_topic)


def test_another_begin_is_refused_while_nothing_was_written_and_taken_under_another_name(topics: Topics) -> None:
    source = topics.source(topics.topic(), starting_offsets="latest")
    topics.run(source.bounded())
    for now in ("earliest", "2026-01-01T00:00:00Z"):
        with pytest.raises(ConfigError) as refused:
            topics.run(replace(source, starting_offsets=now).bounded())
        assert refused.value.code == "starting-offsets-settled"
        assert refused.value.message.endswith("give the flow another name and empty tables")
    topics.run(replace(source, starting_offsets="earliest").bounded(), name="another")
    assert topics.ids("another") == [*range(BEFORE)]


def test_another_begin_has_no_effect_once_records_were_written_and_the_log_says_so(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.topic()
    topics.run(topics.source(topic))
    topics.more(topic, 5)

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    topics.run(topics.source(topic, starting_offsets="ledger"))
    assert not warnings()
    topics.more(topic, 5)
    topics.run(topics.source(topic, starting_offsets="latest"))
    assert ["is ignored" in said for said in warnings()] == [True]
    assert topics.ids() == [*range(topics.put)]


def test_a_flow_begins_at_its_ledger_and_is_refused_where_there_is_none(topics: Topics) -> None:
    source = topics.source(topics.topic(), starting_offsets="ledger")
    with pytest.raises(ConfigError) as refused:
        topics.run(source)
    assert refused.value.code == "ledger-missing"
    topics.run(replace(source, starting_offsets="earliest"))
    topics.run(source.bounded())
    assert topics.ids() == [*range(BEFORE)]


@pytest.mark.parametrize("as_source", [False, True], ids=["topic", "source"])
@pytest.mark.parametrize("begin", ["latest", "earliest"])
def test_what_is_added_later_begins_where_its_own_setting_says_and_the_log_says_where(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begin: str, *, as_source: bool
) -> None:
    first, added = topics.topic(), topics.topic()
    topics.run(topics.source(first))
    later = [topics.source(first), topics.source(added, starting_offsets=begin)]
    sources = later if as_source else [topics.source(first, added, starting_offsets=begin)]
    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "onefold"):
        patched.setattr(FlowRun, "_epochs", lambda *_: None)  # it dies when only its begin is settled
        topics.run(*sources)
    assert f"{added}, added later: read from starting_offsets={begin!r} on" in caplog.text
    topics.more(added, 5)
    for _ in range(2):  # the first epoch may have no records: it notes where the topic begins
        topics.more(first, 1)
        topics.run(*sources)
    skipped = {*range(BEFORE, 2 * BEFORE)} if begin == "latest" else set()
    assert topics.ids() == sorted({*range(topics.put)} - skipped)


def test_a_flow_that_stands_in_a_topic_that_no_source_reads_is_refused_until_it_is_back_or_forgotten(
    topics: Topics,
) -> None:
    kept, gone = topics.topic(), topics.topic()
    topics.run(topics.source(kept, gone))
    topics.more(kept, 3)
    for sources in ([topics.source(kept)], [topics.source(kept), topics.source(topics.topic())]):
        with raises(ConfigError, "positions-not-read", f"{gone}") as refused:
            topics.run(*sources)
        assert refused.value.code == "positions-not-read"
    topics.run(topics.source(kept, forget_topics=gone))
    topics.more(gone, 3)
    topics.run(topics.source(kept, gone))
    assert len(topics.ids()) == 2 * BEFORE + 6


def test_a_flow_whose_folder_is_another_one_now_is_refused_and_reads_nothing_again(tmp_path: Path) -> None:
    lines = Lines(tmp_path, has_state=False)
    lines.run()
    (tmp_path / "in").rename(tmp_path / "moved")
    (tmp_path / "in").mkdir()
    flow = Flow("lines")
    source = FileSource(str(tmp_path / "moved"), format="json", schema="id long")
    flow.source(source, uid="in").sink(SqlSink(f"sqlite:///{lines.table}", "t"))
    with pytest.raises(ConfigError) as refused:
        flow.run(checkpoint=lines.checkpoint, on_outcome=end_with_it)
    assert refused.value.code == "positions-not-read"
    lines.assert_exact()


def test_more_workers_than_a_database_takes_writers_are_refused(tmp_path: Path) -> None:
    lines = Lines(tmp_path, has_state=False)
    with raises(ConfigError, "too-many-workers"):
        lines.flow().run(checkpoint=lines.checkpoint, workers=2)


def test_a_start_that_finds_all_slots_taken_may_be_tried_again(tmp_path: Path, postgres_url: str, ask: Ask) -> None:
    """They are somebody's who may give them back: nothing is wrong with the flow."""
    lines = Lines(tmp_path, has_state=False)
    flow = Flow("lines")
    source = FileSource(str(tmp_path / "in"), format="json", schema="id long")
    flow.source(source, uid="in").select("id").sink(PostgresSink(postgres_url, "t", delivery="two_phase"))
    with all_slots_taken(postgres_url), raises(OutOfResources, "too-many-workers"):
        flow.run(checkpoint=lines.checkpoint, workers=2, on_outcome=end_with_it)
    flow.run(checkpoint=lines.checkpoint, workers=2, on_outcome=end_with_it)
    assert ask("SELECT count(*) FROM t") == [(3,)]


@contextmanager
def all_slots_taken(url: str) -> Iterator[None]:
    taken: list[str] = []
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            with suppress(psycopg.errors.OutOfMemory):  # 53200: maximum number of prepared transactions reached
                while True:
                    connection.execute("BEGIN; SELECT pg_current_xact_id()")
                    connection.execute(f"PREPARE TRANSACTION 'somebody-else/{len(taken)}'".encode())
                    taken.append(f"somebody-else/{len(taken)}")
            yield
        finally:
            for gid in taken:
                connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())

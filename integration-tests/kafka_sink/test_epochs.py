"""Whole epochs into Kafka, with the real driver and store, and everything that can be killed, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.kafka.life import SCHEMA, batches, live
from harness.kafka.reading import Reader, open_transactions, stable_and_end
from harness.pipeline_drivers import Epochs

from onefold.clients.kafka.cluster import Cluster
from onefold.core import (
    Committable,
    CommittedPart,
    Committer,
    Damaged,
    Decided,
    LedgerEntry,
    Positions,
    TaskId,
    WorkLost,
)
from onefold.core.testing import check_sink
from onefold.sinks import KafkaSink
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.transactional import ledger, txn_admin
from onefold.sinks.kafka.transactional.transaction_log import LogRecord
from onefold.testing import Servers

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka_sink_epochs")]
CALLS = {"write", "writer's abort", "prepare", "abort", "commit", "bind", "write_ledger", "open", "recover"}
PARTITIONS = 2


class World:
    """A topic of its own on a server, and what a reader and an operator see there."""

    def __init__(self, server: Any, topic: str, directory: Path) -> None:
        self.servers, self.topic = server.bootstrap_servers, topic
        self.store = f"sqlite:///{directory / 'store.db'}"
        self.reader = Reader(self.servers, topic, PARTITIONS)

    def sink(self, **more: Any) -> KafkaSink:
        return KafkaSink(self.topic, bootstrap_servers=self.servers, key="id", **more)

    def life(self, **more: object) -> Epochs:
        return Epochs(self.sink(**more), SCHEMA, store=self.store)

    def mine(self) -> list[str]:
        """The transactions that the sink has open, of any pipeline."""
        return [name for name in open_transactions(self.servers) if f"/{self.topic}/" in name]

    def assert_exact(self, epochs: int) -> None:
        """Every row once; nothing open, and no reader waits for anything."""
        assert sorted(self.reader.ids()) == list(range(10 * epochs))
        assert self.mine() == []
        assert all(stable == end for stable, end in stable_and_end(self.servers, self.topic, PARTITIONS))


@pytest.fixture
def world(kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path) -> Iterator[World]:
    world = World(kafka_server, kafka_topic(partitions=PARTITIONS), tmp_path)
    yield world
    world.reader.close()


@pytest.fixture(scope="module")
def impatient_server(onefold_servers: Servers) -> Iterator[Any]:
    """It looks for transactions past their timeout three times a second, where the default is every ten seconds."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
    with onefold_servers.kafka(settings=settings) as server:
        yield server


@pytest.fixture
def impatient(impatient_server: Any, tmp_path: Path) -> Iterator[World]:
    topic = f"test-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": impatient_server.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    world = World(impatient_server, topic, tmp_path)
    yield world
    world.reader.close()


@pytest.mark.slow
def test_the_kafka_sink_keeps_its_promises(world: World) -> None:
    report = check_sink(
        partial(KafkaSink, world.topic, bootstrap_servers=world.servers, key="id"),
        rows=world.reader.ids,
        prepared=lambda: len(open_transactions(world.servers)),
        make_sibling=partial(KafkaSink, world.topic, bootstrap_servers=world.servers, name="sibling"),
        steps_max=1,
        moments=1,
        patience_s=20,
    )
    print(f"\n{report}")
    assert report.strikes.keys() == CALLS


def test_epochs_use_their_ids_again_and_leave_nothing_open(world: World) -> None:
    with world.life() as life:
        for epoch in range(3):
            life.run(*batches(epoch))
    world.assert_exact(3)
    cluster = Cluster(world.servers, {}, 20)
    ids = txn_admin.list_ids(cluster, f"onefold/p/{world.topic}/1/")
    cluster.close()
    assert len(ids) == 2


@pytest.mark.slow
def test_the_ledger_topic_forgets_ids_that_nobody_uses_any_more_and_a_zombie_of_theirs_is_swept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_IDLE_EPOCHS", 1)
    old = world.sink()
    with Epochs(old, SCHEMA, store=world.store) as life:
        life.run(*batches(0))
    with world.life() as life:
        for epoch in range(1, 5):
            life.run(*batches(epoch))
        zombie = old.writer(TaskId("p", 1, 2, 1234, uuid.uuid4()))  # it takes an id that was forgotten
        zombie.write(batches(9)[0])
        assert zombie.prepare() is not None
        life.run(*batches(5))
        assert [(left.generation, left.epoch) for left in life.driver.committers[world.topic].leftovers(2)] == []
        for epoch in range(6, 9):
            life.run(*batches(epoch))
    world.assert_exact(9)
    cluster = Cluster(world.servers, {}, 20)
    kept: dict[str, bytes | None] = {}
    for items, _ in txn_admin.read_log(cluster, old.settings.ledger_topic("p"), 0):
        kept |= {
            item.key: item.value for item in items if isinstance(item, LogRecord) and f"/{world.topic}/" in item.key
        }
    cluster.close()
    generations = [name.split("/")[3] for name, value in kept.items() if value is not None]
    assert sorted(generations) == ["2", "2", "ledger"] and len(kept) == 5
    with world.life() as life:
        assert life.at == 9


def test_an_empty_epoch_and_an_empty_task_begin_no_transaction(world: World) -> None:
    first, _ = batches(0)
    with world.life() as life:
        life.run(first, first.slice(0, 0))
        life.run()
        entry = life.driver.committers[world.topic].ledger()
    assert entry is not None and (entry.epoch, entry.members) == (2, ())
    assert sorted(world.reader.ids()) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_pipeline_killed_at_every_step_writes_each_row_once(world: World, tmp_path: Path) -> None:
    """A task that has begun, beside one that has prepared; the driver before and after the decision, with all
    transactions ended and nothing noted, in a recovery too, and inside the ledger's own transaction."""
    points = ("kafka:begun#2", "before:Decide", "before:Commit", "kafka:ended", "kafka:ended#2", "kafka:ledger")
    command = [sys.executable, "-m", "harness.kafka.life", world.servers, world.topic, world.store, "10"]
    for number, point in enumerate(points):
        marks = tmp_path / f"marks{number}"
        marks.mkdir()
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "ONEFOLD_FAILPOINT": point,
            "ONEFOLD_FAILPOINT_DIR": str(marks),
        }
        with subprocess.Popen(command, env=env) as process:
            deadline_s = time.monotonic() + 60
            while not list(marks.iterdir()):
                assert process.poll() is None, f"it ended before {point}"
                assert time.monotonic() < deadline_s, point
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
    live(world.sink(), world.store, 10)
    world.assert_exact(10)


@pytest.mark.slow
def test_a_broker_killed_in_mid_epoch_keeps_what_was_prepared(impatient: World, impatient_server: Any) -> None:
    starts = []

    def restart() -> None:
        impatient_server.kill()
        starts.append(impatient_server.start())

    with impatient.life() as life:
        life.run(*batches(0))
        life.run(*batches(1), doing=restart)
    assert len(starts) == 1, "what was prepared need not be written again"
    impatient.assert_exact(2)


@pytest.mark.slow
def test_a_transaction_that_expired_before_the_decision_makes_the_epoch_run_again(impatient: World) -> None:
    runs = []

    def wait_for_the_end() -> None:
        runs.append(impatient.mine())
        if len(runs) == 1:
            expire(impatient)

    with impatient.life(transaction_timeout_s=5, outage_max_s=0.1) as life:
        life.run(*batches(0), doing=wait_for_the_end)
    assert [len(names) for names in runs] == [2, 2]
    impatient.assert_exact(1)


@pytest.mark.slow
def test_a_transaction_that_expired_after_the_decision_is_damage_with_evidence(impatient: World) -> None:
    settings = {"transaction_timeout_s": 5, "outage_max_s": 0.1}
    with impatient.life(**settings) as life:
        committer = life.driver.committers[impatient.topic]
        life.driver.committers[impatient.topic] = late = Late(committer, impatient)
        with pytest.raises(Damaged) as raised:
            life.run(*batches(0))
        told = str(raised.value)
        assert f"1 of its 2 transactions can no longer be committed: {late.lost.handle} (5 rows, aborted" in told
        assert "The other 1 are in the topic, with 5 rows" in told
    assert sorted(impatient.reader.ids()) == [0, 1, 2, 3, 4]
    with pytest.raises(Damaged, match="accept_damage=1"):
        impatient.life(**settings)
    with Epochs(impatient.sink(**settings), SCHEMA, store=impatient.store, accept_damage=1) as life:
        life.run(*batches(1))
    assert sorted(impatient.reader.ids()) == [0, 1, 2, 3, 4, *range(10, 20)]
    assert impatient.mine() == []


def test_work_that_lives_shorter_than_an_outage_may_last_is_not_decided_upon(world: World) -> None:
    with world.life(transaction_timeout_s=60, outage_max_s=59.999) as life, pytest.raises(WorkLost) as raised:
        life.run(*batches(0))
    assert "left of its 60 s, and outage_max_s asks for 59.999 s" in str(raised.value).replace("60 s left", "left")
    assert world.mine() == []


def test_a_commit_that_was_cut_short_shows_as_a_member_though_another_transaction_is_open(world: World) -> None:
    sink = world.sink()
    committer = sink.open("p", SCHEMA)
    prepared = []
    for batch in batches(0):
        writer = sink.writer(TaskId("p", 1, 7, 1234, uuid.uuid4()))
        writer.write(batch)
        prepared.append(writer.prepare())
    first, second = prepared
    assert first is not None and second is not None
    cluster = Cluster(world.servers, {}, 20)
    txn_admin.end(cluster, [Handle.parse(second.handle)], commit=True)
    cluster.close()
    for any_process in (committer, world.sink().recover("p")):
        assert any_process.ledger() == LedgerEntry(0, 0, 0, Positions(), "", (CommittedPart(7, 1, 1234),))
    assert world.reader.ids() == [], "a reader waits for the first"
    committer.abort([first])
    assert sorted(world.reader.ids()) == [5, 6, 7, 8, 9]


def test_the_ledger_goes_on_after_another_process_wrote_it(world: World) -> None:
    mine, theirs = (world.sink().recover("p") for _ in range(2))
    entries = [LedgerEntry(n, 1, 1000 + n, Positions.of({"t/0": n}), "store") for n in (1, 2, 3)]
    for committer, entry in zip((mine, theirs, mine), entries, strict=True):
        committer.write_ledger(entry)
        assert mine.ledger() == theirs.ledger() == entry
    mine.close()
    theirs.close()


def expire(world: World) -> None:
    deadline_s = time.monotonic() + 30
    while world.mine():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


class Late:
    """A committer whose driver commits one transaction, and is then away until the rest has expired."""

    def __init__(self, committer: Committer, world: World) -> None:
        self.committer, self.world = committer, world
        self.lost: Committable

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        cluster = Cluster(self.world.servers, {}, 20)
        txn_admin.end(cluster, [Handle.parse(committables[0].handle)], commit=True)
        cluster.close()
        self.lost = committables[1]
        expire(self.world)
        self.committer.commit(decided, committables)

    def __getattr__(self, name: str) -> object:
        return getattr(self.committer, name)

"""The pipeline's process, killed with SIGKILL at every named place: what it leaves, what its successor makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.support import Rig, wait_until
from rich.console import Console

from onefold.trials.demo import DemoSettings, run_demo
from onefold.trials.workload.orders import orders, produce
from onefold.trials.workload.session_processes import JobProcess
from onefold.trials.workload.workload_settings import PARTITIONS, TOPIC, Job

pytestmark = pytest.mark.servers

ROWS = 2_000
BATCHES = 8
SEED = 3
REACH_S_MAX = 300.0  # on a machine that has much else to do


class Crashes:
    """The demo's job, one process after another, each killed at one place."""

    def __init__(self, rig: Rig, delivery: str) -> None:
        self.rig, self.delivery, self.number = rig, delivery, 0
        self.job = Job(
            bootstrap_servers=rig.servers,
            postgres_url=rig.url,
            checkpoint=(rig.directory / "checkpoint").as_uri(),
            directory=str(rig.directory),
            deliveries=(delivery,),
            rows_per_batch=ROWS // BATCHES,
            exactly_once=True,
        )
        self.path = rig.directory / "job.json"
        self.job.save(self.path)

    def start(self, failpoint: str | None = None) -> JobProcess:
        self.number += 1
        return JobProcess(
            ("onefold.trials.workload.job", str(self.path)), self.rig.directory / "logs", self.number, failpoint
        )

    def kill_at(self, failpoint: str) -> None:
        process = self.start(failpoint)
        try:
            wait_until(lambda: process.is_held() or process.exit_status is not None, f"reaching {failpoint}")
            assert process.exit_status is None, process.log.read_text()[-3000:]
        finally:
            process.kill()
        assert process.exit_status == -9

    def finish(self) -> None:
        process = self.start()
        try:
            assert process.wait(REACH_S_MAX) == 0, process.log.read_text()[-3000:]
        finally:
            process.kill()

    @property
    def states(self) -> list[str]:
        """The epochs' states in the store."""
        query = "SELECT state FROM onefold_sinks.onefold_epochs ORDER BY epoch"
        return [state for (state,) in self.rig.sql(query)]

    @property
    def ready(self) -> list[tuple[int, int]]:
        """What waits for a decision or for its commit: (generation, epoch) of each task's work."""
        if self.delivery == "two_phase":
            return [(int(gid.split("/")[-3]), int(gid.split("/")[-2])) for gid in self.rig.prepared()]
        staged = self.rig.sql("SELECT generation, epoch FROM onefold_sinks.onefold_staged")
        return [(generation, epoch) for generation, epoch in staged]

    def count(self) -> int:
        exists = self.rig.sql("SELECT to_regclass('orders') IS NOT NULL") == [(True,)]
        return int(self.rig.sql("SELECT count(*) FROM orders")[0][0]) if exists else 0

    def assert_exact(self) -> None:
        expected = [(n, o) for n, o in enumerate(orders(ROWS, SEED)) if b'"amount":-' not in o]
        ids = [row[0] for row in self.rig.sql("SELECT id FROM orders ORDER BY id")]
        assert ids == [n for n, o in expected if b'"amount":0.00,' not in o]
        found = self.rig.sql(
            'SELECT format(\'{"id":%s,"account":%s,"amount":%s,"at":"%sZ"}\', id, account, amount,'
            " to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')) FROM orders ORDER BY id"
        )
        assert [text.encode() for (text,) in found] == [o for _, o in expected if b'"amount":0.00,' not in o]
        assert self.states == ["complete"] * len(self.states)
        self.rig.assert_nothing_in_doubt()


@pytest.fixture
def orders_topic(rig: Rig) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": rig.servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC].result(30)
    produce(rig.servers, TOPIC, PARTITIONS, ROWS, SEED, lambda _: None)
    yield
    admin.delete_topics([TOPIC])[TOPIC].result(30)

    def is_gone() -> bool:
        return TOPIC not in admin.list_topics(timeout=10).topics

    wait_until(is_gone, "deleting the topic")


@pytest.mark.soak
@pytest.mark.usefixtures("orders_topic")
@pytest.mark.parametrize("delivery", ["two_phase", "staged", "direct"])
def test_a_kill_at_every_named_place_leaves_what_that_place_says_and_the_table_ends_exact(
    rig: Rig, delivery: str
) -> None:
    crashes = Crashes(rig, delivery)
    two_phase, is_direct = delivery == "two_phase", delivery == "direct"

    crashes.kill_at("before:RunWriters")
    assert (crashes.states, crashes.ready, crashes.count()) == ([], [], 0)

    crashes.kill_at("before:Decide")
    assert crashes.states == [], "the store knows nothing of an epoch that is not decided"
    ready = crashes.ready
    assert bool(ready) is not is_direct, "what is with the driver is nowhere else"
    assert all(epoch == 1 for _, epoch in ready)
    assert crashes.count() == 0

    crashes.kill_at("after:Decide")
    assert crashes.states == ["decided"]
    assert bool(crashes.ready) is not is_direct
    assert not {*crashes.ready} & {*ready}, "what was not decided, recovery removed"
    decided, in_table = len(crashes.ready), crashes.count()
    assert (in_table == 0) is two_phase, "the decision moved the rows, unless it is two_phase"

    crashes.kill_at("before:Commit")  # in recovery
    assert (crashes.states, len(crashes.ready), crashes.count()) == (["decided"], decided, in_table)

    if two_phase:
        crashes.kill_at("postgres.commit_prepared")
        assert (crashes.states, len(crashes.ready)) == (["decided"], decided - 1)
        assert 0 < crashes.count() < ROWS // BATCHES, "half of the epoch"

    crashes.kill_at("before:Complete")  # in recovery
    assert (crashes.states, crashes.ready) == (["decided"], [])
    written = crashes.count()
    assert written > 0

    if not two_phase:
        crashes.kill_at("staged.merge#1")
        assert crashes.states == ["complete"]
        assert crashes.count() == written

    crashes.kill_at("after:Decide#2")
    assert crashes.states == ["complete", "complete", "decided"], "the decision completes the epoch before"
    assert crashes.count() > written

    crashes.finish()
    crashes.assert_exact()


@pytest.mark.soak
def test_without_protection_the_same_kills_double_rows_and_the_demo_says_so(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    settings = DemoSettings(rows=20_000, kills=2, seed=SEED, exactly_once=False, directory=tmp_path / "demo")
    assert run_demo(settings, console) is False
    report = {line.strip(" │").partition("│")[0].strip(): line for line in console.export_text().splitlines()}
    assert int(report["duplicated"].strip(" │").split("│")[-1].strip().replace(",", "")) > 0
    assert report["lost"].strip(" │").split("│")[-1].strip() == "0"


@pytest.mark.soak
def test_a_demo_that_runs_out_of_orders_says_so_and_still_shows_what_came_of_it(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    settings = DemoSettings(rows=2_000, batches=2, kills=1, seed=SEED, directory=tmp_path / "demo")
    assert run_demo(settings, console) is False
    text = (tmp_path / "demo" / "report.html").read_text()
    for said in ("the topic was through before", "use more --rows", "a batch complete again after", "lost"):
        assert said in text, said

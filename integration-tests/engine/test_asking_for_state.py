"""Readers of a flow's state beside kills of its workers and its driver."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.support import wait_until

from onefold.core import ConfigError, EpochState, Retriable
from onefold.engine.asking.reader import StateAnswer, StateReader
from onefold.store.history import History

JOB = """
import sys
from onefold.engine import Restart
from onefold.flow import Flow, Session, StatefulProcessor, Ttl, Tumbling, bounded, count, sum_
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

topic, servers, url, checkpoint, state, workers = sys.argv[1:]

class Adding(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n long", ttl=Ttl("1 day"))
        self.ids = handle.getListState("ids", "id long", ttl=Ttl("1 day"))

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.total.update(((self.total.get() or (0,))[0] + row.n,))
            self.ids.appendValue((row.id,))
        yield key

def flow():
    flow = Flow("asked")
    source = KafkaSource(topic, bootstrap_servers=servers, format="json",
        schema="id long, account long, n long, at timestamp", max_offsets_per_trigger=200)
    rows = flow.source(source, uid="in", watermarks=bounded("at", "1 hour"))
    keyed = rows.key_by("account")
    made = [
        keyed.aggregate(uid="totals", queryable=True, total=sum_("n"), records=count()),
        keyed.window(Tumbling("1 hour")).aggregate(uid="hours", queryable=True, total=sum_("n")),
        keyed.window(Session("1 hour")).aggregate(uid="sessions", queryable=True, total=sum_("n")),
        keyed.reduce(lambda kept, row: {**row, "n": kept["n"] + row["n"]}, uid="reduced", queryable=True),
        keyed.process(Adding(), "account long", uid="adding", queryable=True),
        keyed.aggregate(uid="living", ttl=Ttl("1 day"), queryable=True, total=sum_("n")),
        keyed.aggregate(uid="unasked", records=count()),
    ]
    accounts = [each.map_batches(lambda batch: batch.select(["account"])) for each in made]
    accounts[0].union(*accounts[1:]).sink(PostgresSink(url, "accounts"))
    return flow

if __name__ == "__main__":
    flow().run(checkpoint=checkpoint, state=state, workers=int(workers), patience_s=60,
        restart=Restart(strategy="fixed_delay", delay_s=0.01, attempts=1000))
"""

OF = [("totals", "", "total"), ("hours", "", "total"), ("sessions", "", "total"), ("reduced", "", "n")]
OF += [("adding", "total", "n"), ("adding", "ids", ""), ("living", "", "total")]
ACCOUNTS = range(7)
PARTITIONS = 4


class Asked:
    """A flow over a topic of numbered records, of which each epoch reads some."""

    def __init__(self, flows: Any, state: str, workers: int) -> None:
        self.flows, self.checkpoint = flows, str(flows.directory / "checkpoint")
        (script := flows.directory / "asked_job.py").write_text(JOB)
        given = (flows.topic, flows.servers, flows.url, self.checkpoint, state, str(workers))
        self.command = [sys.executable, str(script), *given]
        self.log = flows.directory / "job.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.records: list[tuple[int, int, int]] = []

    def put(self, count: int) -> None:
        assert count % PARTITIONS == 0  # a record's number says where it is
        first = len(self.records)
        new = [(number, number % 7, number * number % 1009) for number in range(first, first + count)]
        row = '{"id":%d,"account":%d,"n":%d,"at":"2026-01-01T00:10:00Z"}'
        self.flows.produce(self.flows.topic, [(row % each).encode() for each in new], PARTITIONS)
        self.records += new

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def workers(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            if self.process is not None:
                return [each for fork in psutil.Process(self.process.pid).children() for each in fork.children()]
        return []

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def kill_one(self, chance: random.Random) -> bool:
        """A worker, if there is one."""
        found = self.workers()
        with suppress(psutil.NoSuchProcess):
            if found:
                chance.choice(found).kill()
                return True
        return False

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()[-3000:]

    def reader(self, **settings: Any) -> StateReader:
        return StateReader(self.checkpoint, flow="asked", **settings)

    def ends(self) -> dict[int, Any]:
        """Where each epoch ends that the store says is complete."""
        with closing(History(self.flows.url, 5.0)) as history:
            found = history.epochs("asked", 500, None)
        assert {each.record.state for each in found} <= {EpochState.COMPLETE, EpochState.GIVEN_UP}
        return {each.record.epoch: each.record.range.end for each in found if each.record.state is EpochState.COMPLETE}

    def model(self, end: Any) -> dict[int, list[tuple[int, int, int]]]:
        """The records of each account up to these positions."""
        offsets = {int(name.rpartition("/")[2]): offset for name, offset in end.items}
        found = defaultdict(list)
        for number, record in enumerate(self.records):
            if number // PARTITIONS < offsets[number % PARTITIONS]:
                found[record[1]].append(record)
        return found


@contextmanager
def asked(flows: Any, state: str, workers: int) -> Iterator[Asked]:
    of = Asked(flows, state, workers)
    try:
        yield of
    finally:
        of.kill()


def check(of: Asked, uid: str, column: str, account: int, answer: StateAnswer, ends: dict[int, Any]) -> None:
    if answer.epoch == 0:
        assert answer.rows == []
        return
    assert answer.epoch in ends, f"epoch {answer.epoch} was answered, and is not complete"
    records = of.model(ends[answer.epoch])[account]
    if not column:
        assert sorted(row["id"] for row in answer.rows) == [id_ for id_, _, _ in records], (uid, answer)
    elif not records:
        assert answer.rows == [], (uid, answer)
    else:
        assert [row[column] for row in answer.rows] == [sum(n for _, _, n in records)], (uid, answer)


@pytest.mark.slow
@pytest.mark.parametrize(("state", "workers"), [("memory", 2), ("rocksdb", 3)])
def test_a_committed_answer_is_never_taken_back_whoever_is_killed(flows: Any, state: str, workers: int) -> None:
    answers: list[tuple[str, str, int, StateAnswer]] = []
    unanswered, failures, is_over = [0], list[BaseException](), threading.Event()

    def ask(of: Asked) -> None:
        reader, keys = of.reader(wait_s=0.2), [(account,) for account in ACCOUNTS]
        try:
            while not is_over.wait(0.02):
                for uid, name, column in OF:
                    try:
                        found = reader.get_many(uid, keys, state=name)
                    except Retriable:
                        unanswered[0] += 1
                        continue
                    answers.extend((uid, column, key[0], each) for key, each in zip(keys, found, strict=True))
        except BaseException as error:
            failures.append(error)

    with asked(flows, state, workers) as of:
        of.start()
        asking = threading.Thread(target=ask, args=(of,), daemon=True)
        asking.start()
        chance = random.Random(workers)
        for number in range(16):
            of.put(PARTITIONS * chance.randrange(8, 40))
            time.sleep(chance.uniform(0.1, 1.2))
            if number % 4 == 3:
                of.kill()
                of.start()
            else:
                wait_until(lambda: of.kill_one(chance), "a worker")
        everyone = len(of.records)
        wait_until(
            lambda: (
                sum(row["records"] for each in of.reader(wait_s=60).scan("totals") for row in each.rows) == everyone
            ),
            "all records in the totals",
        )
        is_over.set()
        asking.join(60)
        of.stop()
        assert not failures, failures
        assert unanswered[0] > 0  # it was asked in the middle of it
        ends = of.ends()
        assert len({each.epoch for *_, each in answers}) > 10
        for uid, column, account, answer in answers:
            check(of, uid, column, account, answer, ends)
        by_place = defaultdict(list)
        for uid, column, account, answer in answers:
            by_place[uid, column, account].append(answer.epoch)
        for place, epochs in by_place.items():
            assert epochs == sorted(epochs), place


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_a_stopped_flow_is_read_from_its_snapshots_and_says_so_to_who_asks_workers(flows: Any, state: str) -> None:
    with asked(flows, state, 2) as of:
        of.put(500)
        of.start()
        running = of.reader(wait_s=60)
        wait_until(lambda: sum(row["records"] for each in running.scan("totals") for row in each.rows) == 500, "all")
        folder = Path(
            json.loads((Path(of.checkpoint) / "asked/queries.json").read_text())["workers"][0]["socket"]
        ).parent
        assert (folder.stat().st_mode & 0o777, {path.stat().st_mode & 0o777 for path in folder.iterdir()}) == (
            0o700,
            {0o600},
        )
        live = [running.get(uid, (3,), state=name, view="live").rows for uid, name, _ in OF]
        with pytest.raises(ConfigError, match="state-not-queryable"):
            running.get("unasked", (3,))
        with pytest.raises(ConfigError, match="state-unknown"):
            running.get("adding", (3,))
        with pytest.raises(ConfigError, match="state-key"):
            running.get("totals", ("three",))
        assert running.get("totals", ("3",)).columns == running.get("totals", (3,)).columns
        assert running.get("totals", (99,)).columns is None
        of.stop()
        assert not folder.exists()
        with pytest.raises(Retriable, match="state-not-running"):
            of.reader(wait_s=0).get("totals", (3,))
        code = (
            f"import asked_job, json\nfrom onefold.engine.asking.reader import StateReader\n"
            f"reader = StateReader({of.checkpoint!r}, flow=asked_job.flow(), offline=True)\n"
            f"of = [(uid, reader.get(uid, (3,), state=name)) for uid, name, _ in {OF!r}]\n"
            "of += [('unasked', reader.get('unasked', (3,)))]\n"
            "print(json.dumps([(uid, each.rows, each.epoch) for uid, each in of], default=str))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *of.command[2:]],
            cwd=flows.directory,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(flows.directory)},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        ends = of.ends()
        found = json.loads(done.stdout)
        assert {epoch for _, _, epoch in found} == {max(ends)}
        assert [rows for _, rows, _ in found] == [
            *json.loads(json.dumps(live, default=str)),
            [{"account": 3, "records": 71}],
        ]

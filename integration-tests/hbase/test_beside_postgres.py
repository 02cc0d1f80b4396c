"""Kafka to HBase and to Postgres in one epoch, the driver killed at every failpoint: both exact, at one position."""

from __future__ import annotations

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from harness.kafka.topics import in_order
from harness.pipeline_drivers import PipelineDriver
from harness.support import wait_until
from harness.two_sinks import OPENED, PARTS, RECOVERED, Driver, Job, Orders

import onefold
from onefold.clients.hbase import HBaseSettings, HBaseTable
from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.core import Sink
from onefold.core.protocol.effects import Anchor, AskRepeats, Effect, ListFolder, ReadFile, ReadMoves, SetAside
from onefold.store.store_tables import TABLES

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

PARTITIONS, KEYS = 2, 6  # the records of a key are in one partition
NOTE = "late"
RECORDS = [{"id": i, "k": i % KEYS, "n": i * i % 1009, "note": NOTE} for i in range(1200)]
REACH_S_MAX = 60.0
# Whose failpoints a pipeline on Spark into these two cannot pass; and the effects of an operator, who moves positions.
OTHERS = ("sinks/kafka/", "sinks/sql/", "core/failpoints.py", "operate/savepoint/", "onefold/engine/")
MOVES = {ReadMoves, AskRepeats, Anchor, SetAside}
COMPUTED = 'failpoint(f"'  # the protocol's own two, before and after each effect


def declared() -> set[str]:
    """Every failpoint that code which such a pipeline may run has, those of the protocol's effects among them."""
    found: set[str] = set()
    for portion in onefold.__path__:
        for file in Path(portion).rglob("*.py"):
            if any(other in file.as_posix() for other in OTHERS):
                continue
            text = file.read_text()
            named = re.findall(r'failpoint\("([^"]+)"\)', text)
            computed = text.count(COMPUTED) if file.name == "coordinator.py" else 0
            assert text.count("failpoint(") == len(named) + computed, f"a failpoint of {file} cannot be enumerated"
            found.update(named)
    of_checkpoint = {ReadFile, ListFolder}  # Spark's, which such a driver has none of
    effects = {*get_args(Effect)} - of_checkpoint - MOVES
    return found | {f"{when}:{effect.__name__}" for when in ("before", "after") for effect in effects}


def both(*effects: str) -> frozenset[str]:
    return frozenset(f"{when}:{effect}" for effect in effects for when in ("before", "after"))


# An epoch that writes through is opened in the store. For the rest, what one of these never passes, another does.
EVOLVING = frozenset({"evolve:altered", "evolve:recorded"})
DAMAGE = both("MarkDamaged", "AcceptDamage")
NEVER = {
    ("row_key", "two_phase"): both("ReadClock") | {"hbase:read", "staged.merge"},
    ("rolling", "staged"): both("ReadClock") | DAMAGE | EVOLVING | {"postgres.commit_prepared"},
    ("incremental", "two_phase"): both("ReadClock") | EVOLVING | {"staged.merge"},
}


@dataclass(frozen=True)
class Place:
    """A failpoint in one part of a life, and which pass of it there."""

    part: str
    name: str
    number: int = 1


class Crashes:
    """One driver after another, each killed at one place; then what is in both tables."""

    def __init__(self, job: Job, directory: Path, never: frozenset[str]) -> None:
        self.job, self.directory, self.never = job, directory, never
        self.lives = 0
        self.reached: set[str] = set()
        self.usual = Orders({})

    @contextmanager
    def life(self, at: dict[str, str], **told: Any) -> Iterator[Driver]:
        self.lives += 1
        never = dict.fromkeys(PARTS, ",".join(self.never))  # who comes there is held, in whichever part, and found out
        orders = replace(self.usual, at=never | at, **told)
        driver = Driver(self.job, orders, self.directory / f"life-{self.lives:03d}")
        try:
            yield driver
        finally:
            driver.kill()

    def kill_at(
        self, place: Place, first: str | None = None, doing: Callable[[], None] | None = None, **told: Any
    ) -> None:
        """`first` is a place of the same part, before that one, where the driver waits until `doing` is done."""
        named = [f"{place.name}#{place.number}", *self.never, *([first] if first else [])]
        with self.life({place.part: ",".join(named)}, **told) as driver:
            if first is not None:
                self._assert_held_at(first, driver)
                assert doing is not None
                doing()
                driver.let_go()
            self._assert_held_at(place.name, driver)
            driver.kill()
            assert driver.exit_status == -9
        self.reached.add(place.name)

    def finish(self, **told: Any) -> None:
        """A life that nobody ends."""
        with self.life({}, **told) as driver:
            assert driver.wait(REACH_S_MAX) == 0, driver.log.read_text()[-3000:]

    def fail(self, because: str, **told: Any) -> None:
        """A life that ends with an error."""
        with self.life({}, **told) as driver:
            assert driver.wait(REACH_S_MAX) == 1
            assert because in driver.log.read_text()

    def places(self) -> list[Place]:
        """All that an undisturbed life passes, in order, with all the passes of each."""
        names = ",".join([*declared(), RECOVERED, OPENED])
        with self.life(dict.fromkeys(PARTS, names), noting=True) as driver:
            assert driver.wait(REACH_S_MAX) == 0, driver.log.read_text()[-3000:]
            passed = driver.passed()
        part, found, passes = 0, [], defaultdict[str, int](int)
        for name in passed:
            if name in (RECOVERED, OPENED):
                part += 1
                passes.clear()
                continue
            passes[name] += 1
            found.append(Place(PARTS[part], name, passes[name]))
        return found

    def _assert_held_at(self, place: str, driver: Driver) -> None:
        wait_until(lambda: bool(driver.held_at()) or driver.exit_status is not None, f"reaching {place}")
        assert driver.held_at() == place, f"exit status {driver.exit_status}\n{driver.log.read_text()[-3000:]}"

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    @property
    def state(self) -> str | None:
        """Of the last epoch that was begun."""
        (state,) = self.sql("SELECT (SELECT state FROM onefold_sinks.onefold_epochs ORDER BY epoch DESC LIMIT 1)")
        return state[0]

    @contextmanager
    def locked_ledger(self) -> Iterator[Callable[[], None]]:
        """A function that locks Postgres' ledger against all who write it, until the block ends."""
        with psycopg.connect(self.job.postgres_url) as connection:
            yield lambda: connection.execute("LOCK TABLE onefold_sinks.onefold_ledger IN SHARE MODE") and None

    def in_postgres(self) -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT id, k, n FROM {self.job.table} ORDER BY id")

    def in_hbase(self, columns: Mapping[str, str]) -> list[tuple[Any, ...]]:
        """Each row: its key, then these columns, null where a row has no such cell."""
        key = "id" if self.job.mode == "row_key" else "k"
        mapping = TableMapping.of(self.job.table, f"{key} integer", columns)
        found: list[tuple[Any, ...]] = []
        for part in HBaseTable(HBaseSettings(self.job.hbase_servers), self.job.table).scan(
            b"", b"", mapping.cell_columns
        ):
            found += [tuple(row.values()) for row in mapping.decode(part.keys, part.values).to_pylist()]
        return sorted(found)

    def assert_exact(self) -> None:
        """Both tables have what the topic has, once, and stand where the store stands, which is the topic's end."""
        sent = [(record["id"], record["k"], record["n"]) for record in RECORDS]
        assert self.in_postgres() == sent
        whole = self.sql(f"SELECT k, count(id), sum(n)::bigint FROM {self.job.table} GROUP BY k ORDER BY k")
        match self.job.mode:
            case "row_key":
                notes = self.sql(f"SELECT id, k, n, note FROM {self.job.table} ORDER BY id")
                assert self.in_hbase({"k": "f:k integer", "n": "f:n integer", "note": "f:note string"}) == notes
                assert {note for *_, note in notes} == {None, NOTE}, "the column came in between"
            case "rolling":
                assert self.in_hbase({"id": "f:id integer", "n": "f:n integer"}) == whole
            case "incremental":
                assert self.in_hbase({"n": "f:n integer"}) == [(k, n) for k, _, n in whole]
        end = {f"{self.job.topic}/{p}": len(RECORDS) // PARTITIONS for p in range(PARTITIONS)}
        with closing(PipelineDriver[Sink](self.job.sinks(), self.job.table)) as life:
            entries = [committer.ledger() for committer in life.driver.committers.values()]
            last = life.store.facts(self.job.table).last
            assert last is not None and dict(last.range.end.items) == end
            assert [entry and entry.positions for entry in entries] == [last.range.end] * 2
            assert [entry and entry.epoch for entry in entries] == [last.epoch] * 2
        assert self.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
        assert self.sql("SELECT attempt FROM onefold_sinks.onefold_staged") == []
        assert self.sql("SELECT DISTINCT state FROM onefold_sinks.onefold_epochs") == [("complete",)]


def strike_everywhere(crashes: Crashes, in_every_part: bool) -> None:
    """Each life makes something of what the one before it left, and dies at a place of its own.

    Every pass of an epoch; of a recovery every pass, or the places that an epoch does not have.
    """
    decided = Place("epochs", "after:Decide")
    for place in ("before:Freeze", "after:Freeze"):
        crashes.kill_at(Place("recovery", place))
    crashes.kill_at(decided)
    places = crashes.places()
    of_epochs = {place.name for place in places if place.part == "epochs"}
    in_recovery = [p for p in places if p.part == "recovery" and (in_every_part or p.name not in of_epochs)]
    for place in places:
        if place.part == "epochs":
            if place.name == "hbase:read" and crashes.job.mode == "incremental":
                crashes.finish()  # what an epoch has applied, it does not read again
            crashes.kill_at(place)
            while in_recovery and crashes.state == "decided":
                crashes.kill_at(in_recovery.pop(0))
    while in_recovery:
        crashes.kill_at(decided)
        crashes.kill_at(in_recovery.pop(0))
    crashes.kill_at(Place("epochs", "before:Decide"))  # and so leaves what is prepared
    for place in ("before:Abort", "after:Abort"):
        crashes.kill_at(Place("recovery", place))
    for place in ("before:Pause", "after:Pause"):
        with crashes.locked_ledger() as lock:
            crashes.kill_at(Place("epochs", place), first="after:RunWriters", doing=lock, lock_timeout_s=0.2)
    crashes.finish()


def strike_damaged(crashes: Crashes) -> None:
    """Somebody rolls back what was decided; later its rows are written by hand."""
    crashes.kill_at(Place("epochs", "after:Decide"))
    ((gid,),) = crashes.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() LIMIT 1")
    crashes.sql(f"ROLLBACK PREPARED '{gid}'")
    for place in ("before:MarkDamaged", "after:MarkDamaged"):
        crashes.kill_at(Place("recovery", place))
    ((epoch, text),) = crashes.sql("SELECT epoch, range_end FROM onefold_sinks.onefold_epochs WHERE state = 'damaged'")
    crashes.fail(f"accept_damage={epoch}")
    ends = json.loads(text)
    there = {row[0] for row in crashes.in_postgres()}
    for i, record in enumerate(RECORDS):
        if i // PARTITIONS < ends[f"{crashes.job.topic}/{i % PARTITIONS}"] and record["id"] not in there:
            values = [record[name] for name in crashes.usual.columns.split()]
            crashes.sql(f"INSERT INTO {crashes.job.table} VALUES ({', '.join(['%s'] * len(values))})", *values)
    for place in ("before:AcceptDamage", "after:AcceptDamage"):
        crashes.kill_at(Place("recovery", place), accept_damage=epoch)
    crashes.fail("Somebody rolled them back", accept_damage=epoch)  # it died before the epoch was complete
    crashes.finish(accept_damage=epoch)


def strike_evolving(crashes: Crashes) -> None:
    """From here on the rows have a column more."""
    crashes.usual = replace(crashes.usual, columns="id k n note")
    for place in ("evolve:altered", "evolve:recorded"):
        crashes.kill_at(Place("opening", place))
    crashes.finish()


def strike_adopting(crashes: Crashes) -> None:
    """The checkpoint store is gone, and a new one takes over what the two sinks say."""
    for table in TABLES:
        crashes.sql(f"DROP TABLE onefold_sinks.{table}")
    for place in ("before:Adopt", "after:Adopt"):
        crashes.kill_at(Place("recovery", place), adopt_ledger=True)
    crashes.finish(adopt_ledger=True)


@pytest.fixture
def make(
    kafka_server: Any,
    kafka_topic: Callable[..., str],
    postgres_url: str,
    hbase_server: Any,
    tmp_path: Path,
) -> Callable[[str, str], Crashes]:
    """Of a mode and a delivery, with all records in the topic."""

    def make(mode: str, delivery: str) -> Crashes:
        topic = kafka_topic(partitions=PARTITIONS)
        producer = in_order(kafka_server.bootstrap_servers)
        for number, record in enumerate(RECORDS):
            producer.produce(topic, json.dumps(record).encode(), partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        table = f"test_{uuid.uuid4().hex[:12]}"
        job = Job(kafka_server.bootstrap_servers, topic, postgres_url, hbase_server.servers, table, mode, delivery)
        return Crashes(job, tmp_path, NEVER[mode, delivery])

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "delivery", "in_every_part"),
    [
        ("row_key", "two_phase", False),
        pytest.param("row_key", "two_phase", True, marks=pytest.mark.soak),
        pytest.param("rolling", "staged", True, marks=pytest.mark.soak),
        pytest.param("incremental", "two_phase", True, marks=pytest.mark.soak),
    ],
)
def test_both_sinks_have_each_row_once_wherever_the_driver_is_killed(
    make: Callable[[str, str], Crashes], mode: str, delivery: str, in_every_part: bool
) -> None:
    crashes = make(mode, delivery)
    strike_everywhere(crashes, in_every_part)
    if not crashes.never & DAMAGE:
        strike_damaged(crashes)
    if not crashes.never & EVOLVING:
        strike_evolving(crashes)
    strike_adopting(crashes)
    crashes.finish(epochs_max=1000, rows_max=None)
    assert crashes.reached == declared() - crashes.never
    crashes.assert_exact()
    print(f"\n{crashes.lives} lives")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "delivery"), [("rolling", "staged"), ("incremental", "two_phase")])
def test_so_have_they_where_rows_are_merged_and_the_driver_is_killed_where_only_that_passes(
    make: Callable[[str, str], Crashes], mode: str, delivery: str
) -> None:
    crashes = make(mode, delivery)
    own = NEVER["row_key", "two_phase"] - crashes.never
    for place in crashes.places():
        if place.name in own:
            crashes.kill_at(place)
    crashes.finish(epochs_max=1000, rows_max=None)
    assert crashes.reached == own
    crashes.assert_exact()


def test_what_one_pipeline_never_passes_another_does() -> None:
    assert frozenset.intersection(*NEVER.values()) == both("ReadClock")

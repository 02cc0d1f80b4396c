"""`onefold txn resolve` beside drivers that live, start or are taken over: every record stays exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest
from harness.pipeline_drivers import MakeWorld, World
from harness.support import failing_at
from harness.txns import dies_at

from onefold.core import ConfigError, Fenced
from onefold.core.protocol.in_doubt import Fate
from onefold.operate.transactions import Transactions
from onefold.sinks import PostgresSink
from onefold.sinks.postgres import prepared

pytestmark = pytest.mark.servers

DELIVERIES = ["two_phase", "staged"]


# The moment after one effect is the moment before the next.
EFFECTS = ("ReadClock", "RunWriters", "Verify", "Decide", "Commit", "WriteLedger", "Complete", "ListLeftovers")
HALF_COMMITTED = "postgres.commit_prepared"
PLACES = [*(f"before:{effect}" for effect in EFFECTS), "after:ListLeftovers", "between tasks"]


def places(delivery: str) -> list[str]:
    if delivery == "two_phase":
        return [*PLACES, HALF_COMMITTED]
    return [place for place in PLACES if "Verify" not in place]  # which its decision asserts


def strike(monkeypatch: pytest.MonkeyPatch, world: World, place: str, batch: int, act: Callable[[], object]) -> None:
    """Run a batch, and in the middle of it, once, `act`."""
    struck: list[str] = []

    def once() -> None:
        if not struck:
            struck.append(place)
            act()

    with monkeypatch.context() as patched:
        if place == "between tasks":
            patched.setattr(world, "between_tasks", once)
        elif place == HALF_COMMITTED:
            patched.setattr(prepared, "failpoint", lambda _: once())
        else:
            failing_at(patched, place, once)
        try:
            world.epoch(batch)
        finally:
            assert struck, place


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_resolving_at_any_moment_of_a_live_driver_leaves_it_to_go_on_exactly(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    world = make(delivery=delivery)
    world.start()
    world.epoch(0)
    for batch, place in enumerate(places(delivery), 1):
        strike(monkeypatch, world, place, batch, lambda: txn.resolve("p"))
        world.assert_exact(batch + 1)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_taking_over_at_any_moment_of_a_live_driver_fences_it_and_its_successor_is_exact(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    world, fenced = make(delivery=delivery), []
    world.start()
    world.epoch(0)
    for batch, place in enumerate(places(delivery), 1):
        try:
            strike(monkeypatch, world, place, batch, lambda: txn.take_over("p"))
        except Fenced:
            fenced.append(place)
        with suppress(Fenced):
            assert world.epoch(batch).replayed, "the fenced driver wrote again"
        world.start()
        world.epoch(batch)
        world.assert_exact(batch + 1)
    assert set(fenced) > {"before:ReadClock", "before:Decide", "between tasks"}


@pytest.mark.parametrize("place", ["after:ListLeftovers", "after:ReadLedger", "before:Commit", "before:Abort"])
def test_a_successor_that_starts_in_the_middle_of_resolving_finds_nothing_broken(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    dead, successor = make(), make()
    dead.start()
    dead.epoch(0)
    dies_at(monkeypatch, dead, "after:Decide", 1)
    (record,) = dead.store.facts("p").unfinished
    dead.attempt(dead.sinks[0], record, [1, 2])
    dead.store.acquire("p", 1)

    def start() -> None:
        assert successor.start().finished == 1
        successor.epoch(2)

    failing_at(monkeypatch, place, start)
    txn.resolve("p")
    successor.epoch(3)
    successor.assert_exact(4)


def test_taking_over_commits_what_was_decided_and_removes_what_was_not(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, found in (("before:Decide", 0), ("after:Decide", 1)):
        world = make(place[0], pipeline=place[0])
        world.start()
        dies_at(monkeypatch, world, place, 0)
        started = txn.take_over(world.pipeline)
        assert started.finished == found and world.gids() == []
        world.assert_exact(found)


@pytest.mark.slow
def test_taking_over_a_pipeline_with_a_sink_elsewhere_is_refused_and_changes_nothing(
    make: MakeWorld, txn: Transactions, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"other_{uuid.uuid4().hex[:8]}"
    make().sql(f"CREATE DATABASE {name}")
    elsewhere = PostgresSink(psycopg.conninfo.make_conninfo(postgres_url, dbname=name), "u", delivery="two_phase")
    world = make("t", elsewhere, pipeline="q")
    world.start()
    world.epoch(0)
    dies_at(monkeypatch, world, "before:Decide", 1)
    with pytest.raises(ConfigError, match="also writes to u, which this database doesn't have"):
        txn.take_over("q")
    assert world.store.facts("q").generation == 1
    there = [v for v in txn.look()[0] if v.transaction.database == name]
    assert len(there) == 2
    assert {(v.fate, v.because) for v in there} == {
        (Fate.UNKNOWN, f"prepared in database '{name}': name that one with --postgres")
    }
    world.start()
    world.sql(f"DROP DATABASE {name} WITH (FORCE)")

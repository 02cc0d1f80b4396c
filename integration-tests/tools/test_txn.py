"""`onefold txn`: what is prepared, what should become of it, and the command that resolves it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from harness.definitions import into
from harness.errors import raises
from harness.pipeline_drivers import MakeWorld
from harness.txns import died, dies_at, fates, onefold, onefold_raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.core.protocol.in_doubt import Fate
from onefold.operate.transactions import Transactions
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.admin import Operations

pytestmark = pytest.mark.servers


# what should become of them


def test_undecided_work_is_its_live_generations_until_that_is_over(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = died(make, monkeypatch, "before:Decide", complete=1)
    assert list(fates(txn).values()) == ["leave alone"] * 2
    because = txn.look()[0][0].because
    assert "epoch 2 runs in generation 1, the newest" in because and "--take-over" in because
    assert txn.resolve("p") == {}
    assert len(world.gids()) == 2
    world.store.acquire("p", 1)  # a successor that dies before it has recovered anything
    assert list(fates(txn).values()) == ["roll back"] * 2
    assert set(txn.resolve("p").values()) == {Fate.ROLL_BACK}
    world.assert_exact(1)
    world.start()
    world.epoch(1)
    world.assert_exact(2)


def test_decided_work_is_committed_and_the_next_start_completes_its_epoch(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = died(make, monkeypatch, "after:Decide", "t", "u")
    assert list(fates(txn).values()) == ["commit"] * 4
    assert "epoch 1 was decided" in txn.look()[0][0].because
    first = world.gids()[0]
    assert len(txn.resolve("p", first)) == 2, "with the rest of its epoch in that sink"
    assert len(txn.resolve("p")) == 2
    world.assert_exact(1)
    assert world.start().finished == 1
    world.epoch(1)
    world.assert_exact(2)


def test_a_lost_attempt_beside_a_decided_epoch_is_rolled_back(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = died(make, monkeypatch, "after:Decide")
    (record,) = world.store.facts("p").unfinished
    (lost,) = world.attempt(world.sinks[0], record, [1, 2])
    assert sorted(fates(txn).values()) == ["commit", "commit", "roll back"]
    assert fates(txn)[lost.handle] == "roll back"
    txn.resolve("p")
    world.assert_exact(1)


def test_what_a_zombie_prepares_after_its_epoch_is_rolled_back(make: MakeWorld, txn: Transactions) -> None:
    world = make()
    world.start()
    record = world.epoch(0).record
    world.attempt(world.sinks[0], record, [1])
    assert list(fates(txn).values()) == ["roll back"]
    assert "epoch 1 is over, and its manifest doesn't name it" in txn.look()[0][0].because
    txn.resolve("p")
    world.assert_exact(1)


def test_staged_leftovers_are_resolved_too(make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch) -> None:
    world = died(make, monkeypatch, "before:Decide", delivery="staged")
    assert (txn.resolve("p"), world.staged()) == ({}, 2)
    world.store.acquire("p", 1)
    assert len(txn.resolve("p")) == 2
    world.start()
    dies_at(monkeypatch, world, "after:Decide", 0)
    assert set(txn.resolve("p").values()) == {Fate.COMMIT}
    world.assert_exact(1)


# stores, roles, other people


def test_without_the_right_store_nothing_is_touched_and_the_reason_is_told(
    make: MakeWorld, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = f"sqlite:///{tmp_path / 'right.db'}", f"sqlite:///{tmp_path / 'other.db'}"
    world = died(make, monkeypatch, "before:Decide", store=store)
    stranger = make("x", pipeline="p2", store=other)
    stranger.start()
    reasons = {
        None: "no checkpoint store at .*: name the pipeline's own store in its file, or with --store",
        f"sqlite:///{tmp_path / 'none.db'}": "no checkpoint store at",
        "postgresql+psycopg://u:geheim@127.0.0.1:1/d": "no connection to Postgres",
        other: "written under checkpoint store",
    }
    for url, reason in reasons.items():
        expect_unknown(postgres_url, url, reason)
    right = Transactions(Operations(postgres_url), store)  # its start has bound the ledger to it
    assert {verdict.fate for verdict in right.look()[0]} == {Fate.LEAVE}
    right.close()
    world.epoch(0)
    world.start()
    dies_at(monkeypatch, world, "before:Decide", 1)
    namesake = make("y", store=other)  # the same pipeline's name, in another store
    for _ in range(3):
        namesake.store.acquire("p", 0)
    expect_unknown(postgres_url, other, "written under checkpoint store")
    assert len(world.gids()) == 2
    right = Transactions(Operations(postgres_url), store)
    assert list(fates(right).values()) == ["leave alone"] * 2
    right.close()
    world.store.acquire("p", 9)
    assert not (tmp_path / "none.db").exists()


def test_without_the_sinks_bookkeeping_nothing_is_touched_either(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died(make, monkeypatch, "after:Decide")
    transactions = Transactions(Operations(postgres_url, "elsewhere"), None)
    assert "no onefold tables in schema 'elsewhere'" in transactions.look()[0][0].because
    with raises(ConfigError, "ledger-missing"):
        transactions.take_over("p")
    transactions.close()


def expect_unknown(url: str, store: str | None, reason: str) -> None:
    transactions = Transactions(Operations(url), store)
    try:
        (verdict, *_) = transactions.look()[0]
        assert verdict.fate is Fate.UNKNOWN
        with pytest.raises(Exception, match=reason) as caught:
            transactions.resolve("p")
        assert verdict.because == caught.value.message
        assert "geheim" not in verdict.because
    finally:
        transactions.close()


def test_an_older_copy_of_the_store_resolves_nothing(
    make: MakeWorld, txn: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    world.start()
    world.epoch(0)
    world.sql("CREATE TABLE kept AS TABLE onefold_sinks.onefold_pipelines")
    world.start()
    dies_at(monkeypatch, world, "before:Decide", 1)
    world.sql("DELETE FROM onefold_sinks.onefold_pipelines; INSERT INTO onefold_sinks.onefold_pipelines TABLE kept")
    assert list(fates(txn).values()) == ["unknown"] * 2
    assert "generation 2 is above the store's 1" in txn.look()[0][0].because
    assert txn.resolve("p") == {}
    assert len(world.gids()) == 2


def test_the_transactions_of_other_people_are_counted_and_never_touched(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = died(make, monkeypatch, "after:Decide")
    foreign = ["invoice 7", "of/p/t/1/1/nohex", "of/p/t/x/1/" + "0" * 32, "of/p"]
    for number, gid in enumerate(foreign):
        world.sql(f"BEGIN; CREATE TABLE foreign_{number} (); PREPARE TRANSACTION '{gid}'")
    listed = onefold("list", "--postgres", postgres_url)
    assert "4 of other people, which onefold leaves alone; the oldest is 'invoice 7'" in listed.output
    shown = json.loads(onefold("list", "--postgres", postgres_url, "--json").output)
    assert [t["gid"] for t in shown["others"]] == foreign
    assert {t["should_become"] for t in shown["ours"]} == {"commit"}
    with raises(ConfigError, "transaction-not-ours"):
        onefold_raises("resolve", "--postgres", postgres_url, "--gid", foreign[1], "--yes")
    assert onefold("resolve", "--postgres", postgres_url, "--yes").exit_code == 0
    assert world.gids() == foreign
    for gid in foreign:
        world.sql(f"ROLLBACK PREPARED '{gid}'")
    world.assert_exact(1)


@pytest.fixture
def roles(postgres_url: str) -> Iterator[tuple[str, str]]:
    names = (f"Writer {uuid.uuid4().hex[:8]}", f"operator_{uuid.uuid4().hex[:8]}")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'geheim'".encode())
        database = connection.info.dbname
        connection.execute(f'GRANT CREATE ON DATABASE {database} TO "{names[0]}"'.encode())
        connection.execute(f'GRANT CREATE ON SCHEMA public TO "{names[0]}"'.encode())
        yield names
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (database,)):
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        for name in names:
            connection.execute(f'DROP OWNED BY "{name}" CASCADE'.encode())
            connection.execute(f'DROP ROLE "{name}"'.encode())


def test_what_another_role_prepared_is_finished_as_that_role_or_the_grant_is_named(
    make: MakeWorld, postgres_url: str, roles: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, operator = roles
    world = died(
        make,
        monkeypatch,
        "after:Decide",
        url=psycopg.conninfo.make_conninfo(postgres_url, user=writer, password="geheim"),
    )
    world.sql(f'GRANT USAGE ON SCHEMA onefold_sinks TO "{operator}"')
    world.sql(f'GRANT SELECT ON ALL TABLES IN SCHEMA onefold_sinks, public TO "{operator}"')
    url = psycopg.conninfo.make_conninfo(postgres_url, user=operator, password="geheim")
    transactions = Transactions(Operations(url), None)
    for asked in (transactions.look, lambda: transactions.resolve("p")):
        with raises(ConfigError, "schema-of-another-role", f"{writer}", f"{writer}", f"{operator}"):
            asked()
    assert len(world.gids()) == 2
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'GRANT "{writer}" TO "{operator}"'.encode())
    assert list(fates(transactions).values()) == ["commit"] * 2
    assert len(transactions.resolve("p")) == 2
    transactions.close()
    world.assert_exact(1)


# the command


@pytest.mark.slow
def test_the_command_shows_asks_resolves_and_says_what_it_left(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert onefold("list", "--postgres", postgres_url).output.strip() == "no prepared transactions of onefold"
    assert make().sql("SELECT to_regclass('onefold_sinks.onefold_store') IS NULL") == [(True,)], "looking makes nothing"
    decided, running = make("t", pipeline="decided"), make("u", pipeline="running")
    for world, place in ((decided, "after:Decide"), (running, "before:Decide")):
        world.start()
        dies_at(monkeypatch, world, place, 0)
    listed = onefold("list", "--postgres", postgres_url)
    assert listed.exit_code == 0
    lines = listed.output.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["commit", "decided"]] * 2 + [["leave", "alone"]] * 2
    only = onefold("list", "--postgres", postgres_url, "--pipeline", "running", "--json")
    assert {t["pipeline"] for t in json.loads(only.output)["ours"]} == {"running"}
    assert CliRunner().invoke(app, ["txn", "resolve", "--postgres", postgres_url], input="n\n").exit_code == 1
    assert len(decided.gids()) == 4
    resolved = onefold("resolve", "--postgres", postgres_url, "--yes")
    assert resolved.exit_code == 1
    assert "decided: 2 committed, 0 rolled back" in resolved.output
    assert "2 left:" in resolved.output
    gid = running.gids()[0]
    assert onefold("resolve", "--postgres", postgres_url, "--gid", gid, "--yes").exit_code == 1
    with pytest.raises(ConfigError, match="--take-over is for one whole pipeline: name it"):
        onefold_raises("resolve", "--postgres", postgres_url, "--take-over")
    taken = onefold("resolve", "--postgres", postgres_url, "--pipeline", "running", "--take-over", "--yes")
    assert taken.exit_code == 0
    assert "taken over as generation 2; 0 decided epochs finished" in taken.output
    with pytest.raises(ConfigError, match="was finished meanwhile"):
        onefold_raises("resolve", "--postgres", postgres_url, "--gid", gid, "--yes")
    running.assert_exact(0)


@pytest.mark.slow
def test_the_command_takes_a_pipeline_and_looks_where_its_sinks_are(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, other = died(make, monkeypatch, "before:Decide", "t", complete=1), make("u", pipeline="other")
    other.start()
    dies_at(monkeypatch, other, "after:Decide", 0)
    defined = into(*world.sinks)
    listed = json.loads(onefold("list", defined, "--json").output)
    assert {(t["pipeline"], t["should_become"]) for t in listed["ours"]} == {("p", "leave alone")}
    assert onefold("resolve", defined, "--yes").exit_code == 1
    assert len(world.gids()) == 4
    taken = onefold("resolve", defined, "--take-over", "--yes")
    assert taken.exit_code == 0 and "taken over as generation 2" in taken.output
    assert onefold("prune", defined, "--yes").output.strip() == "nothing to prune"
    assert onefold("resolve", into(*other.sinks, name="other"), "--yes").exit_code == 0
    world.assert_exact(1)


@pytest.mark.slow
def test_of_sinks_in_two_databases_of_a_server_each_transaction_is_listed_once_and_resolved_where_it_is(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"other_{uuid.uuid4().hex[:8]}"
    make().sql(f"CREATE DATABASE {name}")
    there = psycopg.conninfo.make_conninfo(postgres_url, dbname=name)
    sinks = (PostgresSink(postgres_url, "t", delivery="two_phase"), PostgresSink(there, "u", delivery="two_phase"))
    world = died(make, monkeypatch, "after:Decide", *sinks)
    defined = into(*sinks)
    listed = json.loads(onefold("list", defined, "--json").output)["ours"]
    assert len({t["gid"] for t in listed}) == len(listed) == 4
    assert {(t["sink"], t["should_become"]) for t in listed} == {("t", "commit"), ("u", "commit")}
    (one,) = [t["gid"] for t in listed if t["sink"] == "u"][:1]
    by_one = onefold("resolve", defined, "--gid", one, "--yes")
    assert by_one.exit_code == 0 and "2 committed" in by_one.output, by_one.output
    resolved = onefold("resolve", defined, "--yes")
    assert resolved.exit_code == 0, resolved.output
    assert json.loads(onefold("list", defined, "--json").output)["ours"] == []
    assert world.ids("t") == list(range(10))
    world.close()
    world.sql(f"DROP DATABASE {name} WITH (FORCE)")

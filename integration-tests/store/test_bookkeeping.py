"""What onefold keeps in Postgres over weeks: made once, bounded, pruned, and told apart between pipelines and sinks."""

from __future__ import annotations

import threading

import psycopg
import pytest
from harness.errors import raises
from harness.pipeline_drivers import MakeWorld, World
from harness.support import CrashError, crash, failing_at
from harness.txns import onefold
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import CheckpointMismatch, ConfigError, Fenced
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.postgres.naming import stage_name

pytestmark = pytest.mark.servers

DELIVERIES = ["two_phase", "staged"]


@pytest.mark.parametrize("table", layout.TABLES)
def test_a_table_that_was_dropped_by_itself_is_named_and_not_made_anew(make: MakeWorld, table: str) -> None:
    world = make()
    world.start()
    world.epoch(0)
    before = world.sql("SELECT count(*) FROM pg_class")
    world.sql(f"DROP TABLE onefold_sinks.{table} CASCADE")
    after = world.sql("SELECT count(*) FROM pg_class")
    with raises(ConfigError, "ledger-incomplete", f"{table}") as refused:
        make()
    assert refused.value.code == "ledger-incomplete"
    assert world.sql("SELECT count(*) FROM pg_class") == after < before


def test_drivers_that_start_at_once_make_the_tables_once(make: MakeWorld) -> None:
    barrier, opened = threading.Barrier(4), []

    def recover(number: int) -> None:
        barrier.wait(timeout=10)
        opened.append(make(pipeline=f"p{number}"))

    threads = [threading.Thread(target=recover, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(opened) == 4
    assert opened[0].sql("SELECT version FROM onefold_sinks.onefold_version") == [(1,)]
    assert opened[0].sql("SELECT count(*) FROM onefold_sinks.onefold_ledger") == [(4,)]


def test_a_ledger_of_another_layout_is_refused_and_left_as_it_is(make: MakeWorld) -> None:
    world = make()
    world.sql("UPDATE onefold_sinks.onefold_version SET version = 2; DROP TABLE onefold_sinks.onefold_parts")
    with pytest.raises(ConfigError) as refused:
        make()
    assert refused.value.code == "ledger-too-new"
    assert world.sql("SELECT to_regclass('onefold_sinks.onefold_parts') IS NULL") == [(True,)]


# weeks


@pytest.mark.slow
def test_hundreds_of_epochs_leave_no_more_rows_and_no_larger_catalog_than_twenty(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.store.checkpoint_store.KEEP_EPOCHS", 15)
    monkeypatch.setattr("onefold.store.checkpoint_store.PRUNE_EVERY", 1)
    world = make(*(PostgresSink(postgres_url, name, delivery=name) for name in DELIVERIES))
    world.ROWS, world.TASKS = 2, 1
    world.start()
    kept, catalogs = [], []
    for batch in range(201):
        if batch in (20, 200):
            kept.append(rows_kept(world))
            catalogs.append(catalog(world))
        world.epoch(batch)
    assert kept == [{"ledger": 2, "parts": 1, "staged": 0, "stage": 0, "epochs": 16}] * 2
    assert catalogs[1] == catalogs[0]
    world.assert_exact(201)


def rows_kept(world: World) -> dict[str, int]:
    ((stage,),) = world.sql("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_stage_'")
    tables = {name: f"onefold_sinks.onefold_{name}" for name in ("ledger", "parts", "staged")}
    tables |= {"stage": stage, "epochs": "onefold_sinks.onefold_epochs"}
    return {name: int(world.sql(f"SELECT count(*) FROM {table}")[0][0]) for name, table in tables.items()}


def catalog(world: World) -> dict[str, int]:
    """How many rows the catalog has, and how large it is once the dead ones are swept, as autovacuum does."""
    found = {}
    for table in ("pg_class", "pg_attribute", "pg_type", "pg_depend"):
        world.sql(f"VACUUM {table}")
        rows, size = world.sql(f"SELECT (SELECT count(*) FROM {table}), pg_relation_size('{table}')")[0]
        found |= {f"{table} rows": rows, f"{table} bytes": size}
    return found


# several pipelines, several tables


@pytest.mark.slow
def test_two_pipelines_with_sinks_of_one_name_write_one_table_and_keep_apart(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names, and the sinks', differ only after what is cut off, or by what is escaped."""
    stem = "a pipeline's name/of some length, with ümläuten, "
    names = ["p", "P", "p%2F", "p/", f"{stem * 2}1", f"{stem * 2}2"]
    pipelines = []
    for number, name in enumerate(names):
        sink = PostgresSink(postgres_url, "t", name=stem, delivery=DELIVERIES[number % 2])
        pipelines.append(make(sink, pipeline=name))
    for world in pipelines:
        world.start()
        with monkeypatch.context() as patched:
            failing_at(patched, "before:Decide", crash)
            with pytest.raises(CrashError):
                world.epoch(0)
    assert len(pipelines[0].gids()) + pipelines[0].staged() == 2 * len(pipelines)
    for done, world in enumerate(pipelines, 1):
        world.start()
        world.epoch(0)
        assert len(world.gids()) + world.staged() == 2 * (len(pipelines) - done), "it removed what was another's"
        assert world.ids("t") == sorted([*range(10)] * done)
    ledgers = [world.driver.committers[stem].ledger() for world in pipelines]
    assert [ledger.epoch if ledger else None for ledger in ledgers] == [1] * len(pipelines)


@pytest.mark.slow
@pytest.mark.parametrize("deliveries", [("two_phase", "two_phase"), ("two_phase", "staged")])
def test_one_pipeline_writes_two_tables_in_one_epoch(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch, deliveries: tuple[str, str]
) -> None:
    sinks = [PostgresSink(postgres_url, f"t{n}", delivery=delivery) for n, delivery in enumerate(deliveries)]
    world = make(*sinks)
    world.start()
    for batch, place in enumerate(("before:Decide", "after:Decide", "after:Commit", "after:WriteLedger")):
        with monkeypatch.context() as patched:
            failing_at(patched, place, crash)
            with pytest.raises(CrashError):
                world.epoch(batch)
        world.start()
        world.epoch(batch)
        world.assert_exact(batch + 1)


@pytest.mark.slow
def test_pipelines_and_sinks_of_one_name_with_their_ledgers_in_two_schemas_keep_apart(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of prepared transactions count in the whole database."""
    one = make("t", store=store_in(postgres_url, "one"))
    other = make(PostgresSink(postgres_url, "u", name="t", ledger="another"), store=store_in(postgres_url, "other"))
    for world in (one, other):
        world.start()
        with monkeypatch.context() as patched:
            failing_at(patched, "before:Decide", crash)
            with pytest.raises(CrashError):
                world.epoch(0)
    assert len(one.gids()) == 4
    one.start()
    assert len(one.gids()) == 2, "it removed the other's"
    one.epoch(0)
    listed = onefold("list", "--postgres", postgres_url, "--ledger", "another")
    assert listed.output.count(" p ") == 2
    other.start()
    other.epoch(0)
    assert (one.ids("t"), one.ids("u"), one.gids()) == (list(range(10)), list(range(10)), [])


@pytest.mark.parametrize(("first", "second"), [("one", "another"), ("onefold_sinks", "another")])
def test_an_epoch_of_another_ledger_schema_is_not_taken_for_damaged(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    def sink_in(schema: str) -> PostgresSink:
        return PostgresSink(postgres_url, "t", delivery="two_phase", ledger=schema)

    store = store_in(postgres_url, "apart")
    world, other = make(sink_in(first), store=store), make(sink_in(second), store=store)
    world.start()
    with monkeypatch.context() as patched:
        failing_at(patched, "after:Commit", crash)
        with pytest.raises(CrashError):
            world.epoch(0)
    with raises(ConfigError, "ledger-changed"):
        other.start()
    assert make(sink_in(first), store=store).start().finished == 1
    assert world.ids("t") == list(range(10))


@pytest.mark.parametrize("place", ["after:Bind", "after:Decide", "after:Complete"])
def test_a_sink_begins_no_second_ledger_in_another_schema_with_the_store_that_goes_with_it(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world = make()
    with monkeypatch.context() as patched:
        failing_at(patched, place, crash)
        with pytest.raises(CrashError):
            lives(world)
    moved = PostgresSink(postgres_url, "t", delivery="two_phase", ledger="another")
    with raises(ConfigError, "ledger-elsewhere", "'onefold_sinks'", "ledger='onefold_sinks'"):
        make(moved)
    assert world.sql("SELECT to_regclass('another.onefold_store') IS NULL") == [(True,)]
    again = make()
    again.start()
    again.epoch(0)
    again.assert_exact(1)


def lives(world: World) -> None:
    world.start()
    world.epoch(0)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_two_processes_with_one_pipelines_name_and_a_store_each_do_not_share_a_ledger(
    make: MakeWorld, postgres_url: str, delivery: str
) -> None:
    one = make("t", delivery=delivery, store=store_in(postgres_url, "one"))
    other = make(PostgresSink(postgres_url, "u", name="t", delivery=delivery), store=store_in(postgres_url, "other"))
    one.start()
    for batch in range(2):
        with raises(CheckpointMismatch, "another-store"):
            other.start()
        one.epoch(batch)
    assert one.ids("t") == list(range(20))
    assert one.gids() == []


@pytest.mark.slow
def test_an_adoption_gives_the_ledger_to_another_store(make: MakeWorld, postgres_url: str) -> None:
    lost, new = make(store=store_in(postgres_url, "lost")), make(store=store_in(postgres_url, "new"))
    lost.start()
    lost.epoch(0)
    with pytest.raises(CheckpointMismatch, match="adopt_ledger=True"):
        new.start()
    assert new.start(adopt_ledger=True).generation.number > 1
    new.epoch(1)
    new.assert_exact(2)


def store_in(url: str, schema: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return url.replace("postgresql:", "postgresql+psycopg:", 1) + f"?schema={schema}"


# pruning


def txn_prune(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["txn", "prune", "--postgres", url, *arguments], catch_exceptions=False)
    return result.output


def relations(world: World) -> list[str]:
    return [row[0] for row in world.sql("SELECT relname FROM pg_class WHERE relname ~ '^onefold_stage_' ORDER BY 1")]


@pytest.mark.slow
def test_a_removed_or_renamed_sink_is_pruned_and_the_pipeline_goes_on(make: MakeWorld, postgres_url: str) -> None:
    make("its first name", delivery="staged").start()
    sinks = [PostgresSink(postgres_url, "kept"), PostgresSink(postgres_url, "removed", delivery="staged")]
    both = make(*sinks)
    both.start()
    both.epoch(0)
    pruned = [line for line in txn_prune(postgres_url).splitlines() if "the pipeline's last epoch" in line]
    assert len(pruned) == 1 and "its first name" in pruned[0]
    world = make("kept")
    world.start()
    world.epoch(1)
    world.sql("CREATE UNLOGGED TABLE onefold_sinks.onefold_stage_" + "0" * 32 + " (id int)")
    shown = txn_prune(postgres_url, "--yes")
    assert "the pipeline's last epoch, 2, went to kept" in shown and "no sink that was ever opened here" in shown
    assert "removed: the bookkeeping of 2 sinks, and 1 more stage tables" in shown
    assert relations(world) == []
    assert world.sql("SELECT sink FROM onefold_sinks.onefold_ledger") == [("kept",)]
    world.epoch(2)
    world.start()
    world.epoch(3)
    world.assert_exact(4)
    assert world.ids("removed") == list(range(10)), "a target is nobody's to prune"
    again = make(*sinks)
    with pytest.raises(ConfigError, match="is new to pipeline"):
        again.start()


@pytest.mark.slow
def test_a_retired_pipeline_is_forgotten_everywhere_and_whoever_still_ran_it_is_fenced(
    make: MakeWorld, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staying, retired = make("t", pipeline="staying"), make("u", pipeline="retired", delivery="staged")
    for world in (staying, retired):
        world.start()
        world.epoch(0)
    with pytest.raises(ConfigError, match="nothing is kept here for a pipeline typo"):
        txn_prune(postgres_url, "--retired", "typo", "--yes")
    with monkeypatch.context() as patched:
        failing_at(patched, "after:Decide", crash)
        with pytest.raises(CrashError):
            retired.epoch(1)
    with pytest.raises(ConfigError, match="epoch 2 of pipeline 'retired' is decided: start the pipeline once more"):
        txn_prune(postgres_url, "--retired", "retired", "--yes")
    alive = make("u", pipeline="retired", delivery="staged")
    alive.start()
    assert [name.startswith(stage_name("retired", "u")) for name in relations(alive)] == [True]
    txn_prune(postgres_url, "--retired", "retired", "--yes")
    with pytest.raises(Fenced):
        alive.epoch(2)
    assert relations(alive) == []
    for table in ("onefold_sinks.onefold_ledger", "onefold_sinks.onefold_epochs", "onefold_sinks.onefold_pipelines"):
        assert alive.sql(f"SELECT DISTINCT pipeline FROM {table}") == [("staying",)]
    staying.epoch(1)
    assert (staying.ids("t"), staying.ids("u")) == (list(range(20)), list(range(20)))


@pytest.mark.slow
def test_what_is_still_prepared_or_of_another_store_is_not_pruned(make: MakeWorld, postgres_url: str) -> None:
    world = make()
    world.start()
    record = world.epoch(0).record
    world.attempt(world.sinks[0], record, [1])
    with pytest.raises(ConfigError, match="is still prepared for sink 't' of pipeline 'p'"):
        txn_prune(postgres_url, "--retired", "p", "--yes")
    world.start()
    world.sql("UPDATE onefold_sinks.onefold_store SET store_id = 'another'")
    assert "nothing to prune" in txn_prune(postgres_url)
    with pytest.raises(ConfigError, match="this store is another: name the one that it had"):
        txn_prune(postgres_url, "--retired", "p", "--yes")
    assert world.sql("SELECT count(*) FROM onefold_sinks.onefold_ledger") == [(1,)]

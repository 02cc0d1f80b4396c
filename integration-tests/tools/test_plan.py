"""`onefold plan`, held against what a first start then makes, on real servers: all of it, and nothing else."""

from __future__ import annotations

import itertools
import json
import shlex
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from harness.kafka.topics import in_order
from harness.passwords import plain_url
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable, table_admin
from onefold.core import Sink
from onefold.core.findings import Making
from onefold.operate.doctor import diagnose
from onefold.pipeline import read
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.store.checkpoint_store import CheckpointStore, default_store
from onefold.store.job.session import Session

pytestmark = pytest.mark.servers
Topic = Callable[..., str]
ROWS = pa.schema(
    {
        "id": pa.int64(),
        "version": pa.int32(),
        "name": pa.string(),
        "amount": pa.decimal128(12, 2),
        "at": pa.timestamp("us", "UTC"),
        "parts": pa.list_(pa.int32()),
        "gone": pa.bool_(),
    }
)
UPSERT: dict[str, Any] = {"mode": "upsert", "order": "version", "delete_when_true": "gone"}
WHOLE = """\
name = "orders"
[[sources]]
kind = "kafka"
topics = "{topic}"
bootstrap_servers = "{servers}"
format = "json"
schema = "id long, n long"
on_error = "dead_letter"
[sources.dead_letters]
kind = "kafka"
topic = "{letters}"
bootstrap_servers = "{servers}"
timeout_s = 5
[[steps]]
sql = "SELECT id, n FROM source"
schema = "id long, n long"
[[sinks]]
kind = "postgres"
url = "{url}"
table = "rows"
mode = "upsert"
key = "id"
order = "n"
on_error = "dead_letter"
[spark]
available_now = true
"""
FLAT = pa.schema([field for field in ROWS if field.name != "parts"])


def start(sinks: Sequence[Sink], store: str, rows: pa.Schema = ROWS) -> None:
    """The first start of a pipeline, up to where its first epoch would open."""
    with ExitStack() as stack:
        checkpoint_store = CheckpointStore(store)
        stack.callback(checkpoint_store.close)
        session = Session("p", sinks, checkpoint_store, 10)
        stack.callback(session.close)
        session.start(None)
        session.open_sinks(rows)


def planned(sinks: Sequence[Sink], store: str, rows: pa.Schema | None = ROWS) -> tuple[Making, ...]:
    schemas = None if rows is None else dict.fromkeys((sink.name for sink in sinks), rows)
    found = diagnose("p", sinks, store=store, schemas=schemas)
    assert found.holds, [finding.says for finding in found.findings]
    return found.makes


_CATALOGUE = """
SELECT 'schema', nspname, '', '' FROM pg_namespace
UNION ALL SELECT 'table', c.oid::regclass::text, concat(relkind, relpersistence, reloptions), obj_description(c.oid)
    FROM pg_class c WHERE c.oid >= 16384 AND relkind <> 'i'
UNION ALL SELECT 'column', concat(attrelid::regclass, '.', attname),
    concat(format_type(atttypid, atttypmod), attnotnull, attidentity, attcollation), pg_get_expr(adbin, adrelid)
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid >= 16384 AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT 'index', indexname, indexdef, '' FROM pg_indexes WHERE schemaname <> 'pg_catalog'
UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid), '' FROM pg_constraint WHERE oid >= 16384
"""


def postgres_catalogue(url: str) -> set[Any]:
    """All that somebody made in that database."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(_CATALOGUE.encode()).fetchall()
    return {row for row in found if "pg_toast" not in row[1]}


@pytest.fixture
def twins(postgres_server: Any) -> Iterator[tuple[str, str]]:
    """Two empty databases."""
    names = [f"twin_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE DATABASE {name}".encode())
        yield plain_url(postgres_server, names[0]), plain_url(postgres_server, names[1])
        for name in names:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


POSTGRES: dict[str, tuple[dict[str, Any], str]] = {
    "append": ({}, ""),
    "staged": ({"delivery": "staged", "ledger": "elsewhere"}, "CREATE SCHEMA elsewhere"),
    "dead letters": ({"on_error": "dead_letter", "source_position": ["id"]}, ""),
    "upsert": ({**UPSERT, "key": ["id", "name"]}, ""),
    "upsert, two-phase": ({**UPSERT, "key": "id", "delivery": "two_phase"}, ""),
    "upsert into a table of theirs": (
        {**UPSERT, "key": "name"},
        'CREATE TABLE t (id bigint, version int, name text COLLATE "C" UNIQUE, amount numeric, at timestamptz,'
        " parts int[])",
    ),
    "evolve": ({"evolve": True}, "CREATE TABLE t (id int, version int, name varchar(20), amount numeric(10, 1))"),
    "evolve, upsert": (
        {"evolve": True, **UPSERT, "key": "id"},
        "CREATE TABLE t (id int PRIMARY KEY, version smallint, name text)",
    ),
}


@pytest.mark.parametrize("case", POSTGRES)
def test_on_postgres_the_plans_statements_make_what_a_start_makes(twins: tuple[str, str], case: str) -> None:
    options, before = POSTGRES[case]
    here, by_hand = twins
    sink = PostgresSink(here, "t", **options)
    store = sink.store_url() or ""
    for url in twins:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute((before or "SELECT 1").encode())
    untouched = postgres_catalogue(here)
    makes = planned([sink], store)
    assert makes and postgres_catalogue(here) == untouched, "a plan makes nothing"
    with psycopg.connect(by_hand, autocommit=True) as connection:
        for making in makes:
            assert making.where.startswith("postgresql")
            connection.execute(making.statement.encode())
    start([sink], store)
    assert postgres_catalogue(here) == postgres_catalogue(by_hand) != untouched
    assert planned([sink], store) == ()


def test_deletions_that_are_remembered_already_grow_with_their_table(twins: tuple[str, str]) -> None:
    options = {"evolve": True, **UPSERT, "key": "id"}
    small = pa.schema([ROWS.field("id").with_type(pa.int32()), *(f for f in ROWS if f.name in ("version", "gone"))])
    large = pa.schema([ROWS.field(name) for name in ("id", "version", "gone")])
    sinks = [PostgresSink(url, "t", **options) for url in twins]
    for sink in sinks:
        start([sink], sink.store_url() or "", small)
    makes = planned(sinks[:1], sinks[0].store_url() or "", large)
    with psycopg.connect(twins[1], autocommit=True) as connection:
        for making in makes:
            connection.execute(making.statement.encode())
    start(sinks[:1], sinks[0].store_url() or "", large)
    assert postgres_catalogue(twins[0]) - postgres_catalogue(twins[1]) == set()
    assert len([making for making in makes if making.statement.startswith("ALTER TABLE")]) == 2


def sqlite_catalogue(url: str) -> set[Any]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").fetchall()
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    engine.dispose()
    return {
        ("journal", journal),
        *(
            (kind, name, " ".join((sql or "").split()).replace("( ", "(").replace(" )", ")"))
            for kind, name, sql in found
        ),
    }


def mariadb_catalogue(url: str) -> set[Any]:
    engine = sa.create_engine(url)
    found: set[Any] = set()
    with engine.connect() as connection:
        for (name,) in connection.exec_driver_sql("SHOW TABLES").fetchall():
            _, made = connection.exec_driver_sql(f"SHOW CREATE TABLE `{name}`").fetchone()  # type: ignore[misc]
            found.add((name, made))
    engine.dispose()
    return found


def typed(url: str, statements: Sequence[str]) -> None:
    """Run them by hand."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


SQL: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {**UPSERT, "key": "id"},
    "upsert by text": {**UPSERT, "key": ["name", "id"]},
}


@pytest.mark.parametrize("case", SQL)
def test_on_sqlite_the_plans_statements_make_what_a_start_makes(tmp_path: Path, case: str) -> None:
    here, by_hand = (f"sqlite:///{tmp_path / name}" for name in ("here.db", "by_hand.db"))
    sink = SqlSink(here, "t", **SQL[case])
    makes = planned([sink], here, FLAT)
    assert not (tmp_path / "here.db").exists(), "a plan makes nothing"
    typed(by_hand, [making.statement for making in makes])
    start([sink], here, FLAT)
    assert sqlite_catalogue(here) == sqlite_catalogue(by_hand)
    assert planned([sink], here, FLAT) == ()


@pytest.mark.parametrize("case", SQL)
def test_on_mariadb_the_plans_statements_make_what_a_start_makes(mariadb_url: str, case: str) -> None:
    """In one database: MariaDB says of itself what was made, which is dropped in between."""
    sink = SqlSink(mariadb_url, "t", **SQL[case])
    makes = planned([sink], mariadb_url, FLAT)
    assert mariadb_catalogue(mariadb_url) == set(), "a plan makes nothing"
    start([sink], mariadb_url, FLAT)
    by_start = mariadb_catalogue(mariadb_url)
    assert planned([sink], mariadb_url, FLAT) == ()
    typed(mariadb_url, [f"DROP TABLE `{name}`" for name, _ in by_start])
    typed(mariadb_url, [making.statement for making in makes])
    assert mariadb_catalogue(mariadb_url) == by_start


def test_a_store_of_its_own_is_made_in_its_folder(tmp_path: Path, postgres_url: str) -> None:
    store = default_store("p", tmp_path)
    makes = planned([PostgresSink(postgres_url, "t")], store)
    folder = Making("this machine", f"mkdir -p {tmp_path / '.onefold'}")
    assert makes[0] == folder and not (tmp_path / ".onefold").exists()
    start([PostgresSink(postgres_url, "t")], store)
    assert {path.name for path in tmp_path.iterdir()} == {".onefold"}
    assert planned([PostgresSink(postgres_url, "t")], store) == ()


def topics(servers: str) -> set[str]:
    """But for Kafka's own, which it makes itself."""
    found = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=30).topics
    return {name for name in found if not name.startswith("__")}


def test_the_ledger_topic_is_made_as_its_command_says(kafka_server: Any, kafka_topic: Topic, tmp_path: Path) -> None:
    servers, store = kafka_server.bootstrap_servers, f"sqlite:///{tmp_path / 'store.db'}"
    sinks = [
        KafkaSink(kafka_topic(), bootstrap_servers=servers, name=name, ledger=f"ledger-{tmp_path.name}")
        for name in ("a", "b")
    ]
    before = topics(servers)
    (making,) = [one for one in planned(sinks, store) if one.where.startswith("Kafka")]
    assert topics(servers) == before
    start(sinks, store)
    command = shlex.split(making.statement)
    told = dict(itertools.pairwise(command))
    assert command[0] == "kafka-topics.sh" and told["--bootstrap-server"] == servers
    assert topics(servers) - before == {told["--topic"]}
    settings = dict(each.split("=") for at, each in enumerate(command) if command[at - 1] == "--config")
    resource = ConfigResource(ResourceType.TOPIC, told["--topic"])
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    found = admin.describe_configs([resource])[resource].result(30)
    assert {name: entry.value for name, entry in found.items() if name in settings} == settings
    set_by_topic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value  # the others are the broker's
    assert {name for name, entry in found.items() if entry.source == set_by_topic} == {*settings}
    assert [one for one in planned(sinks, store) if one.where.startswith("Kafka")] == []


def test_hbases_tables_are_made_as_their_commands_say(hbase_server: Any, tmp_path: Path) -> None:
    settings, name = HBaseSettings(hbase_server.servers), f"t_{uuid.uuid4().hex[:12]}"
    sink = HBaseSink(hbase_server.servers, name, row_key="id", family="f", salt=2, regions=2, ledger=f"{name}_l")
    rows, store = pa.schema([ROWS.field("id"), ROWS.field("name")]), f"sqlite:///{tmp_path / 'store.db'}"

    def commands() -> list[str]:
        return [one.statement for one in planned([sink], store, rows) if one.where.startswith("HBase")]

    assert commands() == [
        f"create '{name}_l', {{NAME => 'l', VERSIONS => 1}}",
        f"create '{name}', {{NAME => 'f', VERSIONS => 1}}, SPLITS => [\"\\x01\"]",
    ]
    assert table_admin.describe(settings, name) is table_admin.describe(settings, f"{name}_l") is None
    start([sink], store, rows)
    for table, family in ((name, b"f"), (f"{name}_l", b"l")):
        shape = table_admin.describe(settings, table)
        assert shape is not None and shape.families == (ColumnFamily(family, 1),)
    assert HBaseTable(settings, name).regions() == [(b"", b"\x01"), (b"\x01", b"")]
    for table in (name, f"{name}_l"):
        table_admin.drop(settings, table)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_what_a_whole_pipeline_makes_was_in_its_plan_and_nothing_else(
    kafka_server: Any, kafka_topic: Topic, twins: tuple[str, str], tmp_path: Path
) -> None:
    here, by_hand = twins
    servers, topic, letters = kafka_server.bootstrap_servers, kafka_topic(partitions=1), kafka_topic(partitions=1)
    producer = in_order(servers)
    for value in (b'{"id": 1, "n": 2}', b"no JSON", b'{"id": 2, "n": 3}'):
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    file = tmp_path / "orders.toml"
    file.write_text(WHOLE.format(servers=servers, topic=topic, letters=letters, url=here))

    def plan() -> list[Making]:
        answer = CliRunner().invoke(app, ["plan", str(file), "--json"])
        assert answer.exit_code == 0, answer.output
        found = json.loads(answer.stdout)
        assert found["whole"] and found["problems"] == []
        return [Making(**one) for one in found["makes"]]

    untouched, before = postgres_catalogue(here), topics(servers)
    makes = plan()
    shown = CliRunner().invoke(app, ["plan", str(file)])
    assert shown.exit_code == 0 and "the first start makes this; nothing was made" in shown.stdout
    assert (postgres_catalogue(here), topics(servers)) == (untouched, before)
    assert [*tmp_path.iterdir()] == [file]

    read(str(file)).run()
    with psycopg.connect(here) as connection:
        assert connection.execute("SELECT id, n FROM rows ORDER BY id").fetchall() == [(1, 2), (2, 3)]
    with psycopg.connect(by_hand, autocommit=True) as connection:
        for making in makes:
            if making.where.startswith("postgresql"):
                connection.execute(making.statement.encode())
    assert postgres_catalogue(here) == postgres_catalogue(by_hand)
    others = [making.statement for making in makes if not making.where.startswith("postgresql")]
    made = {word for statement in others for word in shlex.split(statement)}
    new_topics = topics(servers) - before
    assert len(new_topics) == 1 and new_topics <= made
    assert {str(path) for folder in (tmp_path, tmp_path / ".onefold") for path in folder.iterdir()} == {
        str(file),
        str(tmp_path / ".onefold"),
        str(checkpoint := tmp_path / ".onefold" / "orders.checkpoint"),
    }
    assert str(checkpoint) in made and len(others) == 2
    assert plan() == []
    again = CliRunner().invoke(app, ["plan", str(file)])
    assert again.exit_code == 0 and "a start finds all that it needs, and makes nothing" in again.stdout


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_what_keeps_a_pipeline_from_starting_is_in_its_plan(
    kafka_server: Any, kafka_topic: Topic, postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    values = {"servers": kafka_server.bootstrap_servers, "topic": kafka_topic(), "letters": "nowhere"}
    file.write_text(WHOLE.format(url=postgres_url, **values))
    shown = CliRunner().invoke(app, ["plan", str(file)])
    assert shown.exit_code == 1 and "[topic-missing]" in shown.stdout and "CREATE TABLE" in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json"]).stdout)
    assert not told["whole"] and [one["code"] for one in told["problems"]] == ["topic-missing"]

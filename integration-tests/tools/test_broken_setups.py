"""What `onefold doctor` says of broken set-ups, held against what a start then says; docs/doctor.md shows them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness.field import QUICK
from harness.passwords import let_roles_in, plain_url
from harness.renewing import assert_renewed
from harness.tables.broken_setups import HBASE, KAFKA, MARIADB, POSTGRES, ROWS, SOURCE, SQLITE, Broken, page

from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable, compact_protocol, table_admin
from onefold.clients.hbase.compact_protocol import thrift
from onefold.clients.hbase.pool import pool
from onefold.core import OnefoldError, Sink
from onefold.core.findings import Level
from onefold.operate.doctor import Diagnosis, diagnose
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sources import KafkaSource
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session
from onefold.testing import Servers

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
NO_PATIENCE_S = -1.0


def start(sinks: Sequence[Sink], store: str, rows: pa.Schema, source: KafkaSource | None = None) -> str | None:
    """The code of the error that a start ends with, up to the sinks' opening; None where there is none."""
    try:
        with ExitStack() as stack:
            if source is not None:
                source.initial_positions()
            checkpoint_store = CheckpointStore(store)
            stack.callback(checkpoint_store.close)
            session = Session("p", sinks, checkpoint_store, NO_PATIENCE_S)
            stack.callback(session.close)
            session.start(None)
            session.open_sinks(rows)
    except OnefoldError as error:
        return error.code
    return None


def codes(found: Diagnosis) -> list[str]:
    return [finding.error.code for finding in found.findings if finding.error is not None]


def agree(broken: Broken, sinks: Sequence[Sink], store: str, source: KafkaSource | None = None) -> None:
    """Doctor says what the start then says; without the rows it says the same, or that it did not check all."""
    blind = diagnose("p", sinks, store=store, sources=[source] if source else [])
    told = diagnose(
        "p", sinks, store=store, sources=[source] if source else [], schemas={sink.name: broken.rows for sink in sinks}
    )
    code = start(sinks, store, broken.rows, source)
    assert code == broken.code
    assert not told.holds
    if code is not None:
        assert code in codes(told), told
        assert (code in codes(blind)) is not broken.by_rows, blind
        assert not (broken.by_rows and blind.is_whole), blind
    else:
        assert codes(told) == [] and {name for f in told.findings for name in f.breaks} == {"no-loss"}
    assert {*codes(blind)} <= {*codes(told)}


def each(broken: Sequence[Broken]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("broken", broken, ids=lambda one: one.name)


@pytest.fixture
def role() -> str:
    return f"r{uuid.uuid4().hex[:10]}"


@pytest.fixture
def sql(postgres_url: str, role: str) -> Iterator[Callable[[str], list[Any]]]:
    """Statements as the database's owner, in a database with the schema `shop`, and a role with what a pipeline's needs
    beside its rights on the table."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def run(statement: str) -> list[Any]:
            cursor = connection.execute(statement.replace("{r}", role).encode())
            return cursor.fetchall() if cursor.description else []

        run("CREATE SCHEMA shop; CREATE ROLE {r} LOGIN; CREATE SCHEMA {r} AUTHORIZATION {r}")
        run("GRANT USAGE ON SCHEMA shop TO {r}")
        yield run
        for name in (f"{role}_other", role):
            if run(f"SELECT FROM pg_roles WHERE rolname = '{name}'"):
                run(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def relations(url: str) -> list[Any]:
    query = "SELECT oid, relnamespace, relname, relfilenode FROM pg_class ORDER BY 1"
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.servers
@each(POSTGRES)
def test_postgres(broken: Broken, postgres_url: str, sql: Callable[[str], Any], role: str, tmp_path: Path) -> None:
    def made(options: Mapping[str, Any]) -> PostgresSink:
        told = {"name": "t", "url": postgres_url, "table": "shop.t", "user": role if broken.role else None, **options}
        parameters = {name: value for name in ("user", "dbname") if (value := told.pop(name, None)) is not None}
        url = psycopg.conninfo.make_conninfo(told.pop("url"), **parameters)
        return PostgresSink(url, **told)

    if broken.role:
        sql("CREATE SCHEMA onefold_sinks AUTHORIZATION {r}")
    if broken.setup:
        sql(broken.setup)
    sink, local = made(broken.sink), f"sqlite:///{tmp_path / 'store.db'}"
    if broken.first is not None:
        first = made(broken.first)
        assert start([first], first.store_url() or "", broken.rows) is None
    if broken.then:
        sql(broken.then)
    before = relations(postgres_url)
    store = local if broken.store else sink.store_url() or ""
    diagnose("p", [sink], store=store, schemas={sink.name: broken.rows})
    assert relations(postgres_url) == before and not (tmp_path / "store.db").exists()
    agree(broken, [sink], store)


@pytest.fixture
def without_prepared(onefold_servers: Servers) -> Iterator[str]:
    with onefold_servers.postgres(settings={"max_prepared_transactions": "0", **QUICK}) as server:
        let_roles_in(server)
        yield plain_url(server)


@pytest.mark.servers
def test_a_postgres_without_prepared_transactions(without_prepared: str) -> None:
    sink = PostgresSink(without_prepared, "t", delivery="two_phase")
    agree(Broken("", "prepared-transactions-disabled"), [sink], sink.store_url() or "")


@pytest.mark.servers
def test_two_sinks_that_would_both_decide(postgres_url: str) -> None:
    sinks = [PostgresSink(postgres_url, name, delivery="staged") for name in ("t", "u")]
    agree(Broken("", "several-last-resources"), sinks, sinks[0].store_url() or "")


def sqlite_file(folder: Path, kind: str) -> Path:
    """A file in the test's folder, or in one that is missing or everybody's; or one that is no database."""
    path = folder / "here" / "rows.db"
    if kind != "missing":
        path.parent.mkdir()
    if kind == "open":
        path.parent.chmod(0o777)
    if kind == "junk":
        path.write_text("no database" * 100)
    return path


@pytest.mark.servers
@each(SQLITE)
def test_sqlite(broken: Broken, tmp_path: Path) -> None:
    options = dict(broken.sink)
    path = sqlite_file(tmp_path, options.pop("folder", ""))
    url = f"sqlite:///{path}"
    sink = SqlSink(url, "t", **options)
    run(url, broken.setup)
    if broken.first is not None:
        assert start([SqlSink(url, "t", **broken.first)], url, broken.rows) is None
    run(url, broken.then)
    before = path.read_bytes() if path.exists() else None
    diagnose("p", [sink], schemas={sink.name: broken.rows})
    assert (path.read_bytes() if path.exists() else None) == before
    agree(broken, [sink], url)


def run(url: str, statements: str) -> None:
    if not statements:
        return
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements.split("; "):
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.servers
@each(MARIADB)
def test_mariadb(broken: Broken, mariadb_url: str, role: str) -> None:
    url, owner, table = sa.make_url(mariadb_url), mariadb_url, "t"
    if broken.role:
        own = f"GRANT CREATE, DROP, INDEX, TRIGGER, SELECT, INSERT, UPDATE, DELETE ON {url.database}.* TO {role}"
        run(owner, f"CREATE DATABASE {role}; CREATE USER {role} IDENTIFIED BY 'hunter2'; {own}")
        url, table = url.set(username=role, password="hunter2"), f"{role}.t"
    try:
        run(owner, broken.setup.replace("{r}", role))
        sink = SqlSink(url.render_as_string(hide_password=False), table, **broken.sink)
        agree(broken, [sink], sink.store_url() or "")
    finally:
        if broken.role:
            run(owner, f"DROP DATABASE {role}; DROP USER {role}")


@pytest.mark.servers
def test_of_a_store_in_mariadb_the_right_to_make_it_shows_only_at_the_start_and_the_right_to_write_to_it_before(
    mariadb_url: str, role: str, kafka_server: Any, kafka_topic: Callable[..., str]
) -> None:
    run(mariadb_url, f"CREATE DATABASE {role}; CREATE USER {role} IDENTIFIED BY 'hunter2'")
    try:
        run(mariadb_url, f"GRANT SELECT ON {role}.* TO {role}")
        url = sa.make_url(mariadb_url).set(username=role, password="hunter2", database=role)
        store = url.render_as_string(hide_password=False)
        sink = KafkaSink(kafka_topic(), bootstrap_servers=kafka_server.bootstrap_servers, ledger=f"l-{uuid.uuid4()}")
        found = diagnose("p", [sink], store=store, schemas={sink.name: ROWS})
        assert found.holds
        (unchecked,) = [finding.says for finding in found.findings if finding.level is Level.UNCHECKED]
        assert unchecked.startswith("whether the user may make the tables of the checkpoint store at mariadb")
        assert start([sink], store, ROWS) == "database-access-denied"
        run(mariadb_url, f"GRANT ALL ON {role}.* TO {role}")
        assert start([sink], store, ROWS) is None
        for right in ("INSERT", "UPDATE", "DELETE"):
            run(mariadb_url, f"REVOKE {right} ON {role}.* FROM {role}")
            assert codes(diagnose("p", [sink], store=store, schemas={sink.name: ROWS})) == ["database-access-denied"]
            assert start([sink], store, ROWS) == "database-access-denied"
            run(mariadb_url, f"GRANT {right} ON {role}.* TO {role}")
        assert diagnose("p", [sink], store=store, schemas={sink.name: ROWS}).holds
    finally:
        run(mariadb_url, f"DROP DATABASE {role}; DROP USER {role}")


@pytest.mark.servers
@each(KAFKA)
def test_kafka(broken: Broken, kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path) -> None:
    options = {"timeout_s": 2.0, **broken.sink}
    topic = kafka_topic(partitions=1, config=options.pop("config", None))
    ledger = f"ledger-{uuid.uuid4().hex[:12]}"
    if config := options.pop("ledger_config", None):
        ledger = kafka_topic(partitions=1, config=config)

    def made(options: Mapping[str, Any]) -> KafkaSink:
        told = {"topic": topic, "bootstrap_servers": kafka_server.bootstrap_servers, "ledger": ledger, **options}
        return KafkaSink(name="t", **told)

    store = f"sqlite:///{tmp_path / 'store.db'}"
    if broken.first is not None:
        assert start([made(broken.first)], store, broken.rows) is None
    sink = made(options)
    agree(broken, [sink], f"sqlite:///{tmp_path / 'other.db'}" if broken.store else store)


@pytest.mark.servers
@pytest.mark.xdist_group("hbase")
@each(HBASE)
def test_hbase(broken: Broken, hbase_server: Any, hbase_table: Callable[..., HBaseTable], tmp_path: Path) -> None:
    there = hbase_table()
    options = {"table": there.name, **broken.sink}
    ledger = f"ledger_{uuid.uuid4().hex[:8]}"
    made = [ledger]
    if family := options.pop("ledger_family", None):
        table_admin.create(there.settings, ledger, [ColumnFamily(family.encode(), ttl_s=3600)])
    if broken.setup == "disable":
        name = thrift.TTableName(ns=b"default", qualifier=there.name.encode())
        disable = compact_protocol.arguments("disableTable", "binary", tableName=name)
        assert pool(there.settings).ask_once("disableTable", [disable]) == [None]
    if broken.setup == "async":
        options["table"] = f"t{uuid.uuid4().hex[:8]}"
        made.append(options["table"])
        described = thrift.TTableDescriptor(
            thrift.TTableName(ns=b"default", qualifier=options["table"].encode()),
            [thrift.TColumnFamilyDescriptor(name=b"f")],
            thrift.TDurability.ASYNC_WAL,
        )
        create = compact_protocol.arguments("createTable", "binary", desc=described)
        assert pool(there.settings).ask_once("createTable", [create]) == [None]

    def sink_of(options: Mapping[str, Any]) -> HBaseSink:
        told = {"servers": hbase_server.servers, "table": there.name, "family": "f", **options}
        settings = HBaseSettings(told.pop("servers"), timeout_s=1.0)
        return HBaseSink(settings, told.pop("table"), row_key="id", ledger=ledger, name="t", **told)

    store = f"sqlite:///{tmp_path / 'store.db'}"
    try:
        if broken.first is not None:
            assert start([sink_of(broken.first)], store, broken.rows) is None
        agree(broken, [sink_of(options)], f"sqlite:///{tmp_path / 'other.db'}" if broken.store else store)
    finally:
        for name in made:
            if table_admin.describe(there.settings, name) is not None:
                table_admin.drop(there.settings, name)


@pytest.mark.servers
@each(SOURCE)
def test_kafka_source(broken: Broken, kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path) -> None:
    options = {"topics": kafka_topic(partitions=2), "timeout_s": 2.0, **broken.sink}
    if "starting_offsets" in options:
        options["starting_offsets"] = {options["topics"]: options["starting_offsets"]}
    source = KafkaSource(bootstrap_servers=kafka_server.bootstrap_servers, **options)
    sink = SqlSink(f"sqlite:///{tmp_path / 'rows.db'}", "t")
    agree(broken, [sink], sink.store_url() or "", source)


@pytest.mark.servers
def test_set_ups_that_are_whole_are_said_to_be_so_and_start(
    postgres_url: str, kafka_server: Any, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    own = SqlSink(f"sqlite:///{tmp_path / 'rows.db'}", "t")
    kafka = KafkaSink(kafka_topic(), bootstrap_servers=kafka_server.bootstrap_servers, ledger=f"l-{uuid.uuid4()}")
    for sink in (PostgresSink(postgres_url, "t"), own, kafka):
        store = sink.store_url() or f"sqlite:///{tmp_path / 'store.db'}"
        for _ in range(2):  # before the first start, and after it
            found = diagnose("p", [sink], store=store, schemas={sink.name: ROWS})
            assert found.holds and found.is_whole, found
            assert not diagnose("p", [sink], store=store).is_whole
            assert start([sink], store, ROWS) is None


@pytest.mark.docs
def test_the_page_lists_the_set_ups_that_are_tried() -> None:
    assert_renewed(PAGE, "integration-tests/tools/test_broken_setups.py", "\n".join(page()))

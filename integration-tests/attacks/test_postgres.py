"""What another role of the same database can do to a Postgres pipeline: it owns one schema there, and nothing else."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.pipeline_drivers import Epochs, MakeWorld, World
from harness.support import CrashError, crash, failing_at
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.clients.postgres import sessions
from onefold.core import ConfigError, LastResource
from onefold.core.findings import Level
from onefold.core.protocol.in_doubt import Fate
from onefold.operate.transactions import Transactions
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.admin import Operations
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.postgres.naming import gid_prefix
from onefold.sources import PostgresSource
from onefold.sources.postgres import plan, read
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers

DELIVERIES = ["two_phase", "staged"]


class Roles:
    """The pipeline's role, with a schema of its own and one for the bookkeeping, and a tenant's."""

    def __init__(self, url: str) -> None:
        self.admin = url
        self.database = url.rpartition("/")[2]
        suffix = uuid.uuid4().hex[:8]
        self.loader, self.tenant = f"loader_{suffix}", f"tenant_{suffix}"
        for role in (self.loader, self.tenant):
            self.sql(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA {role} AUTHORIZATION {role}")
        self.sql(f"CREATE SCHEMA onefold_sinks AUTHORIZATION {self.loader}")
        self.as_tenant(
            "CREATE TABLE ran (who text); GRANT INSERT ON ran TO PUBLIC; GRANT USAGE ON SCHEMA {t} TO PUBLIC"
        )

    def url(self, role: str) -> str:
        return make_conninfo(self.admin, user=role)

    def sql(self, statement: str, role: str | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(role) if role else self.admin, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def need(self, version: int) -> None:
        """Skips the test on a Postgres older than `version`."""
        ((number,),) = self.sql("SHOW server_version_num")
        if int(number) // 10_000 < version:
            pytest.skip(f"Postgres has it since version {version}, and this one is {number}")

    def as_tenant(self, statement: str) -> list[tuple[Any, ...]]:
        return self.sql(statement.replace("{t}", self.tenant).replace("{l}", self.loader), self.tenant)

    def code(self, signature: str, returns: str, value: str, more: str = "") -> str:
        """A function of the tenant's that notes whose rights it ran with; returns its name."""
        signature = signature.replace("{t}", self.tenant)
        self.as_tenant(
            f"""CREATE FUNCTION {signature} RETURNS {returns} LANGUAGE plpgsql {more} AS $$ BEGIN
                INSERT INTO {self.tenant}.ran VALUES (current_user); RETURN {value}; END $$"""
        )
        return signature.partition("(")[0]

    def ran_as(self) -> list[str]:
        """Others than the tenant whose rights the tenant's code had."""
        return [who for (who,) in self.sql(f"SELECT DISTINCT who FROM {self.tenant}.ran") if who != self.tenant]

    def drop(self) -> None:
        for (gid,) in self.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            self.sql(f"ROLLBACK PREPARED '{gid}'")
        for role in (self.loader, self.tenant):
            self.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    roles = Roles(postgres_url)
    yield roles
    roles.drop()


ORDERS = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("gone", pa.bool_())])


def sink(roles: Roles, table: str = "{l}.orders", **settings: Any) -> PostgresSink:
    settings = {"delivery": "two_phase", "url": roles.url(roles.loader), **settings}
    return PostgresSink(table=table.replace("{l}", roles.loader), name="t", **settings)


def upserting(roles: Roles, **settings: Any) -> PostgresSink:
    return sink(roles, mode="upsert", key="id", order="v", delete_when_true="gone", delivery="staged", **settings)


def lives(
    make: MakeWorld, roles: Roles, *, made: PostgresSink | None = None, begun: int = 0, batches: int = 2
) -> World:
    """A start of the pipeline and the batches from `begun` on, after which the table is exact."""
    world = make(made or sink(roles))
    world.start()
    for batch in range(begun, batches):
        world.epoch(batch)
    assert world.ids(f"{roles.loader}.orders") == list(range(batches * world.ROWS))
    assert roles.ran_as() == []
    return world


# tables that look like onefold's


@pytest.mark.attack(
    who="a role of the database",
    does="has a table named `onefold_ledger` whose row-level policy, or whose columns' cast, calls a function",
    gets="nothing: only ledgers of roles that the pipeline trusts are asked",
)
@pytest.mark.parametrize("by", ["policy", "cast"])
def test_a_tenants_ledger_is_not_read(make: MakeWorld, roles: Roles, by: str) -> None:
    if by == "policy":
        name = roles.code("{t}.f()", "boolean", "true", "COST 0.0001")
        roles.as_tenant("CREATE TABLE {t}.onefold_ledger (pipeline text, sink text)")
        roles.as_tenant("INSERT INTO {t}.onefold_ledger VALUES ('zzz', 'zzz')")
        roles.as_tenant("ALTER TABLE {t}.onefold_ledger ENABLE ROW LEVEL SECURITY")
        roles.as_tenant(f"CREATE POLICY p ON {{t}}.onefold_ledger USING ({name}())")
    else:
        roles.as_tenant("CREATE TYPE {t}.odd AS (x text)")
        name = roles.code("{t}.c({t}.odd)", "text", "'q'")
        roles.as_tenant(f"CREATE CAST ({{t}}.odd AS text) WITH FUNCTION {name}({{t}}.odd) AS IMPLICIT")
        roles.as_tenant("CREATE TABLE {t}.onefold_ledger (pipeline {t}.odd, sink {t}.odd)")
        roles.as_tenant("INSERT INTO {t}.onefold_ledger VALUES (ROW('a')::{t}.odd, ROW('b')::{t}.odd)")
    roles.as_tenant("GRANT SELECT ON {t}.onefold_ledger TO PUBLIC")
    lives(make, roles)
    superuser = sink(roles, url=roles.admin, ledger="of_superuser")
    superuser.recover("q").close()
    assert roles.ran_as() == []


@pytest.mark.attack(
    who="a role of the database",
    does="has a table named `onefold_store` with a row-level policy, or a column of a type of its own",
    gets="nothing: only stores of roles that the pipeline trusts are asked",
)
@pytest.mark.parametrize("by", ["policy", "cast"])
def test_a_tenants_store_is_not_read(make: MakeWorld, roles: Roles, by: str) -> None:
    if by == "policy":
        name = roles.code("{t}.f()", "boolean", "true", "COST 0.0001")
        roles.as_tenant("CREATE TABLE {t}.onefold_store (store_id varchar(36))")
        roles.as_tenant("INSERT INTO {t}.onefold_store VALUES ('x')")
        roles.as_tenant("ALTER TABLE {t}.onefold_store ENABLE ROW LEVEL SECURITY")
        roles.as_tenant(f"CREATE POLICY p ON {{t}}.onefold_store USING ({name}())")
    else:
        roles.as_tenant("CREATE TYPE {t}.odd AS (x text)")
        name = roles.code("{t}.c({t}.odd)", "text", "'q'")
        roles.as_tenant(f"CREATE CAST ({{t}}.odd AS text) WITH FUNCTION {name}({{t}}.odd) AS IMPLICIT")
        roles.as_tenant("CREATE TABLE {t}.onefold_store (store_id {t}.odd)")
        roles.as_tenant("INSERT INTO {t}.onefold_store VALUES (ROW('a')::{t}.odd)")
    roles.as_tenant("GRANT SELECT ON {t}.onefold_store TO PUBLIC")
    world = lives(make, roles, made=sink(roles, delivery="staged"))
    committer = world.driver.committers["t"]
    assert isinstance(committer, LastResource)
    assert committer.shares_store(world.store.id())
    assert not committer.shares_store("x")
    assert roles.ran_as() == []


@pytest.mark.attack(
    who="a role of the database",
    does="has an empty table named as the one in which a target's deletions are remembered",
    gets="nothing: it may not delete from the target, so the table is left alone, with a warning",
)
def test_a_tenants_table_of_deletions_stops_nobody(
    make: MakeWorld, roles: Roles, caplog: pytest.LogCaptureFixture
) -> None:
    del make
    digest = hashlib.sha256(f'"{roles.loader}"."orders"'.encode()).hexdigest()[:32]
    roles.as_tenant(f"CREATE TABLE {{t}}.onefold_deleted_{digest} ()")
    upserting(roles).open("p", ORDERS).close()
    assert f"of role {roles.tenant} is no pipeline's" in caplog.text
    roles.sql(f"GRANT DELETE ON {roles.loader}.orders TO {roles.tenant}")
    with raises(ConfigError, "tombstones-elsewhere"):
        upserting(roles).open("p", ORDERS)


# what was there before


def squatted(roles: Roles) -> None:
    """The bookkeeping's schema, made by the tenant as onefold makes it, with a trigger on the ledger."""
    roles.sql(f"DROP SCHEMA onefold_sinks; GRANT CREATE ON DATABASE {roles.database} TO {roles.tenant}")
    roles.sql(f"GRANT CREATE ON DATABASE {roles.database} TO {roles.loader}")
    roles.as_tenant("CREATE SCHEMA onefold_sinks; GRANT ALL ON SCHEMA onefold_sinks TO PUBLIC")
    with closing(sessions.take(sessions.conninfo(roles.url(roles.tenant), "p", 10))) as tenant:
        for statement in layout.making(tenant, "onefold_sinks"):
            roles.as_tenant(statement)
    roles.as_tenant("GRANT ALL ON ALL TABLES IN SCHEMA onefold_sinks TO PUBLIC")
    name = roles.code("{t}.g()", "trigger", "NEW")
    roles.as_tenant(
        f"CREATE TRIGGER t BEFORE INSERT ON onefold_sinks.onefold_ledger FOR EACH ROW EXECUTE FUNCTION {name}()"
    )


@pytest.mark.attack(
    who="a role with CREATE on the database",
    does="makes the bookkeeping's schema and tables before the pipeline does, with a trigger on the ledger",
    gets="a refusal that names it: the pipeline does not start there until its schema is its own",
)
def test_a_squatted_ledger_schema_is_refused(make: MakeWorld, roles: Roles) -> None:
    squatted(roles)
    for made in (sink(roles), sink(roles, url=roles.admin)):
        with raises(ConfigError, "schema-of-another-role", f"{roles.tenant}"):
            made.recover("p")
    with raises(ConfigError, "schema-of-another-role"):
        Operations(roles.admin).sinks()
    assert roles.ran_as() == []
    roles.sql(f"ALTER SCHEMA onefold_sinks OWNER TO {roles.loader}")
    with raises(ConfigError, "table-of-another-role", f"{roles.tenant}"):
        sink(roles).recover("p")
    roles.sql("DROP SCHEMA onefold_sinks CASCADE")
    lives(make, roles)


@pytest.mark.attack(
    who="a role that the pipeline's own role has made, by CREATEROLE",
    does="the same: since Postgres 16 whoever makes a role is a member of it, who may grant it and no more",
    gets="a refusal that names it: only memberships by which a session has or takes a role's rights are trusted",
)
def test_a_role_that_the_pipelines_role_only_administers_is_a_stranger(make: MakeWorld, roles: Roles) -> None:
    roles.need(16)
    roles.sql(f"GRANT {roles.tenant} TO {roles.loader} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
    squatted(roles)
    with raises(ConfigError, "schema-of-another-role", f"{roles.tenant}"):
        sink(roles).recover("p")
    assert roles.ran_as() == []
    roles.sql("DROP SCHEMA onefold_sinks CASCADE")
    lives(make, roles)


@pytest.mark.attack(
    who="a role with CREATE on the bookkeeping's schema",
    does="makes one of its tables first, as a table, a view or a partition",
    gets="a refusal that names it",
)
@pytest.mark.parametrize("made", ["TABLE {n} (version integer)", "VIEW {n} AS SELECT {f}() AS version"])
def test_a_squatted_table_of_the_bookkeeping_is_refused(make: MakeWorld, roles: Roles, made: str) -> None:
    roles.sql(f"GRANT ALL ON SCHEMA onefold_sinks TO {roles.tenant}")
    name = roles.code("{t}.f()", "integer", "1")
    roles.as_tenant("CREATE " + made.replace("{n}", "onefold_sinks.onefold_version").replace("{f}", name))
    roles.as_tenant("GRANT ALL ON onefold_sinks.onefold_version TO PUBLIC")
    with raises(ConfigError, "table-of-another-role"):
        sink(roles).recover("p")
    assert roles.ran_as() == []
    roles.sql(
        "DROP TABLE onefold_sinks.onefold_version" if "TABLE" in made else "DROP VIEW onefold_sinks.onefold_version"
    )
    lives(make, roles)


@pytest.mark.attack(
    who="a role with TRIGGER on the bookkeeping's tables",
    does="adds a trigger to the ledger, with a function of its own or of Postgres's",
    gets="a refusal that names it, at the next start",
)
@pytest.mark.parametrize("whose", ["its own", "Postgres's"])
def test_a_trigger_of_anothers_on_the_ledger_is_refused(make: MakeWorld, roles: Roles, whose: str) -> None:
    lives(make, roles, batches=1)
    roles.sql(f"GRANT USAGE ON SCHEMA onefold_sinks TO {roles.tenant}")
    roles.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA onefold_sinks TO {roles.tenant}")
    on = "onefold_sinks.onefold_ledger"
    own = f"BEFORE UPDATE ON {on} FOR EACH ROW EXECUTE FUNCTION {roles.code('{t}.g()', 'trigger', 'NEW')}()"
    theirs = f"AFTER UPDATE ON {on} FOR EACH ROW EXECUTE FUNCTION unique_key_recheck()"
    roles.as_tenant(f"CREATE TRIGGER t {own if whose == 'its own' else theirs}")
    with raises(ConfigError, "trigger-not-ours", "'t'") as refused:
        sink(roles).recover("p")
    assert refused.value.code == "trigger-not-ours"
    roles.sql(f"DROP TRIGGER t ON {on}; REVOKE TRIGGER ON {on} FROM {roles.tenant}")
    lives(make, roles, begun=1)


@pytest.mark.attack(
    who="a role with REFERENCES on the bookkeeping's tables",
    does="holds a row of theirs by a foreign key",
    gets="a refusal that names it, at the next start",
)
def test_a_foreign_key_of_anothers_on_our_tables_is_refused(make: MakeWorld, roles: Roles) -> None:
    lives(make, roles, batches=1)
    roles.sql(f"GRANT USAGE ON SCHEMA onefold_sinks TO {roles.tenant}")
    roles.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA onefold_sinks TO {roles.tenant}")
    on = "onefold_sinks.onefold_ledger (pipeline, sink)"
    roles.as_tenant(f"CREATE TABLE held (pipeline text, sink text, FOREIGN KEY (pipeline, sink) REFERENCES {on})")
    with raises(ConfigError, "foreign-key-not-ours"):
        sink(roles).recover("p")
    roles.as_tenant("DROP TABLE held")
    lives(make, roles, begun=1)


@pytest.mark.attack(
    who="a role with CREATE on the bookkeeping's schema",
    does="takes the name of a stage, of the dead letters or of the remembered deletions",
    gets="a refusal that names it",
)
@pytest.mark.parametrize("what", ["stage_[0-9a-f]", "deleted_", "dead_letters$"])
def test_a_squatted_table_that_open_makes_is_refused(roles: Roles, what: str) -> None:
    roles.sql(f"GRANT ALL ON SCHEMA onefold_sinks TO {roles.tenant}")

    def opened() -> None:
        upserting(roles, on_error="dead_letter").open("p", ORDERS).close()

    opened()
    ((name,),) = roles.sql(f"SELECT relname FROM pg_class WHERE relname ~ '^onefold_{what}' AND relkind = 'r'")
    table = f"onefold_sinks.{name}"
    columns = roles.sql(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    roles.sql(f"DROP TABLE {table}")
    roles.as_tenant(f"CREATE TABLE {table} ({', '.join(f'{column} {kind}' for column, kind in quoted(columns))})")
    roles.as_tenant(f"GRANT ALL ON {table} TO PUBLIC")
    with raises(ConfigError, "table-of-another-role", f"{table}", f"{roles.tenant}"):
        opened()
    roles.sql(f"DROP TABLE {table}")
    opened()


def quoted(columns: list[tuple[Any, ...]]) -> list[tuple[str, str]]:
    return [(f'"{name}"', kind) for name, kind in columns]


@pytest.mark.attack(
    who="a role with CREATE on the store's schema",
    does="makes the checkpoint store's tables first",
    gets="a refusal that names it",
)
@pytest.mark.parametrize("name", ["onefold_store", "onefold_epochs", "onefold_locks"])
def test_a_squatted_table_of_the_store_is_refused(roles: Roles, name: str) -> None:
    roles.sql(f"GRANT ALL ON SCHEMA onefold_sinks TO {roles.tenant}")
    made = f"CREATE TABLE onefold_sinks.{name} (name text PRIMARY KEY)"
    roles.as_tenant(f"{made}; GRANT ALL ON onefold_sinks.{name} TO PUBLIC")
    url = sink(roles).store_url() or ""

    def started() -> None:
        with closing(CheckpointStore(url)) as store:
            store.id()

    with raises(ConfigError, "table-of-another-role", f"{name}", f"{roles.tenant}"):
        started()
    roles.sql(f"DROP TABLE onefold_sinks.{name}")
    started()


# names that resolve


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.attack(
    who="a role with CREATE on the database",
    does="makes the schema that `$user` stands for in the pipeline's search_path, with functions and tables in it",
    gets="nothing: the schema is left out of the path",
)
def test_a_squatted_user_schema_is_not_looked_into(make: MakeWorld, roles: Roles, delivery: str) -> None:
    roles.sql(f"DROP SCHEMA {roles.loader}; GRANT CREATE ON DATABASE {roles.database} TO {roles.tenant}")
    roles.sql(f"GRANT CREATE ON SCHEMA public TO {roles.loader}")
    roles.as_tenant("CREATE SCHEMA {l}; GRANT ALL ON SCHEMA {l} TO PUBLIC")
    hijacked(roles, roles.loader)
    roles.as_tenant("CREATE TABLE {l}.onefold_store (store_id text); GRANT ALL ON {l}.onefold_store TO PUBLIC")
    world = make(sink(roles, table="orders", delivery=delivery))
    world.start()
    world.epoch(0)
    assert world.ids("public.orders") == list(range(world.ROWS))
    assert roles.ran_as() == []
    assert roles.sql(
        "SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'onefold_epochs'"
    ) == [("onefold_sinks",)]


def hijacked(roles: Roles, schema: str) -> None:
    """Functions that fit the calls of onefold's own statements better than Postgres's do, which take any type."""
    for signature, returns, value in (
        ("unnest(text[])", "text", "$1[1]"),
        ("unnest(name[])", "name", "$1[1]"),
        ("concat_ws(text, oid, integer)", "text", "''"),
        ("format(text, name, name)", "text", "$2"),
    ):
        roles.code(f"{schema}.{signature}", returns, value)


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.attack(
    who="a role with CREATE on a schema of the pipeline's search_path (everybody on `public`, before Postgres 15)",
    does="puts functions there that fit the pipeline's statements better than Postgres's own",
    gets="nothing: the schema is left out of the path, and a table that is there has to be named with it",
)
def test_a_schema_that_others_create_in_is_not_looked_into(make: MakeWorld, roles: Roles, delivery: str) -> None:
    roles.sql("GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE TABLE public.orders (id bigint, name text)")
    roles.sql(f"GRANT INSERT ON public.orders TO {roles.loader}")
    hijacked(roles, "public")
    with raises(ConfigError, "schema-not-trusted", "'orders'", "'public'"):
        sink(roles, table="orders", delivery=delivery).open("p", pa.schema([("id", pa.int64())]))
    world = make(sink(roles, table="public.orders", delivery=delivery))
    world.start()
    world.epoch(0)
    assert world.ids("public.orders") == list(range(world.ROWS))
    assert roles.ran_as() == []


def test_a_store_is_where_nobody_else_may_create_whatever_the_search_path_leads_to(
    make: MakeWorld, roles: Roles
) -> None:
    roles.sql(f"DROP SCHEMA {roles.loader}; CREATE TABLE public.orders (id bigint, name text)")
    roles.sql(f"GRANT INSERT ON public.orders TO {roles.loader}; GRANT CREATE ON SCHEMA public TO PUBLIC")
    roles.as_tenant("CREATE TABLE public.onefold_store (store_id text); GRANT ALL ON public.onefold_store TO PUBLIC")
    world = make(sink(roles, table="public.orders"))
    world.start()
    world.epoch(0)
    assert world.ids("public.orders") == list(range(world.ROWS))
    assert roles.ran_as() == []


@pytest.mark.attack(
    who="a role with CREATE on a schema of a source's search_path",
    does="puts operators there that fit a reader's conditions better than Postgres's own",
    gets="nothing: the schema is left out of the path, and a where or a query that would look there is refused",
)
def test_a_reader_runs_no_operator_of_anothers(roles: Roles) -> None:
    roles.sql("GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE TABLE public.orders (id bigint, amount numeric)")
    roles.sql(f"GRANT SELECT ON public.orders TO {roles.loader}; INSERT INTO public.orders VALUES (1, 5), (2, -5)")
    for sign, left, right in ((">", "numeric", "integer"), ("*", "numeric", "integer"), ("=", "oid", "regclass")):
        result, value = ("boolean", "true") if sign != "*" else ("numeric", "$1")
        function = roles.code(f"public.hijack_{left}_{ord(sign)}({left}, {right})", result, value)
        roles.as_tenant(f"CREATE OPERATOR public.{sign} (FUNCTION = {function}, LEFTARG = {left}, RIGHTARG = {right})")

    def ids(**more: Any) -> list[int]:
        source = PostgresSource(roles.url(roles.loader), **more)
        return sorted(n for part in plan(source) for batch in read(part) for n in batch.column("id").to_pylist())

    with raises(ConfigError, "schema-not-trusted", "'public'"):
        ids(table="public.orders", where="amount > 0")
    with raises(ConfigError, "schema-not-trusted"):
        ids(query="SELECT id FROM public.orders WHERE amount > 0")
    with raises(ConfigError, "table-missing"):
        ids(table="orders")
    assert ids(table="public.orders") == [1, 2]
    roles.sql(f"ALTER ROLE {roles.loader} SET search_path = {roles.loader}")
    assert ids(table="public.orders", where="amount > 0") == [1]
    assert roles.ran_as() == []


CITEXT = """
CREATE TYPE public.citext;
CREATE FUNCTION public.citextin(cstring) RETURNS public.citext LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION public.citextout(public.citext) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE FUNCTION public.citextrecv(internal) RETURNS public.citext LANGUAGE internal STABLE STRICT AS 'textrecv';
CREATE TYPE public.citext (INPUT = public.citextin, OUTPUT = public.citextout, RECEIVE = public.citextrecv,
    INTERNALLENGTH = VARIABLE, STORAGE = extended, LIKE = text);
CREATE CAST (public.citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION public.citext_cmp(public.citext, public.citext) RETURNS integer LANGUAGE sql IMMUTABLE STRICT
    AS 'SELECT bttextcmp(lower($1::text), lower($2::text))';
""" + "".join(
    f"""
CREATE FUNCTION public.citext_{number}(public.citext, public.citext) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
    AS 'SELECT public.citext_cmp($1, $2) {sign} 0';
CREATE OPERATOR public.{sign} (LEFTARG = public.citext, RIGHTARG = public.citext,
    FUNCTION = public.citext_{number}{", MERGES" if sign == "=" else ""});
"""
    for number, sign in enumerate(("<", "<=", "=", ">=", ">"), 1)
)
CITEXT += f"""
CREATE OPERATOR CLASS public.citext_ops DEFAULT FOR TYPE public.citext USING btree AS
    {", ".join(f"OPERATOR {number} public.{sign}" for number, sign in enumerate(("<", "<=", "=", ">=", ">"), 1))},
    FUNCTION 1 public.citext_cmp(public.citext, public.citext);
"""


@pytest.mark.parametrize("compared", ["key", "order"])
def test_a_type_that_would_be_compared_as_another_is_refused(roles: Roles, compared: str) -> None:
    """As the extension makes it, where others may create: by text's own equality a deletion would miss its row."""
    roles.sql(CITEXT + "GRANT CREATE ON SCHEMA public TO PUBLIC")
    schema = pa.schema([("id", pa.string()), ("v", pa.string()), ("gone", pa.bool_())])
    kinds = ("public.citext", "text") if compared == "key" else ("text", "public.citext")
    roles.sql(f"CREATE TABLE {roles.loader}.orders (id {kinds[0]} PRIMARY KEY, v {kinds[1]} NOT NULL)")
    roles.sql(f"ALTER TABLE {roles.loader}.orders OWNER TO {roles.loader}")
    with raises(ConfigError, "schema-not-trusted"):
        upserting(roles).open("p", schema)
    roles.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with Epochs(upserting(roles), schema) as epochs:
        epochs.run(pa.record_batch([["ann", "bob"], ["a", "a"], [False, False]], schema=schema))
        last = ("ANN", "b") if compared == "key" else ("ann", "B")
        epochs.run(pa.record_batch([[last[0]], [last[1]], [True]], schema=schema))
    assert roles.sql(f"SELECT id::text FROM {roles.loader}.orders") == [("bob",)]


def test_a_role_that_may_only_read_looks_once_it_has_said_whom_it_trusts(make: MakeWorld, roles: Roles) -> None:
    lives(make, roles, batches=1)
    for schema in ("onefold_sinks", roles.loader):
        roles.sql(f"GRANT USAGE ON SCHEMA {schema} TO {roles.tenant}")
        roles.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {roles.tenant}")
    roles.sql(f"ALTER ROLE {roles.tenant} SET search_path = {roles.loader}")

    def looks() -> bool:
        operations = Operations(roles.url(roles.tenant))
        with closing(operations), closing(CheckpointStore(operations.store_url())) as store:
            return operations.sinks() == [("p", "t")] and store.look() is not None

    with raises(ConfigError, "schema-of-another-role", f"{roles.loader}"):
        looks()
    roles.need(16)
    roles.sql(f"GRANT {roles.loader} TO {roles.tenant} WITH INHERIT FALSE, SET FALSE")
    assert looks()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        roles.as_tenant("DELETE FROM {l}.orders")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        roles.as_tenant("SET ROLE {l}")


# prepared transactions


def prepared_by_tenant(roles: Roles, gid: str = "", database: str = "") -> str:
    gid = gid or f"{gid_prefix('p', 't')}1/1/{uuid.uuid4().hex}"
    with psycopg.connect(
        make_conninfo(roles.url(roles.tenant), dbname=database or roles.database), autocommit=True
    ) as c:
        c.execute("BEGIN")
        c.execute("SELECT 1")
        c.execute(f"PREPARE TRANSACTION '{gid}'".encode())
    return gid


@pytest.mark.attack(
    who="a role with CONNECT",
    does="prepares a transaction under a name that starts as the pipeline's do, between epochs or in the middle of one",
    gets="nothing: it is left alone, logged, and listed by `onefold txn list`",
)
def test_a_tenants_prepared_transaction_stops_nobody(
    make: MakeWorld, roles: Roles, caplog: pytest.LogCaptureFixture
) -> None:
    world = make(sink(roles))
    world.start()
    gids = [prepared_by_tenant(roles)]
    world.between_tasks = lambda: gids.append(prepared_by_tenant(roles))
    world.epoch(0)
    world.start()
    world.epoch(1)
    assert world.ids(f"{roles.loader}.orders") == list(range(2 * world.ROWS))
    assert world.gids() == sorted(gids, key=world.gids().index)
    assert caplog.text.count(f"prepared by role '{roles.tenant}'") >= len(gids)
    with closing(Transactions(Operations(roles.url(roles.loader)), None)) as transactions:
        ours, _ = transactions.look()
        assert {v.transaction.name for v in ours} == set(gids)
        assert {v.fate for v in ours} == {Fate.LEAVE}
        assert all(f"prepared by role '{roles.tenant}'" in v.because for v in ours)
        assert transactions.resolve("p") == {}
    found = [finding.says for finding in sink(roles).examine("p", None) if finding.level is Level.CAUTION]
    assert any(f"{len(gids)} prepared transactions under this sink's names" in says for says in found), found
    assert sink(roles).held("p") == []


@pytest.mark.attack(
    who="a role with CONNECT",
    does="prepares a transaction whose name says escape sequences and markup, plainly or as a pipeline's name would",
    gets="text: `onefold txn list` shows what it is",
)
def test_a_transactions_name_writes_nothing_but_text(make: MakeWorld, roles: Roles) -> None:
    world = make(sink(roles))
    world.start()
    world.epoch(0)
    for gid in (
        f"of/%1B]0;owned%07%1B[2J/[bold]%0A/1/1/{uuid.uuid4().hex}",
        "\x1b]0;owned\x07\x1b[2J of another",
    ):
        prepared_by_tenant(roles, gid)
    listed = CliRunner().invoke(app, ["txn", "list", f"--postgres={roles.url(roles.loader)}"])
    assert listed.exit_code == 0, listed.output
    assert "owned" in listed.output and "\x1b" not in listed.output and "\x07" not in listed.output


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.attack(
    who="a role with CONNECT",
    does="prepares a transaction under the name of one of the pipeline's that was just committed, and not yet noted so",
    gets="nothing: what was committed has its row in `onefold_parts`, which says so",
)
def test_a_name_that_is_taken_again_after_its_commit_stops_nobody(
    make: MakeWorld, roles: Roles, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    world = make(sink(roles))
    world.start()
    listed: list[str] = []
    world.between_tasks = lambda: listed.extend(world.gids())
    with monkeypatch.context() as patched:
        failing_at(patched, "after:Commit", crash)
        with pytest.raises(CrashError):
            world.epoch(0)
    assert listed and world.gids() == []
    for gid in set(listed):
        prepared_by_tenant(roles, gid, "postgres" if elsewhere else "")
    try:
        assert make(sink(roles)).start().finished == 1
        lives(make, roles, begun=1) if elsewhere else None
        assert world.ids(f"{roles.loader}.orders")[: world.ROWS] == list(range(world.ROWS))
    finally:
        for gid in set(listed):
            with psycopg.connect(
                make_conninfo(roles.admin, dbname="postgres" if elsewhere else roles.database), autocommit=True
            ) as c:
                c.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def test_a_decided_transaction_of_a_role_that_is_no_longer_ours_is_refused_and_then_committed(
    make: MakeWorld, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, its rows would be lost."""
    group = f"group_{uuid.uuid4().hex[:8]}"
    lives(make, roles, batches=1)
    roles.sql(f"CREATE ROLE {group}; GRANT {group} TO {roles.loader}")
    for schema in ("onefold_sinks", roles.loader):
        roles.sql(f"GRANT USAGE ON SCHEMA {schema} TO {group}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {group}")
    world = make(sink(roles, role=group), store=sink(roles).store_url() or "")
    try:
        world.start()
        with monkeypatch.context() as patched:
            failing_at(patched, "after:Decide", crash)
            with pytest.raises(CrashError):
                world.epoch(1)
        roles.sql(f"REVOKE {group} FROM {roles.loader}")
        with raises(ConfigError, "transaction-of-another-role", f"{group}"):
            make(sink(roles)).start()
        assert len(world.gids()) == 2
        roles.sql(f"GRANT {group} TO {roles.loader}")
        assert make(sink(roles)).start().finished == 1
        assert world.ids(f"{roles.loader}.orders") == list(range(2 * world.ROWS))
    finally:
        for gid in world.gids():
            roles.sql(f"ROLLBACK PREPARED '{gid}'")
        roles.sql(f"DROP OWNED BY {group} CASCADE; DROP ROLE {group}")


def test_what_the_login_prepared_before_it_worked_as_a_group_is_removed(
    make: MakeWorld, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is no member of the login; the session is, and may set its role back."""
    group = f"group_{uuid.uuid4().hex[:8]}"
    world = lives(make, roles, batches=1)
    roles.sql(f"CREATE ROLE {group}; GRANT {group} TO {roles.loader}")
    for schema in ("onefold_sinks", roles.loader):
        roles.sql(f"GRANT USAGE ON SCHEMA {schema} TO {group}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {group}")
    try:
        world.start()
        with monkeypatch.context() as patched:
            failing_at(patched, "before:Decide", crash)
            with pytest.raises(CrashError):
                world.epoch(1)
        assert len(world.gids()) == 2
        again = make(sink(roles, role=group), store=sink(roles).store_url() or "")
        again.start()
        again.epoch(1)
        assert again.gids() == []
        assert again.ids(f"{roles.loader}.orders") == list(range(2 * world.ROWS))
    finally:
        for gid in world.gids():
            roles.sql(f"ROLLBACK PREPARED '{gid}'")
        roles.sql(f"DROP OWNED BY {group} CASCADE; DROP ROLE {group}")


# locks


@pytest.mark.attack(
    who="a role with CONNECT",
    does="holds every advisory lock that onefold ever took, for as long as it likes",
    gets="nothing: locks are rows of tables that it may not write to",
)
def test_a_tenant_that_holds_advisory_locks_stops_nobody(roles: Roles) -> None:
    quoted_table = f'"{roles.loader}"."orders"'
    digest = hashlib.sha256(quoted_table.encode()).hexdigest()[:32]
    deletions = f'"onefold_sinks"."onefold_deleted_{digest}"'
    texts = [
        f"onefold_deleted_{digest}",
        f"onefold merges by {deletions}",
        'dead letters "onefold_sinks"."onefold_dead_letters"',
        f"onefold table {quoted_table}",
    ]
    with psycopg.connect(roles.url(roles.tenant), autocommit=True) as tenant:
        tenant.execute("SELECT pg_advisory_lock(%s)", (0x6F6E65666F6C64,))
        tenant.execute("SELECT pg_advisory_lock(hashtext('onefold store'))")
        for text in texts:
            tenant.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (text,))
        made = upserting(roles, on_error="dead_letter", lock_timeout_s=2)
        with Epochs(made, ORDERS) as epochs:
            epochs.run(pa.record_batch([[1, 2], [1, 1], [False, False]], schema=ORDERS))
            epochs.run(pa.record_batch([[1], [2], [True]], schema=ORDERS))
    assert roles.sql(f"SELECT id FROM {roles.loader}.orders") == [(2,)]

"""The sink and the store through PgBouncer (docs/postgres-connections.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.calls import SCHEMA, Ask, decided, prepared
from harness.field import Certificates, pgbouncer, with_parameters
from harness.pipeline_drivers import Line, assert_exact, at_failpoint

from onefold.core import ConfigError, Retriable
from onefold.sinks import PostgresSink
from onefold.sources import PostgresSource
from onefold.sources.postgres import TablePart, describe, plan, read
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers
FEW = {"default_pool_size": "2", "query_wait_timeout": "5", "server_login_retry": "1"}


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def refuse_settings_of_others(url: str, *tables: str) -> None:
    """Each row shows by a constraint what the transaction that writes it runs with."""
    for table in tables:
        sql(
            url,
            f"""
            ALTER TABLE {table}
            ADD CONSTRAINT asynchronous CHECK (current_setting('synchronous_commit') = 'on'),
            ADD CONSTRAINT timed CHECK (current_setting('statement_timeout') = '0'),
            ADD CONSTRAINT impatient CHECK (current_setting('lock_timeout') <> '1ms'),
            ADD CONSTRAINT elsewhere CHECK (current_setting('search_path') = 'public, pg_temp')
            """,
        )


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    settings = FEW if request.param == "transaction" else {**FEW, "default_pool_size": "8"}
    with pgbouncer(tmp_path, postgres_url, request.param, **settings) as url:
        yield url


@pytest.fixture
def transactions(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    with pgbouncer(tmp_path, postgres_url, "transaction", **FEW) as url:
        yield url


@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_epochs_go_through_pgbouncer_beside_others_who_leave_settings_behind(
    pooled: str, postgres_url: str, delivery: str
) -> None:
    line = Line(pooled, delivery=delivery).start()
    refuse_settings_of_others(postgres_url, "t", "onefold_sinks.onefold_epochs")
    for number in range(1, 9):  # more often than psycopg needs to prepare a statement by name
        sql(
            pooled,
            "SET synchronous_commit = off; SET statement_timeout = '1min'; SET lock_timeout = 1; SET search_path = x",
        )
        line.to(number * 10)
    line.close()
    assert_exact(postgres_url, 80)
    with PostgresSource(pooled, "t").frozen() as source:
        assert sum(batch.num_rows for part in plan(source) for batch in read(part)) == 80
    again = Line(pooled, delivery=delivery)
    assert again.start(from_ledger=True).at == 80
    again.close()


def test_nothing_of_ours_stays_behind_in_a_session_that_pgbouncer_gives_to_others(transactions: str) -> None:
    def session() -> list[tuple[Any, ...]]:
        # Of transaction_read_only Postgres resets the value with each transaction, and leaves "session" as its source.
        return sql(
            transactions,
            "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> 'application_name'"
            " AND (name, setting) <> ('transaction_read_only', 'off')",
        )

    before = session()
    for delivery in ("two_phase", "staged"):
        line = Line(transactions, delivery=delivery, name=delivery).start()
        line.to(10)
        line.close()
    for _ in range(4):
        assert session() == before


@pytest.mark.parametrize("place", ["writers:written", "after:prepare", "postgres.commit_prepared", "before:Decide"])
def test_a_backend_that_ends_behind_pgbouncer_in_mid_epoch_changes_nothing(
    transactions: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    line = Line(transactions).start()
    line.to(10)
    end_all = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    struck = at_failpoint(monkeypatch, place, lambda: sql(postgres_url, end_all))
    line.to(20)
    assert struck
    line.close()
    assert_exact(postgres_url, 20)


def test_the_only_session_of_a_pool_commits_many_transactions_and_waits_for_no_other(
    postgres_url: str, ask: Ask, tmp_path: Path
) -> None:
    one = {**FEW, "default_pool_size": "1", "query_wait_timeout": "20"}
    with pgbouncer(tmp_path, postgres_url, "session", **one) as url:
        sink = PostgresSink(url, "t", delivery="two_phase")
        committer = sink.open("p", SCHEMA)
        many = [prepared(sink) for _ in range(9)]
        began_s = time.monotonic()
        committer.commit(decided(*many), many)
        assert time.monotonic() < began_s + 20
        committer.close()
    assert ask.gids() == [] and len(ask.ids()) == 9 * 3


def test_what_pgbouncer_cannot_carry_is_refused_with_what_to_do(postgres_url: str, tmp_path: Path) -> None:
    with pgbouncer(_folder(tmp_path, "a"), postgres_url, "transaction") as url:
        with pytest.raises(ConfigError, match=r"unsupported startup parameter.*ALTER ROLE"):
            PostgresSink(url, "t", role="pg_monitor").recover("p")
        with pytest.raises(ConfigError, match="unsupported startup parameter"):
            Line(with_parameters(url, options="-c work_mem=7MB"))
    dropped = r"was to start as role 'pg_monitor' and is 'onefold'.*ALTER ROLE onefold"
    folder = _folder(tmp_path, "b")
    with (
        pgbouncer(folder, postgres_url, "transaction", ignore_startup_parameters="options") as url,
        pytest.raises(ConfigError, match=dropped),
    ):
        PostgresSink(url, "t", role="pg_monitor").recover("p")


def test_another_roles_work_is_not_finished_through_a_pooler(postgres_url: str, tmp_path: Path) -> None:
    """SET ROLE could reach somebody else's session there."""
    gid = f"of/t/t/1/1/{'0' * 32}"
    books = "onefold_sinks"
    PostgresSink(postgres_url, "t").recover("t").close()
    sql(postgres_url, "CREATE ROLE pooled LOGIN; CREATE ROLE worker; GRANT worker TO pooled")
    sql(postgres_url, f"GRANT ALL ON SCHEMA {books} TO pooled; GRANT ALL ON ALL TABLES IN SCHEMA {books} TO pooled")
    sql(postgres_url, f"SET ROLE worker; BEGIN; SELECT txid_current(); PREPARE TRANSACTION '{gid}'")
    login = with_parameters(postgres_url, user="pooled")
    with pgbouncer(tmp_path, login, "transaction") as url:
        through = PostgresSink(url, "t").recover("t")
        said = r"belongs to role 'worker'.* through a pooler.* ALTER ROLE pooled SET role = 'worker'"
        with pytest.raises(ConfigError, match=said):
            through.abort(through.leftovers(9))
        through.close()
    direct = PostgresSink(login, "t").recover("t")
    assert len(direct.leftovers(9)) == 1
    direct.abort(direct.leftovers(9))
    assert direct.leftovers(9) == []
    direct.close()
    sql(postgres_url, "DROP OWNED BY pooled, worker; DROP ROLE pooled, worker")


def test_a_pgbouncer_whose_server_is_gone_is_worth_another_try(tmp_path: Path) -> None:
    nowhere = "postgresql://onefold@127.0.0.1:1/onefold"
    with pgbouncer(tmp_path, nowhere, "transaction", **{**FEW, "query_wait_timeout": "1"}) as url:
        for _ in range(2):
            with pytest.raises(Retriable, match="Is the server up"):
                PostgresSink(url, "t", connect_timeout_s=4).recover("p")


# TLS: the wheel's Postgres is built without it, and PgBouncer speaks it with the same libpq


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(postgres_url: str, tmp_path: Path, certificates: Certificates) -> Iterator[str]:
    """Lets in only whom the certificate authority knows, under the name that is in the certificate."""
    folder = _folder(tmp_path, "tls")
    for name in ("ca.crt", "server.crt", "server.key"):
        (folder / name).write_bytes((certificates.folder / name).read_bytes())
        (folder / name).chmod(0o600)
    here = "/proc/self/cwd"
    settings = {
        "client_tls_sslmode": "verify-full",
        "client_tls_ca_file": f"{here}/ca.crt",
        "client_tls_cert_file": f"{here}/server.crt",
        "client_tls_key_file": f"{here}/server.key",
        "auth_type": "cert",
    }
    with pgbouncer(folder, postgres_url, "transaction", **settings) as url:
        yield with_parameters(url, host="localhost", hostaddr="127.0.0.1")


def test_tls_with_certificates_of_both_sides_carries_sink_and_store(
    tls: str, postgres_url: str, certificates: Certificates
) -> None:
    line = Line(with_parameters(tls, **certificates.of("onefold"))).start()
    line.to(10)
    with line.store.database.transaction() as connection:
        assert connection.connection.pgconn.ssl_in_use
    line.close()
    assert_exact(postgres_url, 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sslrootcert": "other.crt"}, "certificate verify failed"),
        ({"host": "db.example"}, 'does not match host name "db.example"'),
        ({"sslcert": "absent.crt", "sslkey": "absent.key"}, "alert certificate required"),
        ({"sslcert": "stranger.crt", "sslkey": "stranger.key"}, "alert unknown ca"),
        ({"sslrootcert": "absent.crt"}, "does not exist"),
    ],
)
def test_a_certificate_that_does_not_hold_is_a_setting_to_mend_for_sink_store_and_source(
    tls: str, certificates: Certificates, change: dict[str, str], said: str
) -> None:
    files = {key: str(certificates.folder / value) if key.startswith("ssl") else value for key, value in change.items()}
    url = with_parameters(tls, **{**certificates.of("onefold"), **files})
    with pytest.raises(ConfigError, match=said) as caught:
        PostgresSink(url, "t").recover("p")
    assert "Mend sslmode, sslrootcert, sslcert or sslkey" in str(caught.value)
    sink = PostgresSink(url, "t")
    with pytest.raises(ConfigError, match=said):
        CheckpointStore(sink.store_url() or "").id()
    with pytest.raises(ConfigError, match=said):
        describe(PostgresSource(url, "t"))
    with pytest.raises(ConfigError, match=said):
        list(read(TablePart(url, "pg_catalog", {}, None, (), "SELECT 1", "a part")))


def test_a_server_without_tls_is_refused_where_it_was_asked_for(postgres_url: str) -> None:
    with pytest.raises(ConfigError, match="server does not support SSL, but SSL was required"):
        PostgresSink(with_parameters(postgres_url, sslmode="require"), "t").recover("p")


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder

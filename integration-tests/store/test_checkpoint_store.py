"""The checkpoint store on a real Postgres and a real MariaDB: the same tests as on SQLite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from harness.errors import raises
from store_suite import StoreSuite

from onefold.core import BadRecord, Positions, Range, Retriable
from onefold.core.protocol.effects import EpochRequest
from onefold.core.waiting import retry
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers
Connect = Callable[[], CheckpointStore]


@pytest.fixture
def connect(postgres_url: str) -> Iterator[Connect]:
    with opener(psycopg_url(postgres_url)) as another:
        yield another


@contextmanager
def opener(url: str) -> Iterator[Connect]:
    stores: list[CheckpointStore] = []

    def another() -> CheckpointStore:
        stores.append(CheckpointStore(url))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


class TestPostgres(StoreSuite):
    pass


class TestMariaDb(StoreSuite):
    @pytest.fixture
    def connect(self, mariadb_url: str) -> Iterator[Connect]:
        with opener(mariadb_url) as another:
            yield another


@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url"])
def test_many_that_create_the_tables_at_once_agree_on_the_id(server: str, request: pytest.FixtureRequest) -> None:
    with opener(psycopg_url(request.getfixturevalue(server))) as connect:
        creates_once(connect)


def creates_once(connect: Connect) -> None:
    barrier, ids = threading.Barrier(4), []

    def create() -> None:
        store = connect()
        barrier.wait(timeout=10)
        ids.append(retry(store.id, 30))  # as drivers do: MariaDB refuses who looks while another one makes the table

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(ids) == 4 and len(set(ids)) == 1


def test_its_transactions_are_synchronous_and_bounded_in_waiting(connect: Connect) -> None:
    with connect().database.transaction() as connection:
        assert connection.rows("SHOW synchronous_commit") == [("on",)]
        assert connection.rows("SHOW lock_timeout") == [("30s",)]
        assert connection.rows("SHOW transaction_isolation") == [("read committed",)]


def test_mariadbs_transactions_are_strict_and_bounded_in_waiting(mariadb_url: str) -> None:
    with opener(mariadb_url) as connect, connect().database.transaction() as connection:
        asked = "SELECT @@tx_isolation, @@innodb_lock_wait_timeout, @@idle_transaction_timeout, @@time_zone"
        assert connection.rows(asked) == [("READ-COMMITTED", 30, 15, "+00:00")]
        assert "STRICT_ALL_TABLES" in connection.rows("SELECT @@sql_mode")[0][0]


def test_a_mariadb_that_does_not_flush_its_commits_is_warned_of(mariadb_server: Any, mariadb_url: str) -> None:
    engine = sa.create_engine(mariadb_server.url)
    setting = "SET GLOBAL innodb_flush_log_at_trx_commit = {}"
    with opener(mariadb_url) as connect, engine.connect() as connection:
        connection.exec_driver_sql(setting.format(2))
        with pytest.warns(RuntimeWarning, match="innodb_flush_log_at_trx_commit is 2 on 127.0.0.1"):
            connect().id()
        connection.exec_driver_sql(setting.format(1))
    engine.dispose()


@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url"])
def test_a_driver_frozen_inside_a_transaction_does_not_keep_its_successor_out(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = psycopg_url(request.getfixturevalue(server))
    frozen = CheckpointStore(url, lock_timeout_s=2)
    successor = CheckpointStore(url, lock_timeout_s=30)
    generation = frozen.acquire("p", 0)

    def freeze() -> None:
        with frozen.database.transaction() as connection:
            connection.rows("SELECT * FROM onefold_pipelines FOR UPDATE")
            assert successor.acquire("p", 0).number == generation.number + 1  # what idles is ended after 1 s
            connection.rows("SELECT 1")

    with pytest.raises(Retriable):
        freeze()
    frozen.close()
    successor.close()


def test_a_row_that_only_the_commit_refuses_is_a_bad_record_and_nothing_is_decided(postgres_url: str) -> None:
    store = CheckpointStore(psycopg_url(postgres_url))
    generation = store.acquire("p", 0)
    span = Range(Positions(), Positions.of({"t/0": 5}))
    record = store.open_epoch(generation, EpochRequest(span, "q", 0, "job", ("a",)), 0, 1000)

    def merge(connection: Any) -> None:
        connection.execute("CREATE TABLE t (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO t VALUES (1), (1)")

    with raises(BadRecord, "row-refused"):
        store.decide(generation, record, (), 1000, merge)
    assert store.facts("p").unfinished == (record,)
    store.close()


def test_what_the_url_sets_for_a_session_holds_in_the_store_too(postgres_url: str) -> None:
    store = CheckpointStore(psycopg_url(postgres_url) + "?options=-c%20work_mem%3D7MB")
    with store.database.transaction() as connection:
        assert connection.rows("SHOW work_mem") == [("7MB",)]
        assert connection.rows("SHOW synchronous_commit") == [("on",)]
    store.close()


def psycopg_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)

"""The checkpoint store on a real Postgres: the same tests as on SQLite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from onefold.core.store import CheckpointStore
from onefold.core.testing.store_suite import StoreSuite

pytestmark = pytest.mark.servers
Connect = Callable[[], CheckpointStore]


@pytest.fixture
def connect(postgres_url: str) -> Iterator[Connect]:
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    stores: list[CheckpointStore] = []

    def another() -> CheckpointStore:
        stores.append(CheckpointStore(url))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


class TestPostgres(StoreSuite):
    pass


def test_many_that_create_the_tables_at_once_agree_on_the_id(connect: Connect) -> None:
    barrier, ids = threading.Barrier(4), []

    def create() -> None:
        store = connect()
        barrier.wait(timeout=10)
        ids.append(store.id())

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(ids) == 4 and len(set(ids)) == 1


def test_its_transactions_are_synchronous_and_bounded_in_waiting(connect: Connect) -> None:
    with connect()._transaction() as connection:
        assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"
        assert connection.scalar(sa.text("SHOW lock_timeout")) == "30s"
        assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"

"""Reading the epochs of a store on a real server, beside a driver that writes them."""

from __future__ import annotations

import time

import pytest
from harness.errors import raises
from harness.stored_epochs import with_epochs

from onefold.core import OnefoldError, Retriable
from onefold.store.history import History

pytestmark = pytest.mark.servers


@pytest.fixture(params=["postgres_url", "mariadb_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_a_reader_sees_the_epochs_and_changes_nothing(url: str) -> None:
    history = History(url, 2)
    assert history.status("orders") is None
    with_epochs(url, 3).close()
    status = history.status("orders")
    assert status is not None and status.complete is not None and status.complete.record.epoch == 3
    with raises(OnefoldError, "database-unavailable"), history._store.database.transaction() as connection:
        connection.rows("DELETE FROM onefold_epochs")
    assert [epoch.record.epoch for epoch in history.epochs("orders", 2)] == [4, 3]
    history.close()


def test_a_reader_does_not_wait_for_a_driver_that_holds_its_row_nor_longer_than_it_may_for_anything(url: str) -> None:
    store, history = with_epochs(url, 1), History(url, 1)
    assert len(history.epochs("orders", 9)) == 2
    with store.database.transaction() as driver:
        driver.rows('UPDATE onefold_epochs SET "rows" = 7')
        began_s = time.monotonic()
        assert len(history.epochs("orders", 9)) == 2
        assert time.monotonic() - began_s < 1
    slow = "SELECT pg_sleep(20)" if history._store.database.backend.name == "Postgres" else "SELECT sleep(20)"
    began_s = time.monotonic()
    with pytest.raises(Retriable), history._store.database.transaction() as connection:
        connection.rows(slow)
    assert time.monotonic() - began_s < 5
    history.close()
    store.close()

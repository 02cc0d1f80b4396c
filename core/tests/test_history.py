"""The store's epochs, read beside the driver that writes them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness.errors import raises
from harness.stored_epochs import at, with_epochs

from onefold.core import MOVED, ConfigError, EpochState, OnefoldError, Range
from onefold.core.protocol.effects import EpochRequest
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.history import History


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def test_where_a_pipeline_stands_is_told_and_what_nobody_started_is_not_there(url: str, tmp_path: Path) -> None:
    history = History(url, 1)
    assert (history.status("orders"), history.epochs("orders", 5), history.epoch("orders", 1)) == (None, [], None)
    assert not (tmp_path / "store.db").exists(), "a look makes nothing"
    with_epochs(url, 2).close()
    status = history.status("orders")
    assert status is not None and status.complete is not None
    assert (status.generation, status.complete.record.epoch, status.positions) == (1, 2, at(20))
    assert status.counts == {EpochState.COMPLETE: 2, EpochState.OPEN: 1}
    assert [epoch.record.epoch for epoch in status.unfinished] == [3]
    assert history.status("other") is None
    history.close()


def test_before_its_first_epoch_a_pipeline_stands_at_its_frozen_positions(url: str) -> None:
    with_epochs(url, 0).close()
    status = History(url, 1).status("orders")
    assert status is not None
    assert (status.complete, status.positions) == (None, at(0))


def test_epochs_come_in_pages_and_complete_ones_from_a_generation_on(url: str) -> None:
    with_epochs(url, 5).close()
    history = History(url, 1)
    assert [epoch.record.epoch for epoch in history.epochs("orders", 2)] == [6, 5]
    assert [epoch.record.epoch for epoch in history.epochs("orders", 9, before=5)] == [4, 3, 2, 1]
    assert [epoch.record.epoch for epoch in history.completed("orders", 3, 1, 9)] == [4, 5]
    assert history.completed("orders", 0, 2, 9) == []
    one = history.epoch("orders", 1)
    assert one is not None and one.bytes == 80
    assert one.duration_s is not None and one.commit_s is not None and one.duration_s > one.commit_s >= 1.0
    history.close()


def test_reader_and_driver_do_not_wait_for_each_other(url: str) -> None:
    store = with_epochs(url, 1)
    history = History(url, 5)
    began_s = time.monotonic()
    with store.database.transaction() as writing:
        writing.rows('UPDATE onefold_epochs SET "rows" = 11')
        assert len(history.epochs("orders", 9)) == 2
    with history._store.database.transaction() as reading:
        reading.rows("SELECT * FROM onefold_epochs")
        with store.database.transaction() as writing:
            writing.rows('UPDATE onefold_epochs SET "rows" = 12')
    assert time.monotonic() - began_s < 2
    store.close()
    history.close()


def test_a_reader_changes_nothing(url: str) -> None:
    with_epochs(url, 1).close()
    history = History(url, 1)
    with raises(OnefoldError, "database-access-denied"), history._store.database.transaction() as connection:
        connection.rows("DELETE FROM onefold_epochs")
    assert len(history.epochs("orders", 9)) == 2
    history.close()


def test_a_store_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database" * 1000)
    with raises(ConfigError, "database-access-denied"):
        History(f"sqlite:///{tmp_path / 'store.db'}", 1).status("orders")


def test_starts_are_counted_by_the_epochs_of_queries_and_not_by_what_else_takes_a_generation(url: str) -> None:
    store = CheckpointStore(url)
    history = History(url, 1)
    told = []

    def life(*queries: str) -> None:
        """A generation, in which these queries have an epoch each."""
        generation = store.acquire("orders", above=0)
        store.freeze(generation, at(0))
        for query in queries:
            last = len(history.epochs("orders", 99))
            request = EpochRequest(Range(at(last), at(last + 1)), query, last, "job", ("rows",))
            record = store.open_epoch(generation, request, last, last + 1)
            store.complete(generation, store.decide(generation, record, [], last + 1), last + 1)
        status = history.status("orders")
        assert status is not None
        told.append((status.generation, status.starts))

    life()
    life("q", "q")
    life()  # as for a savepoint
    life(MOVED)
    life("q")
    life("q", "q")
    assert told == [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (6, 3)]
    store.close()
    history.close()

"""Deletions that upserts remember: for how long, by which columns, and shared by which pipelines."""

from __future__ import annotations

import threading
import time

import psycopg
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.support import wait_until
from harness.tables.upserts import DELETIONS, MARKED, ask, deleting, marked, rows, table, upsert

from onefold.core import ConfigError
from onefold.core.protocol import coordinator
from onefold.sinks.staged import ledger_committer

pytestmark = pytest.mark.servers


def test_a_deletion_is_forgotten_when_its_time_is_over(postgres_url: str) -> None:
    with Epochs(deleting(postgres_url, deletes_kept_s=0.2), MARKED) as epochs:
        epochs.run(marked((1, 5, None, True)))
        epochs.run(marked((1, 4, "late", False)))
        assert table(postgres_url) == []
        time.sleep(0.3)
        epochs.run(marked((2, 1, "b", False)))  # its commit looks what has expired
        epochs.run(marked((1, 4, "very late", False)))
        assert table(postgres_url) == [(1, 4, "very late"), (2, 1, "b")]


def test_a_drivers_clock_that_jumps_ahead_forgets_no_deletion(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Epochs(deleting(postgres_url, deletes_kept_s=3600), MARKED) as epochs:
        epochs.run(marked((1, 5, None, True)))
        with monkeypatch.context() as ahead:
            now_ns = time.time_ns
            ahead.setattr(coordinator.time, "time_ns", lambda: now_ns() + 10**9 * 365 * 24 * 3600)
            epochs.run(marked((2, 1, "b", False)))  # its commit looks what has expired
        epochs.run(marked((1, 4, "late", False)))
    assert table(postgres_url) == [(2, 1, "b")]


def test_a_key_is_remembered_for_as_long_as_any_of_its_deletions_asks_for(postgres_url: str) -> None:
    with (
        Epochs(deleting(postgres_url, deletes_kept_s=float("inf")), MARKED, pipeline="one") as one,
        Epochs(deleting(postgres_url, deletes_kept_s=0.01), MARKED, pipeline="two") as two,
    ):
        one.run(marked((1, 5, None, True)))
        two.run(marked((1, 6, None, True), (2, 5, None, True), (4, 6, None, True)))
        one.run(marked((4, 5, None, True)))
        time.sleep(0.05)
        two.run(marked((3, 1, "c", False)))  # its commit looks what has expired
        two.run(marked((1, 6, "late", False), (4, 6, "late", False), (2, 4, "very late", False)))
    assert table(postgres_url) == [(2, 4, "very late"), (3, 1, "c")]


def test_forgetting_waits_for_nobody(postgres_url: str) -> None:
    with Epochs(deleting(postgres_url, deletes_kept_s=0.1, lock_timeout_s=0.3), MARKED) as epochs:
        epochs.run(marked((1, 5, None, True), (2, 5, None, True)))
        ((deletions,),) = ask(postgres_url, DELETIONS)
        ask(postgres_url, f"BEGIN; UPDATE {deletions} SET version = 6 WHERE id = 1; PREPARE TRANSACTION 'the orphan'")
        time.sleep(0.2)
        epochs.run(marked((3, 1, "c", False)))
        assert ask(postgres_url, f"SELECT id FROM {deletions}") == [(1,)]
        ask(postgres_url, "ROLLBACK PREPARED 'the orphan'")
        epochs.run(marked((3, 2, "c", False)))
        assert ask(postgres_url, f"SELECT id FROM {deletions}") == []


def test_pipelines_that_delete_from_one_table_share_what_they_remember(postgres_url: str) -> None:
    with (
        Epochs(deleting(postgres_url), MARKED, pipeline="one") as one,
        Epochs(deleting(postgres_url), MARKED, pipeline="two") as two,
    ):
        one.run(marked((1, 5, None, True)))
        two.run(marked((1, 4, "late", False), (2, 1, "b", False)))
    assert table(postgres_url) == [(2, 1, "b")]
    with raises(ConfigError, "tombstones-of-another-key"):
        Epochs(deleting(postgres_url, order="name"), MARKED, pipeline="three")


@pytest.mark.parametrize("first", ["the deletion", "the older version"])
def test_a_deletion_and_an_older_version_that_two_pipelines_merge_at_once_end_in_the_deletion(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The second merge comes while the first has done its work and has not committed: neither can see the other's."""
    changes = [marked((1, 5, None, True)), marked((1, 4, "late", False))]
    if first == "the older version":
        changes.reverse()
    failures: list[BaseException] = []
    with (
        Epochs(deleting(postgres_url), MARKED, pipeline="one") as one,
        Epochs(deleting(postgres_url), MARKED, pipeline="two") as two,
    ):

        def run_the_other() -> None:
            try:
                two.run(changes[1])
            except BaseException as error:
                failures.append(error)

        other = threading.Thread(target=run_the_other)

        def meanwhile(place: str) -> None:
            if place == "staged.merge" and not other.ident:
                other.start()
                wait_until(lambda: not other.is_alive() or is_waiting(postgres_url), "the other merge")

        monkeypatch.setattr(ledger_committer, "failpoint", meanwhile)
        one.run(changes[0])
        other.join(20)
        assert not other.is_alive()
    assert failures == []
    assert table(postgres_url) == []


def is_waiting(url: str) -> bool:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(ask(url, waits)[0][0])


def test_two_phase_says_that_with_deletions_it_must_be_alone(postgres_url: str) -> None:
    conditions = deleting(postgres_url, "two_phase").guarantee().conditions
    assert "no other pipeline writes versions into the table" in conditions[-1]
    assert "no other pipeline" not in " ".join(upsert(postgres_url, "two_phase").guarantee().conditions)
    assert "no other pipeline" not in " ".join(deleting(postgres_url, "staged").guarantee().conditions)


def test_a_vacuum_of_what_is_remembered_keeps_no_merge_waiting(postgres_url: str) -> None:
    """Nor does a merge keep autovacuum from it, which gives way to whoever waits, and would never come to its end."""
    with (
        Epochs(deleting(postgres_url, lock_timeout_s=0.5), MARKED) as epochs,
        psycopg.connect(postgres_url) as vacuum,
    ):
        epochs.run(marked((1, 1, None, True)))
        ((deletions,),) = ask(postgres_url, DELETIONS)
        vacuum.execute(f"LOCK TABLE {deletions} IN SHARE UPDATE EXCLUSIVE MODE".encode())
        epochs.run(marked((1, 1, "late", False), (2, 1, "b", False), (3, 1, None, True)))
    assert table(postgres_url) == [(2, 1, "b")]


@pytest.mark.parametrize("evolve", [False, True])
def test_what_is_remembered_has_the_types_of_a_table_that_was_altered_by_hand(postgres_url: str, evolve: bool) -> None:
    narrow = MARKED.set(0, pa.field("id", pa.int32())).set(1, pa.field("version", pa.int32()))
    with Epochs(deleting(postgres_url), narrow) as epochs:
        epochs.run(rows((1, 5, None, True), schema=narrow))
    ask(postgres_url, "ALTER TABLE t ALTER COLUMN id TYPE bigint, ALTER COLUMN version TYPE bigint")
    with Epochs(deleting(postgres_url, evolve=evolve), MARKED) as epochs:
        epochs.run(marked((1, 4, "late", False), (2**40, 2**40, None, True)))
        epochs.run(marked((2**40, 2**40 - 1, "late", False)))
    assert table(postgres_url) == []


def test_pipelines_that_would_remember_in_two_places_are_refused(postgres_url: str) -> None:
    with Epochs(deleting(postgres_url), MARKED, pipeline="one") as one:
        one.run(marked((1, 5, None, True)))
    other = deleting(postgres_url, ledger="other")
    with raises(ConfigError, "tombstones-elsewhere", "'onefold_sinks'", "'other'"):
        other.open("two", MARKED)
    ask(postgres_url, f"DROP TABLE {ask(postgres_url, DELETIONS)[0][0]}")
    other.open("two", MARKED).close()

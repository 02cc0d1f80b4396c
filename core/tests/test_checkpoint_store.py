"""The checkpoint store on SQLite, the model store against the same tests, and how errors are told apart."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.errors import raises
from store_suite import StoreSuite, last_of, request

from onefold.core import (
    MOVED,
    CheckpointMismatch,
    Committable,
    ConfigError,
    EpochState,
    Fenced,
    InDoubt,
    Positions,
    Range,
    Retriable,
    SinkKind,
)
from onefold.core.contract import Joined
from onefold.core.findings import Level
from onefold.core.protocol.coordinator import JoinedMerge
from onefold.core.protocol.effects import EpochRequest
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import pin

NOW_MS = 1_700_000_000_000
Open = Callable[[str], CheckpointStore]


@pytest.fixture
def opened() -> Iterator[Open]:
    stores: list[CheckpointStore] = []

    def connect(url: str, lock_timeout_s: float = 10.0) -> CheckpointStore:
        stores.append(CheckpointStore(url, lock_timeout_s=lock_timeout_s))
        return stores[-1]

    yield connect
    for store in stores:
        store.close()


class TestSqlite(StoreSuite):
    @pytest.fixture
    def connect(self, tmp_path: Path, opened: Open) -> Callable[[], CheckpointStore]:
        return lambda: opened(f"sqlite:///{tmp_path / 'store.db'}")


class TestModel(StoreSuite):
    @pytest.fixture
    def connect(self) -> Callable[[], ModelStore]:
        store = ModelStore()
        return lambda: store

    test_two_generations_never_share_number_or_token = None  # type: ignore[assignment]  # a model has one thread


def test_an_unreachable_store_is_retriable_and_its_message_hides_the_password(opened: Open) -> None:
    store = opened("postgresql+psycopg://onefold:geheim@127.0.0.1:1/shop")
    with raises(Retriable, "postgres-unreachable") as caught:
        store.facts("p")
    assert "geheim" not in str(caught.value)


def test_what_a_server_or_its_driver_says_on_several_lines_is_one_line_of_an_error(opened: Open) -> None:
    store = opened("postgresql+psycopg://app@127.0.0.1:1/shop")
    with raises(Retriable, "postgres-unreachable") as caught:  # libpq: "refused\n\tIs the ..."
        store.id()
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "no url",
        "mysql+mysqldb://u:geheim@host/db",
        "nosuchdatabase://u:geheim@host/db",
        "postgresql://u:odd@odd:geheim@host/db",  # which would be read as a port
        "sqlite://store.db/store.db",  # a slash too few
        "mariadb://u:geheim@127.0.0.1:1/db?ssl_ca=/no/such/file",
    ],
)
def test_a_url_that_is_no_store_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CheckpointStore(url).id()
    assert "geheim" not in str(caught.value)


def test_the_first_start_makes_the_folder_that_is_onefolds_own(tmp_path: Path, opened: Open) -> None:
    store = opened(f"sqlite:///{tmp_path / '.onefold' / 'orders.db'}")
    (found,) = store.checks()
    assert found.level is Level.FINE and "made by the first start" in found.says
    assert not (tmp_path / ".onefold").exists()
    assert store.id() and (tmp_path / ".onefold" / "orders.db").exists()


def test_a_folder_of_onefolds_own_that_nobody_may_make_is_told_as_such(tmp_path: Path, opened: Open) -> None:
    with raises(ConfigError, "database-access-denied", f"{tmp_path / 'a'}"):
        opened(f"sqlite:///{tmp_path / 'a' / '.onefold' / 'orders.db'}").id()


def test_a_file_in_a_missing_folder_is_told_as_such(tmp_path: Path, opened: Open) -> None:
    store = opened(f"sqlite:///{tmp_path / 'missing' / 'store.db'}")
    with raises(ConfigError, "database-access-denied"):
        store.facts("p")


def test_a_read_only_store_is_told_as_such(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "store.db"
    opened(f"sqlite:///{path}").acquire("p", 0)
    store = opened(f"sqlite:///file:{path}?mode=ro&uri=true")
    with raises(ConfigError, "database-access-denied"):
        store.acquire("p", 0)


def test_a_full_disk_is_told_as_such_and_nothing_took_effect(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation = store.acquire("p", 0)

    begin = store.database.backend.begin

    def tiny(connection: Any, first: Any) -> Any:
        found = begin(connection, first)
        connection.execute("PRAGMA max_page_count = 1")
        return found

    monkeypatch.setattr(store.database.backend, "begin", tiny)
    sinks = tuple(f"a sink with a name of some length {n}" for n in range(5000))
    with raises((Retriable, InDoubt), "database-resources-exhausted"):
        store.open_epoch(generation, request(0, 5, sinks=sinks), last_of(store), NOW_MS)
    monkeypatch.undo()
    assert store.facts("p").unfinished == ()


def test_a_locked_store_is_retriable(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    holder, store = CheckpointStore(url), CheckpointStore(url, lock_timeout_s=0.05)
    store.id()
    with holder.database.transaction(), raises(Retriable, "database-unavailable"):
        store.facts("p")
    holder.close()
    store.close()


def test_a_commit_without_an_answer_is_in_doubt(tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation = store.acquire("p", 0)

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("server closed the connection")

    monkeypatch.setattr(store.database.backend, "commit", broken)
    with raises(InDoubt, "commit-unanswered"):
        store.open_epoch(generation, request(0, 5), last_of(store), NOW_MS)


def test_a_process_that_goes_on_knows_the_generation_again_whose_answer_was_lost(tmp_path: Path, opened: Open) -> None:
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    first = store.acquire("p", 0)
    lost = store.acquire("p", 0, first)
    assert store.acquire("p", 0, first) == lost
    higher = store.acquire("p", 5, first)
    assert (higher.number, store.facts("p").generation) == (6, 6), "a ledger has seen more than the store"
    assert store.acquire("p", 0, higher).number == 7


def test_an_id_whose_transaction_failed_is_not_remembered(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("server closed the connection")

    monkeypatch.setattr(store.database.backend, "commit", broken)
    with pytest.raises(InDoubt):
        store.id()  # a failed commit also leaves a connection that must not be used again
    monkeypatch.undo()
    assert store.id() == opened(f"sqlite:///{tmp_path / 'store.db'}").id()


def test_two_that_create_the_tables_at_once_agree_on_the_id(tmp_path: Path, opened: Open) -> None:
    for round_number in range(5):
        url = f"sqlite:///{tmp_path / f'{round_number}.db'}"
        barrier, ids = threading.Barrier(2), []

        def create(url: str = url, barrier: threading.Barrier = barrier, ids: list[str] = ids) -> None:
            store = opened(url)
            barrier.wait(timeout=10)
            for _ in range(100):  # the switch to WAL doesn't wait for the other's lock: it says Retriable
                with contextlib.suppress(Retriable):
                    ids.append(store.id())
                    return

        threads = [threading.Thread(target=create) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert len(ids) == 2 and len(set(ids)) == 1


def test_a_newer_store_is_refused(tmp_path: Path, opened: Open) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = opened(url)
    store.id()
    with store.database.transaction() as transaction:
        transaction.rows("UPDATE onefold_store SET version = 99")
    for refused in (opened(url).id, opened(url).look):
        with pytest.raises(ConfigError) as error:
            refused()
        assert error.value.code == "store-too-new"


def test_looking_makes_no_store(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "store.db"
    assert opened(f"sqlite:///{path}").look() is None
    assert not path.exists()
    path.touch()
    assert opened(f"sqlite:///{path}").look() is None
    store_id = opened(f"sqlite:///{path}").id()
    assert opened(f"sqlite:///{path}").look() == store_id


def test_a_look_at_a_file_of_the_users_leaves_it_as_it_is_and_a_start_sets_its_mode(
    tmp_path: Path, opened: Open
) -> None:
    path = tmp_path / "shop.db"

    def ask(statement: str) -> object:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute(statement).fetchone()

    ask("CREATE TABLE theirs (id integer)")
    before = path.read_bytes()
    store = opened(f"sqlite:///{path}")
    assert [f.level for f in store.checks()] == [Level.FINE] and store.look() is None
    store.close()
    assert path.read_bytes() == before and ask("PRAGMA journal_mode") == ("delete",)
    store.id()
    assert ask("PRAGMA journal_mode") == ("wal",)


@pytest.mark.parametrize("older", ["DELETE FROM onefold_epochs", "UPDATE onefold_epochs SET state = 'open'"])
def test_a_store_that_came_back_without_the_decision_completes_nothing(
    tmp_path: Path, opened: Open, older: str
) -> None:
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation = store.acquire("p", 0)
    decided = store.decide(generation, store.open_epoch(generation, request(0, 5), 0, NOW_MS), [], NOW_MS)
    with store.database.transaction() as transaction:
        transaction.rows(older)
    with raises(CheckpointMismatch, "store-older-copy"):
        store.complete(generation, decided, NOW_MS)


def test_what_cannot_join_a_decision_is_merged_step_by_step_and_a_manifest_has_no_rows(
    tmp_path: Path, opened: Open
) -> None:
    store, merged = opened(f"sqlite:///{tmp_path / 'store.db'}"), list[object]()
    generation = store.acquire("p", 0)
    record = store.open_epoch(generation, request(0, 5), 0, NOW_MS)
    work = Committable("t", SinkKind.LAST_RESOURCE, "direct/1", 1, 1, 3, 9, b"its rows")
    joined = Joined((), (), lambda *_: pytest.fail("there is no such message"))
    store.decide(generation, record, [work], NOW_MS, JoinedMerge(merged.append, joined))
    (named,) = store.history("p")[0].manifest
    assert (named, named.payload, len(merged)) == (work, b"", 1)


def test_no_text_of_a_store_shows_the_secrets_of_its_url() -> None:
    store = CheckpointStore("postgresql+psycopg://me:geheim@h/d?sslpassword=geheim&sslmode=require")
    assert str(store.database) == "postgresql+psycopg://me:***@h/d?sslmode=require"
    store = CheckpointStore("mariadb://me:geheim@h/d?passwd=geheim&ssl_key_password=geheim&ssl_ca=ca.pem")
    assert str(store.database) == "mariadb+pymysql://me:***@h/d?ssl_ca=ca.pem"


def test_only_sqlite_is_local(tmp_path: Path, opened: Open) -> None:
    assert opened(f"sqlite:///{tmp_path / 'store.db'}").is_local
    assert not opened("postgresql+psycopg://h/db").is_local


def test_history_is_oldest_first_and_complete_epochs_are_pruned(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.store.checkpoint_store.KEEP_EPOCHS", 3)
    monkeypatch.setattr("onefold.store.checkpoint_store.PRUNE_EVERY", 1)
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation = store.acquire("p", 0)
    for number in range(8):
        record = store.open_epoch(generation, request(number, number + 1), last_of(store), NOW_MS)
        store.complete(generation, store.decide(generation, record, [], NOW_MS), NOW_MS)
    history = store.history("p", limit=100)
    assert [r.epoch for r in history] == [5, 6, 7, 8]
    assert {r.state for r in history} == {EpochState.COMPLETE}


def test_a_move_is_never_pruned_and_history_has_no_gap(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.store.checkpoint_store.KEEP_EPOCHS", 3)
    monkeypatch.setattr("onefold.store.checkpoint_store.PRUNE_EVERY", 1)
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation = store.acquire("p", 0)
    for number in range(8):
        asked = request(number, number + 1)
        record = store.open_epoch(
            generation, replace(asked, query_id=MOVED) if number == 1 else asked, last_of(store), NOW_MS
        )
        store.complete(generation, store.decide(generation, record, [], NOW_MS), NOW_MS)
    assert [r.epoch for r in store.history("p", limit=100)] == [5, 6, 7, 8]
    assert [(r.epoch, r.is_move) for r in store.moves("p")] == [(2, True)]
    assert store.facts("p").moved == 2


def test_a_pipeline_is_forgotten_only_when_nothing_of_it_is_unfinished_and_its_driver_is_fenced(
    tmp_path: Path, opened: Open
) -> None:
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation, other = store.acquire("p", 0), store.acquire("other", 0)
    record = store.open_epoch(generation, request(0, 1), 0, NOW_MS)
    with raises(ConfigError, "epoch-unfinished", "'p'"):
        store.forget("p")
    store.complete(generation, store.decide(generation, record, [], NOW_MS), NOW_MS)
    assert [pin(store, name, "schema", lambda: "its first") for name in ("p", "other")] == ["its first"] * 2
    store.forget("p")
    now = {name: pin(store, name, "schema", lambda: "another topic's") for name in ("p", "other")}
    assert now == {"p": "another topic's", "other": "its first"}
    assert (store.facts("p").generation, store.history("p")) == (0, [])
    with raises(Fenced, "pipeline-retired"):
        store.open_epoch(generation, request(1, 2), 1, NOW_MS)
    assert store.facts("other").generation == other.number


def test_a_first_start_beside_another_first_start_is_asked_again(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres and MariaDB have no row to lock before the first start; SQLite locks the whole file."""
    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    store.id()

    run = store.database.backend.run

    def overtake(connection: Any, statements: Any) -> Any:
        first = [one for one in statements if one[0].startswith("INSERT INTO onefold_pipelines")]
        run(connection, first)
        return run(connection, statements)

    monkeypatch.setattr(store.database.backend, "run", overtake)
    with raises(Retriable, "first-start-raced"):
        store.acquire("p", 0)
    monkeypatch.undo()
    assert store.acquire("p", 0).number == 1


def test_a_range_is_found_whatever_marks_its_positions_bear_but_not_of_another_topic(
    tmp_path: Path, opened: Open
) -> None:
    """A batch that is planned anew finds its offsets under newer leaders; a topic that was made anew has the same."""

    def marked(topic: str, leaders: str) -> EpochRequest:
        ends = (Positions.of({"t/0": n}, {"t/id": topic, "t/epochs": leaders}) for n in (0, 5))
        return replace(request(0, 5), range=Range(*ends))

    store = opened(f"sqlite:///{tmp_path / 'store.db'}")
    generation = store.acquire("p", 0)
    record = store.open_epoch(generation, marked("one", "0:1"), last_of(store), NOW_MS)
    assert marked("one", "0:2").is_again(record) and not marked("two", "0:1").is_again(record)
    store.decide(generation, record, [], NOW_MS)
    for again in (marked("one", "0:2"), request(0, 5)):
        found = store.find("p", again)
        assert found is not None and found.epoch == record.epoch
    assert store.find("p", marked("two", "0:1")) is None

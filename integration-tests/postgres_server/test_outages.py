"""Servers that restart, fail over, come back older, or have nothing to spare, in the middle of an epoch."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.disks import SmallDisk, small_disk
from harness.errors import raises
from harness.field import QUICK, standby, with_parameters
from harness.passwords import at, let_roles_in, plain_url
from harness.pipeline_drivers import Line, assert_exact, at_failpoint, later
from harness.support import wait_until

from onefold.core import CheckpointMismatch, ConfigError, DataLoss, InDoubt, OutOfResources, Retriable
from onefold.local.process import ProcessRef, wait_gone
from onefold.sources import PostgresSource
from onefold.sources.postgres import describe
from onefold.testing import Servers

pytestmark = pytest.mark.servers
DELIVERIES = ["two_phase", "staged"]
SLOTS = 4


@pytest.fixture(scope="module")
def server(onefold_servers: Servers) -> Iterator[Any]:
    """A server of this module's own: it is killed a lot."""
    settings = {"max_prepared_transactions": str(SLOTS), "max_connections": "30", **QUICK}
    with onefold_servers.postgres(settings=settings) as server:
        let_roles_in(server)
        yield server


@pytest.fixture
def url(server: Any) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    sql(server.url, f"CREATE DATABASE {name}")
    yield plain_url(server, name)
    server.start()
    here = plain_url(server, name)
    for (gid,) in sql(here, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        sql(here, f"ROLLBACK PREPARED '{gid}'")
    sql(server.url, f"DROP DATABASE {name} WITH (FORCE)")


def sql(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def end(server: Any, how: str) -> None:
    """Every way in which a Postgres ends (manual, 18.5): fast says 57P01, immediate 57P02, a crash nothing."""
    match how:
        case "fast":
            server.stop()
        case "immediate":
            process = ProcessRef.of(server.status().pid or 0)
            assert process is not None
            process.signal(signal.SIGQUIT)
            assert wait_gone([process], 20)
        case "crash":
            server.kill()


@pytest.mark.parametrize(
    ("delivery", "place", "how"),
    [
        ("two_phase", "writers:written", "fast"),  # in COPY
        ("two_phase", "before:prepare", "immediate"),
        ("two_phase", "after:prepare", "crash"),
        ("two_phase", "commit", "fast"),  # in Decide
        ("two_phase", "postgres.commit_prepared", "crash"),  # between two COMMIT PREPARED
        ("staged", "writers:written", "crash"),
        ("staged", "after:prepare", "immediate"),  # the stage is emptied
        ("staged", "staged.merge", "fast"),
        ("staged", "commit", "fast"),  # in Decide; an emptied stage would leave it in doubt until the next start
        ("direct", "staged.merge", "crash"),
        ("direct", "commit", "crash"),
    ],
)
def test_a_server_that_goes_away_and_comes_back_changes_nothing(
    server: Any, url: str, monkeypatch: pytest.MonkeyPatch, delivery: str, place: str, how: str
) -> None:
    line = Line(url, delivery=delivery).start()
    line.to(10)
    timers = []

    def strike(*_connection: object) -> None:
        end(server, how)
        timers.append(later(0.3, server.start))

    if place == "commit":
        backend = line.store.database.backend
        commit = backend.commit

        def striking(*transaction: Any) -> None:
            backend.commit = commit  # type: ignore[method-assign]  # once
            strike()
            commit(*transaction)

        monkeypatch.setattr(backend, "commit", striking)
    else:
        assert at_failpoint(monkeypatch, place, strike) == []
    line.to(20)
    line.to(30)
    (timer,) = timers
    timer.join()
    line.close()
    assert_exact(url, 30)


def test_a_stage_that_a_crash_empties_under_the_decision_leaves_it_in_doubt_until_the_next_start(
    server: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(url, delivery="staged").start()
    line.to(10)
    timers = []

    def strike(*_connection: object) -> None:
        end(server, "crash")
        timers.append(later(0.3, server.start))

    at_failpoint(monkeypatch, "staged.merge", strike)
    with raises(InDoubt, "decision-unanswered"):
        line.to(20)
    timers[0].join()
    line.close()
    line = Line(url, delivery="staged").start(from_ledger=True)
    assert line.at == 10
    line.to(30)
    line.close()
    assert_exact(url, 30)


# failover


@pytest.fixture
def follower(server: Any, url: str, tmp_path: Path) -> Iterator[Any]:
    assert url  # the test's database comes first, since it comes along
    with standby(tmp_path / "follower", server) as follower:
        yield follower


def both(url: str, server: Any, follower: Any) -> str:
    """One URL for the cluster, the one that will be promoted first."""
    hosts, ports = zip(at(follower), at(server), strict=True)
    return with_parameters(url, host=",".join(hosts), port=",".join(ports))


def of(url: str, server: Any) -> str:
    host, port = at(server)
    return with_parameters(url, host=host, port=port)


def catch_up(server: Any, follower: Any) -> None:
    ((lsn,),) = sql(server.url, "SELECT pg_current_wal_lsn()")
    wait_until(lambda: sql(follower.url, f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'") == [(True,)], "catching up")


def promote(follower: Any) -> None:
    assert sql(follower.url, "SELECT pg_promote()") == [(True,)]


class Pair:
    """A pipeline of each delivery in one database, `a` and `b`."""

    def __init__(self, url: str) -> None:
        self.lines = Line(url, name="a").start(), Line(url, name="b", delivery="staged").start()

    def to(self, end: int) -> None:
        for line in self.lines:
            line.to(end)

    def struck_when_decided(self, end: int, strike: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Both decide their epoch, then comes the strike, then both go on. Returns what became of them."""
        became: list[str] = []

        def finish(line: Line, act: Callable[[], None]) -> None:
            at_failpoint(monkeypatch, "after:Decide", act)
            try:
                line.to(end)
                became.append("complete")
            except (DataLoss, CheckpointMismatch) as error:
                became.append(str(error))

        one, other = self.lines
        finish(one, lambda: finish(other, strike))
        return became

    def close(self) -> None:
        for line in self.lines:
            line.close()


def test_a_replica_that_had_caught_up_takes_over_between_decision_and_commit(
    server: Any, follower: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(both(url, server, follower))
    pair.to(10)
    with raises(Retriable, "postgres-read-only"):
        Line(of(url, follower), patience_s=0)
    at_the_standby = Line(with_parameters(of(url, follower), target_session_attrs="any"), name="a", patience_s=0)
    with raises(Retriable, "database-unavailable"):
        at_the_standby.start()
    at_the_standby.close()

    def fail_over() -> None:
        catch_up(server, follower)
        server.kill()
        promote(follower)

    assert pair.struck_when_decided(20, fail_over, monkeypatch) == ["complete", "complete"]
    pair.to(30)
    pair.close()
    assert_exact(of(url, follower), 30, "a", "b")


@pytest.mark.slow
def test_a_replica_promoted_before_it_had_caught_up_stops_the_pipeline_and_the_way_out_works(
    server: Any, follower: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, promoted = both(url, server, follower), of(url, follower)
    pair = Pair(cluster)
    pair.to(10)
    catch_up(server, follower)
    follower.stop()
    pair.to(20)  # acknowledged, and about to be lost

    def fail_over() -> None:
        server.kill()
        follower.start()
        promote(follower)

    of_store, of_sink = pair.struck_when_decided(30, fail_over, monkeypatch)
    assert "the store is an older copy (a restored backup, or a replica promoted" in of_store
    assert "this server is on timeline 2, and was on 1: a replica was promoted" in of_sink
    pair.close()
    assert sql(promoted, "SELECT max(epoch) FROM onefold_sinks.onefold_ledger") == [(1,)], "no ledger goes over a gap"
    assert_exact(promoted, 10, "a", "b")

    again = Line(cluster, name="a").start()
    again.at, again.batch = 20, 2  # where Spark's checkpoint goes on
    with pytest.raises(DataLoss, match="starts beyond the recorded end"):
        again.to(30)
    again.close()
    for name, delivery in (("a", "two_phase"), ("b", "staged")):
        rescued = Line(cluster, name=name, delivery=delivery).start(from_ledger=True)
        assert rescued.at == 10
        rescued.to(30)
        rescued.close()
    assert_exact(promoted, 30, "a", "b")


@pytest.mark.only_with_servers("containers", reason="cuts the network of the primary")
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_what_only_a_primary_acknowledged_that_is_now_cut_off_is_named_as_lost(
    server: Any, follower: Any, url: str, delivery: str
) -> None:
    """Nobody died: the primary is cut from its asynchronous standby, and then from the pipeline, which finds the other
    one promoted."""
    cluster = with_parameters(both(url, server, follower), tcp_user_timeout="2000", connect_timeout="2")
    line = Line(cluster, delivery=delivery).start()
    line.to(10)
    catch_up(server, follower)
    with server.cut(peer=follower), ExitStack() as cuts:
        line.to(20)  # acknowledged, and on its way to nobody
        cuts.enter_context(server.cut(peer=server.network.gateway))
        promote(follower)
        with pytest.raises(DataLoss, match=r"starts beyond the recorded end \(t/0: 20, not 10\)"):
            line.to(30)
        line.close()
    numbers = "SELECT count(*), max(id) FROM t"
    assert (sql(of(url, server), numbers), sql(of(url, follower), numbers)) == ([(20, 19)], [(10, 9)])
    rescued = Line(of(url, follower), delivery=delivery).start(from_ledger=True)
    assert rescued.at == 10, "what was lost is read again"
    rescued.to(30)
    rescued.close()
    assert_exact(of(url, follower), 30)


# nothing to spare


def test_slots_that_others_hold_are_named_and_waited_for(url: str) -> None:
    line = Line(url, patience_s=0).start()
    line.to(10)
    for number in range(SLOTS - 1):
        sql(url, f"BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'theirs {number}'")
    with raises(OutOfResources, "prepared-transactions-exhausted", "'theirs 0'", "'onefold'"):
        line.to(20)
    line.patience.patience_s = 30
    timer = later(0.5, lambda: sql(url, "ROLLBACK PREPARED 'theirs 0'"))
    line.to(20)
    timer.join()
    line.close()
    for number in range(1, SLOTS - 1):
        sql(url, f"ROLLBACK PREPARED 'theirs {number}'")
    assert_exact(url, 20)


def test_a_server_without_a_free_connection_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(url, "CREATE ROLE few LOGIN CONNECTION LIMIT 3; GRANT CREATE ON SCHEMA public TO few")
    sql(url, f"GRANT CREATE ON DATABASE {url.rpartition('/')[2]} TO few")
    as_few = with_parameters(url, user="few")
    line = Line(as_few).start()
    line.to(10)
    with ExitStack() as others:
        timers = []

        def take_them_all() -> None:
            line.close()
            for _ in range(3):
                others.enter_context(psycopg.connect(as_few))
            with raises(OutOfResources, "postgres-connections-exhausted"):
                line.sink.recover("t")
            with raises(OutOfResources, "postgres-connections-exhausted"):
                describe(PostgresSource(as_few, query="SELECT 1"))
            timers.append(later(0.5, others.close))

        at_failpoint(monkeypatch, "before:RunWriters", take_them_all)
        line.to(20)
        timers[0].join()
    line.close()
    assert_exact(url, 20)
    sql(url, "REASSIGN OWNED BY few TO onefold; DROP OWNED BY few; DROP ROLE few")


@pytest.fixture
def tables_disk(server: Any, url: str) -> Iterator[SmallDisk]:
    """A tablespace of 8 MB for the database's tables."""
    with small_disk(8, (server.home / "data").stat().st_uid) as disk:
        sql(server.url, f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
        sql(server.url, f"ALTER DATABASE {url.rpartition('/')[2]} SET default_tablespace = small")
        yield disk
        sql(server.url, f"ALTER DATABASE {url.rpartition('/')[2]} RESET default_tablespace")
        sql(url, "DROP SCHEMA public, onefold_sinks CASCADE")
        sql(server.url, "DROP TABLESPACE small")


@pytest.mark.only_with_servers("local", reason="the server's disk is a folder of this machine")
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_full_disk_loses_nothing_and_the_pipeline_goes_on_when_there_is_room(
    url: str, tables_disk: SmallDisk, delivery: str
) -> None:
    line = Line(url, delivery=delivery, patience_s=0).start()
    line.to(1000)
    with raises(OutOfResources, "postgres-resources-exhausted"):
        line.to(300_000)
    tables_disk.make_room()
    line.to(300_000)
    line.close()
    assert_exact(url, 300_000)


def test_a_limit_on_temporary_files_is_a_setting_and_no_full_disk(url: str) -> None:
    from onefold.clients.postgres import driver_errors

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET temp_file_limit = '100kB'; SET work_mem = '64kB'")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT n FROM generate_series(1, 1000000) n ORDER BY -n LIMIT 1 OFFSET 999999")
        assert isinstance(driver_errors.translate(caught.value, "test", connection), ConfigError)

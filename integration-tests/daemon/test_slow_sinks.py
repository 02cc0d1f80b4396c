"""`onefold run` where a sink is away or slow: intake waits, memory stays where it was, and every row comes once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.daemon_stubs import Asking
from harness.daemons import SQL, Daemon, Start, write
from harness.support import Rig

from bench.soak import memory_of

pytestmark = [pytest.mark.servers, pytest.mark.slow]
RECORD_BYTES = 5_000
BEFORE, MEANWHILE = 32_000, 40_000  # records: 160 MB before the sink is held up, and 200 MB meanwhile
AT_MOST = 4_000  # 20 MB an epoch
KINDS = ("itself", "jvm", "spark workers")
GROWTH_MB_MAX = 50.0  # of each kind: a quarter of what comes meanwhile
SETTLES_S = 4.0  # tasks that lost their server have ended, and the status knows what has changed
WATCHED_S = 8.0
TOLD_S_MAX = 60.0
AWAY = ("postgres-unreachable", "database-unavailable")  # of the sink, and of a store in its database
TABLES = {"direct": "", "spark": SQL}  # pipelines with their transformations; also their tables
SOON = '[restart]\nstrategy = "fixed_delay"\ndelay_s = 0.5\n'
SLOW = """
CREATE TABLE slowness (row_s float8 NOT NULL);
INSERT INTO slowness VALUES (0);
CREATE FUNCTION slowly(id bigint) RETURNS boolean LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_sleep(row_s) FROM public.slowness WHERE row_s > 0; RETURN true; END';
"""
Status = dict[str, dict[str, Any]]  # what the API says of each pipeline


def put_long(rig: Rig, count: int) -> None:
    """Records that are long by white space, which is as good JSON as without."""
    begin = len(rig.sent)
    rig.sent += [(i, i % 1009) for i in range(begin, begin + count)]
    for first in range(begin, begin + count, 4_000):
        some = rig.sent[first : first + 4_000]
        rig.put_values([(b'{"id":%d,"n":%d}' % each).ljust(RECORD_BYTES) for each in some])


def definitions(rig: Rig) -> list[Path]:
    """Of two pipelines in one daemon: on the direct path with its store in the sink's database, and through Spark's
    rows with one elsewhere."""
    tops = {"direct": "", "spark": f'store = "{rig.sqlite}"\n'}
    paths = []
    for name, tables in TABLES.items():
        path = write(rig, tables + SOON, f"patience_s = 4\n{tops[name]}", name, table=name, at_most=AT_MOST)
        table = f'table = "{name}"\n'
        text = path.read_text().replace(table, f'{table}delivery = "two_phase"\nconnect_timeout_s = 2\n')
        path.write_text(f'{text}settings = {{ "spark.driver.memory" = "512m" }}\n')
        paths.append(path)
    return paths


def epochs(daemon: Daemon) -> dict[str, int]:
    """The last complete one of each pipeline."""
    done = [event for event in daemon.events() if event["logger"] == "onefold.epochs"]
    return {name: max((int(str(e["epoch"])) for e in done if e["pipeline"] == name), default=0) for name in TABLES}


def held_up(rig: Rig, daemon: Daemon, is_told: Callable[[Status], bool]) -> list[Status]:
    """The daemon's status, time and again, from when a sink is held up until the status tells it, and `WATCHED_S` at
    least. Meanwhile more records come, and its memory must not grow by them."""
    ask = Asking(daemon.url)
    began_s = time.monotonic()
    found = [memory_of(daemon.driver, 0)]
    said: list[Status] = []
    filling = threading.Thread(target=put_long, args=(rig, MEANWHILE))
    filling.start()
    while (now_s := time.monotonic() - began_s) < WATCHED_S or filling.is_alive() or not is_told(said[-1]):
        assert now_s < TOLD_S_MAX, said[-1]
        said.append({one["name"]: one for one in ask.get("/pipelines")})
        found.append(memory_of(daemon.driver, round(now_s, 1)))
        time.sleep(0.2)
    filling.join()
    grown = {kind: max(one.mb[kind] for one in found) - found[0].mb[kind] for kind in KINDS}
    print(f"grown by {grown} MB, from {found[0]} to {found[-1]}")
    assert max(grown.values()) < GROWTH_MB_MAX, found
    return said


def assert_all_arrives_once(rig: Rig, daemon: Daemon) -> None:
    def count(table: str) -> int:
        return int(rig.sql(f"SELECT count(*) FROM {table}")[0][0])

    daemon.until(lambda: all(count(table) >= len(rig.sent) for table in TABLES), "all rows")
    daemon.stop()
    assert all(rig.rows(table) == rig.sent for table in TABLES)
    assert rig.prepared() == []


def says_that_it_is_away(said: Status) -> bool:
    return all(one["error"] and one["error"]["code"] in AWAY for one in said.values())


def says_that_an_epoch_runs(said: Status) -> bool:
    return all(
        (one["state"], one["error"], one["counts"]["in_progress"]) == ("running", None, 1)
        and (one["behind"] or {"record": 0})["record"] > 2 * AT_MOST
        for one in said.values()
    )


def test_a_sink_that_is_away_holds_the_intake_and_grows_no_memory_and_all_arrives_once_when_it_is_back(
    rig: Rig, start: Start, postgres_server: Any
) -> None:
    put_long(rig, BEFORE)
    daemon = start(*definitions(rig))
    daemon.until(lambda: min(epochs(daemon).values()) >= 4, "four epochs")
    postgres_server.kill()
    try:
        time.sleep(SETTLES_S)
        stood = epochs(daemon)
        said = held_up(rig, daemon, says_that_it_is_away)
        now = epochs(daemon)
    finally:
        postgres_server.start()
    assert now == stood
    assert len({str(each["spark"]["positions"]) for each in said}) == 1 and said[0]["spark"]["positions"]
    assert_all_arrives_once(rig, daemon)


def test_a_slow_sink_holds_the_intake_and_grows_no_memory_and_all_arrives_once(rig: Rig, start: Start) -> None:
    put_long(rig, BEFORE)
    rig.sql(SLOW)
    for table in TABLES:
        rig.sql(f"CREATE TABLE {table} (id bigint CHECK (slowly(id)), n bigint)")
    daemon = start(*definitions(rig))
    daemon.until(lambda: min(epochs(daemon).values()) >= 4, "four epochs")
    rig.sql("UPDATE slowness SET row_s = 0.02")  # an epoch takes 40 s at least
    time.sleep(SETTLES_S)
    stood = epochs(daemon)
    held_up(rig, daemon, says_that_an_epoch_runs)
    now = epochs(daemon)
    rig.sql("UPDATE slowness SET row_s = 0")
    assert all(now[name] <= stood[name] + 1 for name in TABLES)
    assert_all_arrives_once(rig, daemon)

"""`onefold run` on disks that fill up: an error says so, nothing is half-committed, and it goes on with room."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemons import FILE, SQL, Daemon, Start, is_whole, rows, wait_for_rows, write
from harness.disks import SmallDisk, small_disk
from harness.support import Rig

from onefold.core import OutOfResources

pytestmark = [pytest.mark.servers, pytest.mark.slow]
ONCE = '[restart]\nstrategy = "none"\n'
IMPATIENT = "patience_s = 2\n"
SHUFFLES = '[[steps]]\nsql = "SELECT id, n FROM source DISTRIBUTE BY id"\nschema = "id long, n long"\n'
NO_RESTART = '[restart]\nstrategy = "none"\n'


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(16) as disk:
        yield disk


def goes_on(rig: Rig, daemon: Daemon, disk: SmallDisk, code: str, done: Callable[[], bool], count: int = 2000) -> None:
    """The disk fills up under the pipeline, which says so; then there is room."""
    disk.fill()
    rig.put(count)
    daemon.until(lambda: daemon.says(code), f"an error {code}")
    assert "Traceback" not in daemon.text()
    assert not done()
    disk.make_room()
    rig.put(100)
    daemon.until(done, "all rows")
    daemon.stop()


@pytest.mark.parametrize("tables", ["", SQL], ids=["direct", "sql"])
def test_a_full_disk_of_sparks_checkpoint_is_named_and_the_pipeline_goes_on_when_there_is_room(
    rig: Rig, start: Start, disk: SmallDisk, tables: str
) -> None:
    rig.put(100)
    daemon = start(write(rig, tables, top=f'checkpoint = "{disk.folder}/checkpoint"\n{IMPATIENT}'))
    wait_for_rows(rig, daemon, 100)
    goes_on(rig, daemon, disk, "spark-disk-full", lambda: len(rows(rig)) == len(rig.sent))
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def test_a_full_disk_of_sparks_own_files_is_named_and_the_pipeline_goes_on_when_there_is_room(
    rig: Rig, start: Start, disk: SmallDisk
) -> None:
    rig.put(100)
    path = write(rig, SHUFFLES, top=IMPATIENT, at_most=50_000)
    path.write_text(f'{path.read_text()}settings = {{ "spark.local.dir" = "{disk.folder}" }}\n')
    daemon = start(path)
    wait_for_rows(rig, daemon, 100)
    goes_on(rig, daemon, disk, "spark-disk-full", lambda: len(rows(rig)) == len(rig.sent), 50_000)
    assert str(disk.folder) in daemon.text()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def test_a_full_disk_of_a_sqlite_sink_and_store_is_named_and_the_pipeline_goes_on_when_there_is_room(
    rig: Rig, start: Start, disk: SmallDisk
) -> None:
    database = disk.folder / "shop.db"
    rig.put(100)
    path = write(rig, top=IMPATIENT)
    of_postgres = f'kind = "postgres"\nurl = "{rig.url}"\n'
    path.write_text(path.read_text().replace(of_postgres, f'kind = "sql"\nurl = "sqlite:///{database}"\n'))

    def found() -> list[tuple[int, int]]:
        return in_sqlite(database)

    daemon = start(path)
    daemon.until(lambda: len(found()) == 100, "the first rows")
    goes_on(rig, daemon, disk, "database-resources-exhausted", lambda: len(found()) == len(rig.sent))
    assert str(database) in daemon.text()
    assert found() == sorted(rig.sent)


def in_sqlite(database: Path) -> list[tuple[int, int]]:
    if not database.exists():
        return []
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            return sorted(connection.execute("SELECT id, n FROM rows"))
    except sqlite3.OperationalError:
        return []  # there is no such table yet


def test_without_restarts_a_full_disk_ends_the_process_as_what_may_pass(
    rig: Rig, start: Start, disk: SmallDisk
) -> None:
    rig.put(100)
    path = write(rig, NO_RESTART, top=f'checkpoint = "{disk.folder}/checkpoint"\n{IMPATIENT}')
    daemon = start(path)
    wait_for_rows(rig, daemon, 100)
    disk.fill()
    rig.put(2000)
    assert daemon.wait() == OutOfResources.exit_code, daemon.text()
    assert daemon.says("spark-disk-full") and "Traceback" not in daemon.text()
    disk.make_room()
    again = start(path)
    wait_for_rows(rig, again, len(rig.sent))
    again.stop()
    assert rows(rig) == sorted(rig.sent) and is_whole(rig)


def test_a_start_without_room_for_temporary_files_ends_as_what_may_pass(tmp_path: Path, start: Start) -> None:
    nowhere = {"topic": "orders", "servers": "127.0.0.1:1", "url": "postgresql://nobody@127.0.0.1:1/shop"}
    path = tmp_path / "orders.toml"
    path.write_text(FILE.format(name="orders", table="rows", at_most=1, top="", spark="", tables=ONCE, **nowhere))
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))  # no file takes a byte
    try:
        full = start(path, options=["--listen", "none"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert full.wait() == OutOfResources.exit_code, full.text()
    assert "[spark-disk-full]" in full.text() and "Traceback" not in full.text()

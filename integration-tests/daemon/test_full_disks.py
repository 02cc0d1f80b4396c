"""`onefold run` on disks that fill up: an error says so, nothing is half-committed, and it goes on with room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness.daemons import SQL, Daemon, Start, is_whole, rows, wait_for_rows, write
from harness.disks import SmallDisk, small_disk
from harness.support import Rig

pytestmark = [pytest.mark.servers, pytest.mark.slow]
IMPATIENT = "patience_s = 2\n"


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

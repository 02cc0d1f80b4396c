"""The note of which process runs a pipeline: what it says of a process that lives, was killed, or is elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onefold.core import Fenced, Generation
from onefold.store import drivers
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import Driver, DriverNote, driver_of

BEGINS = """
import sys
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import DriverNote
store = CheckpointStore(sys.argv[1])
DriverNote(store).began(store.acquire("p", 0))
print("began", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[CheckpointStore]:
    with closing(CheckpointStore(url)) as store:
        yield store


def of(store: CheckpointStore) -> Driver | None:
    return driver_of(store, "p", store.facts("p").generation)


def begun(url: str) -> subprocess.Popen[bytes]:
    """A process that runs the pipeline until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGINS, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
    )
    assert process.stdout is not None and process.stdout.readline() == b"began\n"
    return process


def ends(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(30)


def test_a_driver_is_known_from_its_start_to_its_end_and_a_successor_takes_its_place(store: CheckpointStore) -> None:
    first, second = DriverNote(store), DriverNote(store)
    first.began(store.acquire("p", 0))
    assert (found := of(store)) is not None and found.is_alive()
    successor = store.acquire("p", 0)
    assert of(store) is None, "what took it over is no driver, and has fenced it"
    with pytest.raises(Fenced):
        first.began(Generation("p", successor.number - 1, "another"))
    second.began(successor)
    first.ended()
    assert (found := of(store)) is not None and found.generation == successor.number, "the fenced one cannot take it"
    second.ended()
    assert of(store) is None


def test_a_process_that_lives_is_noticed_by_others_and_one_that_was_killed_is_not(
    url: str, store: CheckpointStore
) -> None:
    process = begun(url)
    try:
        assert (found := of(store)) is not None and (found.pid, found.is_alive()) == (process.pid, True)
    finally:
        process.kill()
    deadline_s = time.monotonic() + 30
    while of(store) is not None:  # a process that nobody has waited for yet, as of a supervisor
        assert time.monotonic() < deadline_s
    assert process.returncode is None
    ends(process)
    assert of(store) is None
    assert json.loads(drivers.pinned(store, "p", drivers.PIN) or "{}")["pid"] == process.pid, "its note is still there"


def test_a_job_that_ends_without_closing_its_pipeline_says_so_all_the_same(url: str, store: CheckpointStore) -> None:
    process = begun(url)
    ends(process)
    assert (process.returncode, drivers.pinned(store, "p", drivers.PIN)) == (0, "")


def test_a_process_id_that_is_used_again_is_another_process_and_another_machine_is_not_known(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Driver.here(1)
    assert here.is_alive() is True
    assert Driver(1, here.host, here.machine, here.pid, "7").is_alive() is False
    assert Driver(1, here.host, here.machine, 1, here.born).is_alive() is False, "process 1 is not ours"
    DriverNote(store).began(store.acquire("p", 0))
    monkeypatch.setattr(drivers, "_machine", lambda: "another")
    found = of(store)
    assert found is not None and found.is_alive() is None

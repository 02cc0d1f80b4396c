"""The folder of a driver for its workers' databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onefold.engine.state.rocks.scratch import scratch

HOLD = """
import sys
from onefold.engine.state.rocks.scratch import scratch
with scratch() as it:
    (it.folder / "database").mkdir()
    print(it.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def driver(home: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that has such a folder, and the folder."""
    environment = {**os.environ, "TMPDIR": str(home)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_it_is_this_users_alone_and_goes_with_its_driver(home: Path) -> None:
    with scratch() as mine:
        assert mine.folder.parent == home
        assert mine.folder.stat().st_mode & 0o777 == 0o700
        (mine.folder / "database").mkdir()
        (mine.folder / "database" / "000012.sst").write_bytes(b"rows")
        mine.empty()
        assert not any(mine.folder.iterdir())
        (mine.folder / "database").mkdir()
    assert not any(home.iterdir())


def test_a_start_removes_those_of_drivers_that_were_killed_and_no_other(home: Path) -> None:
    with driver(home) as (lives, its), driver(home) as (dies, left):
        dies.send_signal(signal.SIGKILL)
        dies.wait()
        assert sorted(home.iterdir()) == sorted([its, left])
        with scratch() as mine:
            assert sorted(home.iterdir()) == sorted([its, mine.folder])
            assert (its / "database").is_dir()
        assert lives.poll() is None


def test_no_link_is_followed(home: Path) -> None:
    theirs = home / "theirs"
    theirs.mkdir()
    (theirs / "rows").touch()
    (home / "onefold-rocksdb-link").symlink_to(theirs)
    (home / "onefold-rocksdb-file").touch()
    with scratch():
        pass
    assert (theirs / "rows").exists()
    assert len([*home.iterdir()]) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_another_users_folder_stays(home: Path) -> None:
    theirs = home / "onefold-rocksdb-theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with scratch():
        assert theirs.exists()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(**arguments: str) -> str:
        made.append(original(**arguments))
        if len(made) == 1:
            with scratch():  # by a start beside this one
                assert not Path(made[0]).exists()
        return made[-1]

    original = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", make)
    with scratch() as mine:
        assert str(mine.folder) == made[-1]
        assert mine.folder.exists()
    assert len(made) == 3

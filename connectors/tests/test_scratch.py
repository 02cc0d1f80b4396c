"""Temporary folders of commands: what a killed process leaves is removed, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onefold.spark.session import LOCK, temporary_folder

ANOTHER = """
import sys, tempfile
from onefold.spark.session import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder(sys.argv[2]) as folder:
    (folder / "scratch" / "blockmgr").mkdir(parents=True)
    (folder / "spark.log").write_text("a line")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(parent: Path, prefix: str = "onefold-run-") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with such a folder, and the folder. It is killed in the end."""
    command = [sys.executable, "-c", ANOTHER, str(parent), prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_that_of_a_live_one_is_not(parent: Path) -> None:
    with another(parent) as (process, folder):
        with temporary_folder("onefold-run-") as mine:
            assert {*parent.iterdir()} == {folder, mine}
        assert [*parent.iterdir()] == [folder] and (folder / "spark.log").exists()
        process.kill()
        process.wait()
        with temporary_folder("onefold-verify-"):
            assert folder.exists(), "only those of the same command"
        with temporary_folder("onefold-run-") as mine:
            assert [*parent.iterdir()] == [mine]
    assert [*parent.iterdir()] == []


def test_a_live_folder_of_the_same_process_stays(parent: Path) -> None:
    with temporary_folder("onefold-run-") as first, temporary_folder("onefold-run-") as second:
        assert {*parent.iterdir()} == {first, second}


def test_a_folder_without_a_lock_or_behind_a_link_is_somebody_elses(parent: Path) -> None:
    home, unlocked = parent / "home", parent / "onefold-run-mine"
    for folder in (home, unlocked):
        folder.mkdir()
        (folder / "thesis.txt").touch()
    (home / LOCK).touch()
    (parent / "onefold-run-link").symlink_to(home)
    with temporary_folder("onefold-run-"):
        pass
    assert (home / "thesis.txt").exists() and (unlocked / "thesis.txt").exists()


def test_a_link_in_an_abandoned_folder_goes_and_what_it_names_stays(parent: Path) -> None:
    home, abandoned = parent / "home", parent / "onefold-run-killed"
    for folder in (home, abandoned):
        folder.mkdir()
    (home / "thesis.txt").touch()
    (abandoned / LOCK).touch()
    (abandoned / "link").symlink_to(home)
    with temporary_folder("onefold-run-"):
        assert not abandoned.exists()
    assert (home / "thesis.txt").exists()

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.errors import raises

from onefold.local.resources import choose_port, exclusive, is_free, require_space
from onefold.local.server_errors import LocalServerError, clear_disk_errors


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_that_was_asked_for_is_an_error_that_names_it_and_its_holder(taken: int) -> None:
    with pytest.raises(LocalServerError) as raised:
        choose_port("kafka", taken, None)
    assert f"port {taken} for kafka is taken" in str(raised.value)
    assert f"by process {os.getpid()}" in str(raised.value)


def test_the_port_of_the_last_start_is_taken_again() -> None:
    port = choose_port("kafka", None, None)
    assert choose_port("kafka", None, port) == port


def test_another_free_port_is_chosen_if_the_one_of_the_last_start_is_taken(taken: int) -> None:
    port = choose_port("kafka", None, taken)
    assert port != taken
    assert is_free(port)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_room_on_the_disk_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 5 << 20))
    with raises(LocalServerError, "disk-space-low"):
        require_space(tmp_path / "not-there-yet", 1 << 30, "starting kafka")


def test_a_disk_that_becomes_full_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with raises(LocalServerError, "disk-full", f"{tmp_path}"), clear_disk_errors(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_of_the_system_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="I/O error"), clear_disk_errors(tmp_path):
        raise OSError(errno.EIO, "I/O error")


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock", 0, "one"),
        raises(LocalServerError, "locked-by-another-process"),
        exclusive(tmp_path / "lock", 0, "two"),
    ):
        pass
    with exclusive(tmp_path / "lock", 0, "three"):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from onefold.local.resources import exclusive\n"
            "with exclusive(Path(sys.argv[1]), 0, 'child'): print('held', flush=True); time.sleep(60)",
            str(tmp_path / "lock"),
        ],
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LocalServerError), exclusive(tmp_path / "lock", 0, "parent"):
            pass
        holder.kill()
    with exclusive(tmp_path / "lock", 0, "parent"):
        pass

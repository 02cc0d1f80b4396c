""".ci/run: what keeps its tests in containers from running does not fail it, and a test that fails does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci/run"
LAST = "== 1 passed in 1 s =="
AT_ONCE = 'while [[ $1 == -* ]]; do shift; done\nshift\nexec "$@"'  # a `timeout` that only runs the command
WORKS = {"make": f'[ "$1" != test-all ] || echo "{LAST}"', "engine": "", "timeout": AT_ONCE}


def ci_run(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """The script in an empty checkout, with these programs in the place of the machine's, and of .ci/engine."""
    (folder / ".ci").mkdir()
    shutil.copy(SCRIPT, folder / ".ci/run")
    for name, text in {**WORKS, "chromium": "", "apt-get": "exit 1", **programs}.items():
        program = folder / (".ci/engine" if name == "engine" else name)
        program.write_text(f'#!/bin/bash\necho "{name} $*" >>{folder}/calls\n{text}\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        [folder / ".ci/run"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def calls(folder: Path, *names: str) -> list[str]:
    return [line for line in (folder / "calls").read_text().splitlines() if line.startswith(names)]


def test_where_there_is_an_engine_a_few_tests_run_in_containers_and_the_engine_is_stopped_before_the_last_run(
    tmp_path: Path,
) -> None:
    ran = ci_run(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "left out" not in ran.stdout
    assert [call.split()[:2] for call in calls(tmp_path, "make", "engine")] == [
        ["make", "check"],
        ["make", "test"],
        ["engine", "start"],
        ["make", "images"],
        ["make", "test-containers"],
        ["engine", "stop"],
        ["make", "test-all"],
        ["engine", "stop"],
    ]
    assert ran.stdout.splitlines()[-1] == LAST


@pytest.mark.parametrize(
    ("programs", "says"),
    [
        ({"engine": '[ "$1" = stop ] || exit 3'}, "there is no container engine here"),
        (
            {"make": f'case $1 in images) exit 1 ;; test-all) echo "{LAST}" ;; esac'},
            "were not built in ten minutes and two tries",
        ),
        ({"timeout": f'[[ "$*" != *"make images"* ]] || exit 124\n{AT_ONCE}'}, "were not built in ten minutes"),
        ({"timeout": f'[[ "$*" != *test-containers* ]] || exit 124\n{AT_ONCE}'}, "no time left for them"),
    ],
)
def test_an_engine_or_an_image_that_cannot_be_had_and_time_that_is_over_fail_nothing(
    tmp_path: Path, programs: dict[str, str], says: str
) -> None:
    ran = ci_run(tmp_path, **programs)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert says in ran.stdout
    assert ran.stdout.splitlines()[-1] == LAST


def test_a_download_that_breaks_off_once_is_tried_again(tmp_path: Path) -> None:
    once = f'[ "$1" != images ] || [ "$(grep -c "make images" {tmp_path}/calls)" -gt 1 ] || exit 1\n{WORKS["make"]}'
    ran = ci_run(tmp_path, make=once)
    assert ran.returncode == 0
    assert len(calls(tmp_path, "make test-containers")) == 1


def test_a_test_in_containers_that_fails_fails_all(tmp_path: Path) -> None:
    ran = ci_run(tmp_path, make='[ "$1" != test-containers ] || exit 2')
    assert ran.returncode == 2
    assert not calls(tmp_path, "make test-all")
    assert calls(tmp_path, "engine stop")

"""docs/containers.md: its commands are typed, and answer what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from harness.transcripts import Shell, check, steps

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("containers")]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/containers.md"
RUN_S = 900.0  # the first start builds images
# A terminal is what they would ask for, and there is none. docker-compose 1.29 has a name of its own.
TYPED = """docker() {
  [ "$1" = compose ] || { command docker "$@"; return; }
  shift
  case $1 in exec | run) set -- "$1" -T "${@:2}" ;; esac
  command COMPOSE "$@"
}"""


def _compose() -> list[str]:
    """The Compose that there is, v2 first."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
        ):
            return command
    pytest.skip("neither Compose v2 nor docker-compose is here")


def _remove_left_ones(compose: list[str]) -> None:
    """The stacks of tests that were killed: they would start again with the engine."""
    named = ["docker", "ps", "--all", "--format", '{{.Label "com.docker.compose.project"}}']
    projects = set(subprocess.run(named, capture_output=True, text=True, check=True).stdout.split())
    for project in projects:
        left = re.fullmatch(r"onefold-test-(\d+)", project)
        if left and not psutil.pid_exists(int(left[1])):
            _down(compose, {**os.environ, "COMPOSE_PROJECT_NAME": project})


def _down(compose: list[str], environment: dict[str, str]) -> None:
    command = [*compose, "down", "--volumes", "--remove-orphans", "--timeout", "5"]
    subprocess.run(command, cwd=ROOT / "compose", env=environment, timeout=300, check=True, capture_output=True)


@pytest.fixture
def shell() -> Iterator[Shell]:
    """In a project of its own, which is removed at the end."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("no Docker engine answers")
    compose = _compose()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    project = f"onefold-test-{os.getpid()}"
    _remove_left_ones(compose)
    environment = {**os.environ, "COMPOSE_PROJECT_NAME": project, "STATUS_PORT": str(port)}
    try:
        with closing(Shell(ROOT, environment)) as shell:
            shell.run(TYPED.replace("COMPOSE", " ".join(compose)))
            yield shell
    finally:
        _down(compose, environment)


def test_a_million_rows_are_exact_after_kills_of_daemon_worker_and_postgres(shell: Shell) -> None:
    for step in steps(PAGE.read_text()):
        check(step, shell.run(step.command, RUN_S))

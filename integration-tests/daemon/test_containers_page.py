"""docs/containers.md: its commands are typed, and answer what the page shows."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from harness.transcripts import Shell, check, steps

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("containers")]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/containers.md"
RUN_S = 1800.0  # the first start builds images
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
    project = f"onefold-test-{uuid.uuid4().hex[:8]}"
    environment = {**os.environ, "COMPOSE_PROJECT_NAME": project, "STATUS_PORT": str(port)}
    try:
        with closing(Shell(ROOT, environment)) as shell:
            shell.run(TYPED.replace("COMPOSE", " ".join(compose)))
            yield shell
    finally:
        down = [*compose, "down", "--volumes", "--remove-orphans", "--timeout", "5"]
        subprocess.run(down, cwd=ROOT / "compose", env=environment, timeout=300, check=True, capture_output=True)


def test_a_million_rows_are_exact_after_kills_of_daemon_worker_and_postgres(shell: Shell) -> None:
    for step in steps(PAGE.read_text()):
        check(step, shell.run(step.command, RUN_S))

"""Pages of commands and what they answer: the lines `$ ...` of their console blocks, typed into one shell.

In what a page shows, `...` stands for anything, as in doctest.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Shell", "Step", "check", "steps"]

_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = "@@@ ended with"
_KILLED = re.compile(r"^\S+: line \d+: +\d+ (Killed|Terminated) .*\n", re.MULTILINE)  # what a shell adds by itself
_LIKE_DOCTEST = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    command: str
    shown: str


def steps(page: str) -> list[Step]:
    """A command may go on in the next line, behind a backslash."""
    found = []
    for block in _BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, end = re.subn(r"^((?:[^\n]*\\\n)*[^\n]*)\n.*", r"\1", part, flags=re.DOTALL)
            assert end == 1, part
            found.append(Step(command, part[len(command) + 1 :]))
    return found


class Shell:
    """One bash, in which this Python's commands are the first on PATH. `close` ends it with all that it started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        path = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
        script, self._script = os.pipe()  # not its standard input, which commands read
        self._process = subprocess.Popen(
            ["bash", f"/dev/fd/{script}"],
            cwd=folder,
            env={**environment, "PATH": path},
            pass_fds=[script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        os.close(script)

    def run(self, command: str, within_s: float = 240) -> str:
        """What it prints. Fails where its exit code is not 0, or it takes longer."""
        os.write(self._script, f"{command}\ncode=$?; echo; echo '{_MARK}' $code\n".encode())
        late = threading.Timer(within_s, self._kill)
        late.start()
        try:
            lines = list(self._until_mark())
        finally:
            late.cancel()
        said = _KILLED.sub("", "".join(lines[:-1]))
        assert lines and lines[-1] == f"{_MARK} 0\n", f"$ {command}\n{said}{lines[-1] if lines else ''}"
        return said

    def close(self) -> None:
        os.close(self._script)
        self._kill()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _until_mark(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line
            if line.startswith(_MARK):
                return

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def check(step: Step, said: str) -> None:
    checker = doctest.OutputChecker()
    is_as_shown = checker.check_output(step.shown.strip(), said.strip(), _LIKE_DOCTEST)
    assert is_as_shown, f"$ {step.command}\n{said}\nThe page shows:\n{step.shown}"

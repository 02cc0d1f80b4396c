"""Pages of commands and what they answer: the lines `$ ...` of their console blocks, typed into one shell.

In what a page shows, `...` stands for anything, as in doctest. A page may be made of a template: what it shows is what
was said, where the template has `<a name>`. Lines `~ ...` of a template are typed, and not shown.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Shell", "Step", "check", "filled", "is_filled", "shown", "steps"]

_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- ([\w.]+) -->\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = "@@@ ended with"
_KILLED = re.compile(r"^\S+: line \d+: +\d+ (Killed|Terminated) .*\n", re.MULTILINE)  # what a shell adds by itself
_LIKE_DOCTEST = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    command: str
    shown: str = ""
    is_typed_by_readers: bool = True


def steps(page: str) -> list[Step]:
    """A command may go on in the next line, behind a backslash. A block below `<!-- NAME -->` is saved as that file."""
    found: list[tuple[int, list[Step]]] = [(block.start(), _of_block(block[1])) for block in _BLOCK.finditer(page)]
    for file in _FILE.finditer(page):
        save = Step(f"cat > {file[1]} <<'END'\n{file[2]}END", is_typed_by_readers=False)
        found.append((file.start(), [save]))
    return [step for _, of_block in sorted(found, key=lambda one: one[0]) for step in of_block]


def _of_block(block: str) -> list[Step]:
    found = []
    _, *parts = re.split(r"^([$~]) ", block, flags=re.MULTILINE)
    for mark, part in zip(parts[::2], parts[1::2], strict=True):
        command, end = re.subn(r"^((?:[^\n]*\\\n)*[^\n]*)\n.*", r"\1", part, flags=re.DOTALL)
        assert end == 1, part
        found.append(Step(command, part[len(command) + 1 :], mark == "$"))
    return found


def shown(template: str, said: str) -> str:
    """The lines of `said` that the template shows, cut where it says `...`. Fails where it shows others."""
    lines = template.strip("\n").splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else _pattern(line) for line in lines) or r"\s*"
    found = re.fullmatch(pattern, said.strip("\n") + "\n")
    assert found, f"{said}\nThe template shows:\n{template}"
    kept = iter(found.groups())
    return "".join(
        "...\n" if line == "..." else "...".join(next(kept) for _ in line.split("...")).rstrip() + "\n"
        for line in lines
    )


def _pattern(line: str) -> str:
    """One group for each part between two cuts."""
    parts = []
    for part in line.split("..."):
        opened = re.split(r"(<[a-z ]+>| +)", part)
        texts = (r" +" if one.isspace() else r".+?" if one.startswith("<") else re.escape(one) for one in opened)
        parts.append(f"({''.join(texts)})")
    return r".*?".join(parts) + r" *\n"


def filled(template: str, answers: Iterable[str]) -> str:
    """The page of a template, with these answers to the commands that readers type."""
    coming = iter(answers)

    def block(found: re.Match[str]) -> str:
        typed = [step for step in _of_block(found[1]) if step.is_typed_by_readers]
        texts = [f"$ {step.command}\n{shown(step.shown, next(coming, ''))}" for step in typed]
        return f"```console\n{''.join(texts)}```"

    return _BLOCK.sub(block, template)


def is_filled(template: str, page: str) -> bool:
    """Whether the page is this template's, with whatever answers."""
    try:
        return page == filled(template, [step.shown for step in steps(page) if step.is_typed_by_readers])
    except AssertionError:
        return False


class Shell:
    """One bash, in which this Python's commands are the first on PATH. `close` ends it with all that it started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
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

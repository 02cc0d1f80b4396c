"""Installs the artifacts into a clean environment, and uses them there: no file of the checkout is in reach."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from building import ROOT, Artifacts, run
from contents import VERSION

_INSTALL_S_MAX = 1800
_DEMO_S_MAX = 1500
_COMMAND_S_MAX = 120
_NO_COMPILER = {"CC": "no-such-compiler"}
_WHERE = """\
import importlib.metadata, importlib.util, sys
for name in sys.argv[1:]:
    for place in importlib.util.find_spec(name).submodule_search_locations:
        print(place)
"""


class Refuted(Exception):
    """An artifact does not do what it should; the text says which, and what it did instead."""


class CleanEnvironment:
    """A virtual environment in `folder`, with its own pip, and none of the variables that lead to the checkout.

    Whatever is installed from the index has the version that requirements.lock names.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        folder.chmod(0o755)  # as root, Postgres runs as another user
        run([str(python), "-m", "venv", str(folder / "venv")], ROOT)
        pins = re.findall(r"^([A-Za-z0-9._-]+==[^\\\n]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{pin.strip()}\n" for pin in pins))
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ONEFOLD_", "VIRTUAL_ENV", "SPARK_"))
        }
        # PIP_CONSTRAINT also holds for what builds a source distribution.
        self._environment = {**kept, "PIP_CONSTRAINT": str(constraints), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(
        self, command: Sequence[str], timeout_s: float = _COMMAND_S_MAX, variables: Mapping[str, str] | None = None
    ) -> str:
        """What it printed. `command[0]` is a program of the virtual environment."""
        program = str(self._folder / "venv/bin" / command[0])
        started = subprocess.Popen(
            [program, *command[1:]],
            cwd=self._folder,
            env={**self._environment, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = started.communicate(timeout=timeout_s)[0].strip()
        except subprocess.TimeoutExpired:
            started.terminate()  # the demo then stops its servers
            said = started.communicate()[0].strip()
            raise Refuted(f"{' '.join(command)} did not end in {timeout_s:.0f} s:\n{said[-4000:]}") from None
        if started.returncode != 0:
            raise Refuted(f"{' '.join(command)} ended with exit code {started.returncode}:\n{said[-4000:]}")
        return said

    def install(self, artifact: Path, variables: Mapping[str, str] | None = None) -> None:
        """In the place of the one before, with whatever it depends on."""
        self.run(["python", "-m", "pip", "uninstall", "--quiet", "--yes", "onefold"])
        asked = ["--quiet", f"onefold[all] @ {artifact.as_uri()}"]
        if artifact.suffix != ".whl":
            asked.insert(0, "--no-cache-dir")  # it has the wheel of an earlier file of this name
        self.run(["python", "-m", "pip", "install", *asked], _INSTALL_S_MAX, variables)
        self.run(["python", "-m", "pip", "check"])

    def must_work(self, *, compiled: bool) -> None:
        parts = sorted(path.parent.name for path in ROOT.glob("*/onefold/*/py.typed"))
        places = self.run(["python", "-c", _WHERE, *(f"onefold.{part}" for part in parts)]).splitlines()
        if astray := [place for place in places if not Path(place).is_relative_to(self._folder / "venv")]:
            raise Refuted(f"it runs from {', '.join(astray)}, not from what was installed")
        if (said := self.run(["onefold", "--version"])) != f"onefold {VERSION}":
            raise Refuted(f"onefold --version says {said!r}, not 'onefold {VERSION}'")
        if "Usage: onefold" not in (said := self.run(["onefold", "--help"])):
            raise Refuted(f"onefold --help says {said!r}")
        said = self.run(["python", "-m", "onefold.sources.compiled"])
        if ("in compiled batches" in said) != compiled:
            raise Refuted(f"the compiled fetch should be {'found' if compiled else 'left out'}, and it says: {said}")

    def demo(self, arguments: Sequence[str]) -> None:
        self.run(["onefold", "demo", "--dir", "demo", *arguments], _DEMO_S_MAX)
        shutil.rmtree(self._folder / "demo")


def try_out(artifacts: Artifacts, folder: Path, python: Path, tell: Callable[[str], None]) -> None:
    """Raises `Refuted` at the first that does not do what it should. Tells each step with its seconds."""
    compiler = runpy.run_path(f"{ROOT}/sources/onefold/sources/native/building.py")["compiler"]()
    clean = CleanEnvironment(folder, python)

    def step(artifact: Path, what: str, *, compiled: bool, demo: Sequence[str] | None = None, **variables: str) -> None:
        tell(f"trying   {artifact.name}: {what}")
        began = time.monotonic()
        try:
            clean.install(artifact, variables)
            clean.must_work(compiled=compiled)
            if demo is not None:
                clean.demo(demo)
        except Refuted as why:
            raise Refuted(f"{artifact.name}, {what}: {why}") from None
        tell(f"         it does, after {time.monotonic() - began:.0f} s")

    step(artifacts.platform, "finds the compiled fetch; onefold demo", compiled=True, demo=())
    short = ("--rows", "100000", "--kills", "8")
    step(artifacts.pure, f"finds no compiled fetch; onefold demo {' '.join(short)}", compiled=False, demo=short)
    if compiler is not None:
        step(artifacts.sdist, "compiles the fetch with the machine's compiler", compiled=True)
    step(artifacts.sdist, "installs without a compiler, and without the fetch", compiled=False, **_NO_COMPILER)

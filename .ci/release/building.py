"""Builds the source distribution from the checkout, and both wheels from the unpacked source distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BUILD_S_MAX = 300


@dataclass(frozen=True, slots=True)
class Artifacts:
    sdist: Path
    platform: Path  # the wheel with the compiled fetch
    pure: Path  # the one without

    def __iter__(self) -> Iterator[Path]:
        return iter((self.sdist, self.platform, self.pure))


def committed_s() -> int:
    """When the last commit was made, in seconds since 1970: the time of every file in the artifacts."""
    return int(run(["git", "log", "-1", "--format=%ct"], ROOT))


def build(folder: Path, tools: Path) -> Artifacts:
    """Into `folder`, which is made. `tools` has the programs auditwheel and wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    sdist = hatch(ROOT, "sdist", folder)
    with tempfile.TemporaryDirectory(prefix="onefold-build-") as parts:
        wheels = []
        for choice in ("off", "required"):
            with tarfile.open(sdist) as archive:
                archive.extractall(Path(parts, choice), filter="data")
            (unpacked,) = Path(parts, choice).iterdir()
            wheels.append(hatch(unpacked, "wheel", folder, choice))
    pure, platform = wheels
    return Artifacts(sdist, _tagged(platform, tools), pure)


def hatch(source: Path, target: str, folder: Path, compiled_fetch: str = "off") -> Path:
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(committed_s()),
        "ONEFOLD_COMPILED": compiled_fetch,
        "HATCH_METADATA_CLASSIFIERS_NO_VERIFY": "1",  # or it downloads PyPI's list
    }
    before = set(folder.iterdir())
    run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)],
        source,
        environment,
    )
    (made,) = set(folder.iterdir()) - before
    return made


def _tagged(wheel: Path, tools: Path) -> Path:
    """The wheel under the oldest manylinux that what it needs of the system fits: an index takes no `linux_x86_64`."""
    if not sys.platform.startswith("linux"):
        return wheel
    shown = json.loads(run([str(tools / "auditwheel"), "show", "--json", str(wheel)], wheel.parent))
    if shown["external_libs"]:
        raise SystemExit(f"{wheel.name} needs {shown['external_libs']}, and should need nothing but libc")
    retag = [str(tools / "wheel"), "tags", "--remove", "--platform-tag", shown["overall_tag"], wheel.name]
    name = run(retag, wheel.parent, {**os.environ, "SOURCE_DATE_EPOCH": str(committed_s())})
    return wheel.with_name(name.splitlines()[-1])


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """What it printed. Ends this program with its words where it fails."""
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_BUILD_S_MAX, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed in {folder}:\n{(ended.stdout + ended.stderr).strip()[-4000:]}")
    return ended.stdout.strip()

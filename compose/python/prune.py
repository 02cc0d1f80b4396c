"""prune.py EXTRAS: removes what requirements.lock has beyond onefold[EXTRAS]: it lists the tools of developers, too."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

BESIDE = ("pip", "psutil", "platformdirs")  # the latter two for the torture's jobs


def name_of(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
found = {name_of(one.metadata["Name"]): one for one in distributions()}
asked = [Requirement(f"onefold[{sys.argv[1]}]"), *(Requirement(name) for name in BESIDE)]
kept: set[str] = set()
seen: set[tuple[str, str]] = set()
while asked:
    requirement = asked.pop()
    name = name_of(requirement.name)
    for extra in ("", *requirement.extras):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name == "onefold":
            texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
        else:
            kept.add(name)
            texts = found[name].requires or []
        further = (Requirement(text) for text in texts)
        asked += [one for one in further if one.marker is None or one.marker.evaluate({"extra": extra})]
rest = sorted(found.keys() - kept)
subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *rest], check=True)

"""`make dist`: the release's files into dist/, checked and tried in a clean environment.

Exit code 0: they are what a release may contain. 1: something differs, and the last lines say what.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from building import ROOT, build, run
from contents import VERSION, faults
from trial import Refuted, try_out

DIST = ROOT / "dist"


def tell(line: str) -> None:
    print(line, flush=True)


def main(tools: Path, python: Path, *, trial: bool) -> int:
    commit = run(["git", "log", "-1", "--format=%h of %cs"], ROOT)
    changed = run(["git", "status", "--porcelain"], ROOT)
    tell(f"onefold {VERSION}, commit {commit}{', with changes that are not committed: no release' if changed else ''}")
    shutil.rmtree(DIST, ignore_errors=True)
    artifacts = build(DIST, tools)
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in artifacts}
    for path in artifacts:
        tell(f"built    {path.name}: {path.stat().st_size / 1e6:.1f} MB, sha256 {sums[path.name]}")
    (DIST / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))

    wrong = faults(artifacts)
    with tempfile.TemporaryDirectory(prefix="onefold-dist-") as again:
        for path in build(Path(again), tools):
            if sums.get(path.name) != hashlib.sha256(path.read_bytes()).hexdigest():
                wrong.append(f"{path.name} differs when it is built a second time")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    tell("checked  contents, metadata, RECORD, licence, types; built twice, the same bytes")
    if not trial:
        return 0
    folder = Path(tempfile.mkdtemp(prefix="onefold-dist-"))
    try:
        try_out(artifacts, folder, python, tell)
    except Refuted as why:
        print(f"{why}\nThe environment is left as it is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    tell(f"dist/ has what onefold {VERSION} is released as; SHA256SUMS is beside it")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make dist")
    parser.add_argument("tools", type=Path, help="the folder of auditwheel and wheel")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="whose environment they are tried in")
    parser.add_argument("--no-trial", action="store_true", help="build and check, and install nothing")
    given = parser.parse_args()
    sys.exit(main(given.tools.absolute(), given.python, trial=not given.no_trial))

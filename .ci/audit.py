"""Holds requirements.lock against the known advisories, and says so where they could not be asked: `make audit`.

Exit code 0: each package was asked about, and none has an advisory. 1: some have. 3: nobody knows, since the advisories
could not be reached, or had nothing of some package.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FINE, FOUND, UNKNOWN = 0, 1, 3
_ASK_S_MAX = 600


def verdict(report: dict[str, Any] | None) -> tuple[int, str]:
    """The exit code and the words, of pip-audit's JSON report; None where it wrote none."""
    if report is None:
        return UNKNOWN, "The advisories could not be reached: nothing is known of the lock. Run this where they can be"
    packages = report["dependencies"]
    found = [
        f"{p['name']} {p['version']}: {a['id']}, fixed in {', '.join(a['fix_versions']) or 'none'}"
        for p in packages
        for a in p.get("vulns", [])
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    lines = [*found]
    if unknown or not packages:
        names = "every package" if len(unknown) == len(packages) else ", ".join(unknown)
        lines.append(
            f"The advisories had no answer on {names}: of these nothing is known. Run this where they can be had"
        )
    if found:
        return FOUND, "\n".join(lines)
    return (UNKNOWN if lines else FINE), "\n".join(lines) or f"No advisory on any of {len(packages)} packages"


def main(auditor: str, lock: str) -> int:
    """`auditor` is pip-audit. It ends with 0 where it has skipped every package, hence its report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        asked = [auditor, "--requirement", lock, "--disable-pip", "--progress-spinner=off", "--format=json"]
        ended = subprocess.run([*asked, f"--output={path}"], capture_output=True, text=True, timeout=_ASK_S_MAX)
        report = json.loads(path.read_text()) if path.exists() else None
    if report is None:
        print(ended.stderr.strip()[-2000:], file=sys.stderr)
    code, says = verdict(report)
    print(says)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

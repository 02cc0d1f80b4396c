"""`python -O` takes no check away: safety does not rest on `assert`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]
# What opens, decides, commits and records epochs; and what judges it.
GUARDED = [
    *(ROOT / "core/onefold/core").rglob("*.py"),
    *(ROOT / "sinks/onefold/sinks").rglob("*.py"),
]


@pytest.mark.slow
def test_without_asserts_the_kits_and_the_simulator_tell_right_from_wrong(tmp_path: Path) -> None:
    paths = os.pathsep.join(map(str, (TESTS, ROOT / "docs/examples")))
    ended = subprocess.run(
        [sys.executable, "-O", TESTS / "optimized.py", tmp_path],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["a right sink passes", "a right store passes", "the protocol is proven"]


def test_what_keeps_the_guarantee_raises_and_does_not_assert() -> None:
    """onefold.core.checks has what raises."""
    assert len(GUARDED) > 150
    asserts = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in GUARDED
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []

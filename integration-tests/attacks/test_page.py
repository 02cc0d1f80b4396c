"""docs/security.md has a row for every attack of this folder, as the tests' own marks say it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from harness.renewing import assert_renewed

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "security.md"


@pytest.mark.docs
def test_the_page_lists_every_attack() -> None:
    rows = [row for path in sorted(HERE.glob("test_*.py")) if path != Path(__file__) for row in _rows(_module(path))]
    assert rows, "no test is marked as an attack"
    header = "| Who | does | and gets | Test |\n|---|---|---|---|"
    assert_renewed(PAGE, "integration-tests/attacks/test_page.py", "\n".join([header, *rows]))


def test_the_table_of_neighbours_names_every_file_of_attacks_and_no_other() -> None:
    table = PAGE.read_text().partition("| Neighbour |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(test_\w+)`", row.rpartition(" | ")[2])}
    assert named == {path.stem for path in HERE.glob("test_*.py")} - {Path(__file__).stem}


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"attacks_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _rows(module: ModuleType) -> Iterator[str]:
    where = Path(module.__file__ or "").stem
    for name, test in vars(module).items():
        for mark in getattr(test, "pytestmark", []):
            if mark.name == "attack":
                yield f"| {mark.kwargs['who']} | {mark.kwargs['does']} | {mark.kwargs['gets']} | `{where}::{name}` |"

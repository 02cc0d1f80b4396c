"""The tests that docs/time.md names for each concept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
TESTS = [file for folder in ("core", "connectors", "integration-tests") for file in (ROOT / folder).rglob("test_*.py")]


@pytest.mark.docs
def test_each_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "time.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    found = {name for file in TESTS for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    assert len(named) > 20 and named <= found, named - found
    assert set(re.findall(r"`(test_\w+\.py)`", page)) <= {file.name for file in TESTS}

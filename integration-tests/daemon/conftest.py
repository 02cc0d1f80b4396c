"""What the tests of the daemon share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.daemons import Start, daemons


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts daemons: `start(file, ..., options=["--text-logs"])`. They are killed at the test's end."""
    with daemons() as start:
        yield start

"""How long the driver asks again."""

from __future__ import annotations

import pytest

from onefold.core import OutOfResources, Retriable
from onefold.core.protocol.effects import ListLeftovers, Pause, ReadStore
from onefold.core.protocol.patience import Patience


def test_a_wait_within_a_wait_gives_it_no_new_patience() -> None:
    patience = Patience(0.3, pause_max_s=0.05)
    full, down = OutOfResources("database-resources-exhausted", "full"), Retriable("database-unavailable", "down")

    def wait() -> None:
        for attempt in range(1, 100):
            patience(Pause(attempt, ListLeftovers("t", 1), full))
            patience(Pause(1, ReadStore(), down))

    with pytest.raises(OutOfResources, match="full"):
        wait()


def test_the_next_wait_for_the_same_begins_anew() -> None:
    patience = Patience(0.0, pause_max_s=0.01)
    for _ in range(3):
        patience(Pause(1, ReadStore(), Retriable("database-unavailable", "down")))
    with pytest.raises(Retriable):
        patience(Pause(2, ReadStore(), Retriable("database-unavailable", "down")))

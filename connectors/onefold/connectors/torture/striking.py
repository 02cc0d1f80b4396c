"""What all strikes share: how they tell that they struck, and that there was nothing to strike."""

from __future__ import annotations

from collections.abc import Callable

from onefold.connectors.torture.plan import Fault
from onefold.connectors.torture.world import World

__all__ = ["FIND_S_MAX", "Missed", "Strike", "Struck"]

FIND_S_MAX = 40.0  # a driver may just be starting
Struck = Callable[[str, int | None], None]  # told of the target and its pid at the moment of the fault
Strike = Callable[[World, Fault, Struck], str]  # returns, once it is over, what else is to be said


class Missed(Exception):
    """There was nothing to strike; says why."""

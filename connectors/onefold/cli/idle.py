"""Whether a pipeline may be running, as far as its store and its sinks' servers tell."""

from __future__ import annotations

from collections.abc import Iterable

from onefold.cli.reset.place import Place
from onefold.core import EpochState
from onefold.core.protocol.effects import StoreFacts

__all__ = ["working"]


def working(places: Iterable[Place], facts: StoreFacts | None) -> str | None:
    """What says that a driver may be at work; None where nothing does. `facts` is None where the store knows no such
    pipeline."""
    if sessions := sum(place.sessions() for place in places):
        return f"{sessions} sessions of it are connected"
    unfinished = facts.unfinished if facts is not None else ()
    record = next((each for each in unfinished if each.state is not EpochState.DAMAGED), None)
    if record is None:
        return None
    return f"its epoch {record.epoch} is {record.state.value}, and a driver may be at work at it"

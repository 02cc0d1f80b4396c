"""Whether a pipeline may be running, as far as its store and its sessions tell."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.cli.reset.place import Place
from onefold.core import ConfigError, EpochState
from onefold.core.protocol.effects import StoreFacts

__all__ = ["refuse_running"]


def refuse_running(pipeline: str, places: Sequence[Place], facts: StoreFacts | None, nothing: str) -> None:
    """Raise ConfigError where the pipeline may be running. `nothing` says what was not done for that."""
    unfinished = facts.unfinished if facts is not None else ()
    working = next((record for record in unfinished if record.state is not EpochState.DAMAGED), None)
    if sessions := sum(place.sessions() for place in places):
        because = f"{sessions} sessions of it are connected"
    elif working is not None:
        because = f"its epoch {working.epoch} is {working.state.value}, and a driver may be at work at it"
    else:
        return
    raise ConfigError(
        "pipeline-may-run",
        f"pipeline {pipeline!r} may be running: {because}. {nothing}. End its process with SIGTERM (`onefold"
        " stop` keeps it); or, where you know it dead, run the command again with --take-over, which fences a driver"
        " that lives after all",
    )

"""Whether a pipeline may be running, as far as its store tells."""

from __future__ import annotations

from onefold.core import ConfigError, EpochState
from onefold.core.protocol.effects import StoreFacts
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.drivers import Driver, driver_of

__all__ = ["refuse_running"]


def refuse_running(pipeline: str, store: CheckpointStore, facts: StoreFacts | None, nothing: str) -> None:
    """Raise ConfigError where the pipeline may be running. `facts` are None where the store does not know it;
    `nothing` says what was not done for that."""
    if facts is None or not facts.generation:
        return
    working = next((record for record in facts.unfinished if record.state is not EpochState.DAMAGED), None)
    if (driver := driver_of(store, pipeline, facts.generation)) is not None:
        because = _running(driver)
    elif working is not None:
        because = f"its epoch {working.epoch} is {working.state.value}, and a driver may be at work at it"
    else:
        return
    raise ConfigError(
        "pipeline-may-run",
        f"pipeline {pipeline!r} may be running: {because}. {nothing}. Stop it (`onefold stop`, or SIGTERM"
        " to its process); or, where you know it dead, run the command again with --take-over, which fences a driver"
        " that lives after all",
    )


def _running(driver: Driver) -> str:
    if driver.is_alive() is None:
        return f"process {driver.pid} of {driver.host} has started it, and has not said that it ended"
    return f"process {driver.pid} of this machine runs it"

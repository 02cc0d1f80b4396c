"""A pipeline that somebody has stopped to change it."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from rich.console import Console

from onefold.cli.shown import shown
from onefold.core import ConfigError
from onefold.core.protocol.effects import StoreFacts
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.operate.checkpoint import LocalCheckpoint

if TYPE_CHECKING:
    from onefold.core.job.move_session import MoveSession
    from onefold.pipeline import Pipeline

__all__ = ["Stopped", "somebody"]


def somebody() -> str:
    """Who runs this command, and where. A container's user may have a number and no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class Stopped:
    """What the commands that change a stopped pipeline need of it. `nothing` says, in errors, what was not done."""

    def __init__(self, pipeline: Pipeline, store: CheckpointStore, nothing: str) -> None:
        self.pipeline = pipeline
        self.name = pipeline.name
        self.store = store
        self.nothing = nothing
        self.checkpoint = LocalCheckpoint(pipeline.checkpoint)
        self.console = Console(soft_wrap=True)

    def facts(self) -> StoreFacts:
        """Raises ConfigError where there is no store, or it does not know the pipeline."""
        facts = self.store.facts(self.name) if self.store.look() is not None else None
        if facts is None or not facts.generation:
            raise ConfigError(
                "pipeline-unknown",
                f"the checkpoint store at {self.store.database} does not know pipeline {self.name!r}: it was never"
                " started with this store, or from another directory. Correct the pipeline's name or store",
            )
        return facts

    def refuse_running(self, facts: StoreFacts) -> None:
        """Raise ConfigError where it may be running."""
        from onefold.operate.idle import refuse_running

        refuse_running(self.name, self.store, facts, self.nothing)

    def refuse_changed(self, facts: StoreFacts) -> None:
        """Raise ConfigError where it went on since these facts were read."""
        if self.facts() != facts:
            raise ConfigError(
                "pipeline-may-run",
                f"pipeline {self.name!r} went on, or was started, since this plan was made. {self.nothing}. Stop it,"
                " then run the command again",
            )

    def session(self, added: Collection[str] = ()) -> MoveSession:
        """`added` are the sinks that the last epoch did not name."""
        from onefold.core.job.move_session import MoveSession

        is_readable = not self.checkpoint.is_elsewhere
        return MoveSession(
            self.name,
            self.pipeline.everyone,
            self.store,
            self.pipeline.patience_s,
            [sink.name for sink in self.pipeline.dead_letters],
            self.checkpoint.set_aside,
            self.checkpoint if is_readable else None,
            str(self.checkpoint.path) if is_readable else None,
            added,
        )

    def of_last(self, facts: StoreFacts) -> str:
        if facts.last is None:
            return "no epoch was written yet"
        ago_s = max(0, time.time() - facts.last.timestamp_ms / 1000)
        return f"its last epoch, {facts.last.epoch}, was begun {ago_s:,.0f} s ago"

    def say(self, text: str) -> None:
        self.console.print(shown(text), highlight=False)

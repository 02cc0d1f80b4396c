"""Runs flows on the engine, each run in a process of its own, which is forked from one without clients or threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.differential.building import Building
from harness.differential.shapes import SCHEMA

from onefold.sources import KafkaSource

__all__ = ["EngineRun", "on_engine", "source_of"]

WAIT_S = 120.0
_CONTEXT = multiprocessing.get_context("forkserver")
# What each run would import otherwise, for two seconds.
_IMPORTS = ("engine.driver.opening", "engine.workers.worker", "engine.state.rocks", "flow", "sinks", "sources")
_CONTEXT.set_forkserver_preload(["pytest", "pyarrow.acero", *(f"onefold.{name}" for name in _IMPORTS)])


@dataclass(frozen=True)
class EngineRun:
    """One start of a flow. After so many `epochs` it gets `signal`; without it, it ends with what there is now."""

    building: Building
    servers: str
    topics: tuple[str, ...]
    checkpoint: str
    state: Any
    workers: int
    at_most: int
    epochs: int | None = None
    signal: int = signal.SIGTERM

    def __call__(self) -> None:
        sources = [source_of(self.servers, topic, self.at_most) for topic in self.topics]
        flow = self.building.flow(*(source.bounded() if self.epochs is None else source for source in sources))
        done: list[Any] = []

        def on_outcome(outcome: Any) -> None:
            done.append(outcome)
            if len(done) == self.epochs:
                os.kill(os.getpid(), self.signal)

        settings: Any = {"state": self.state, "workers": self.workers, "on_outcome": on_outcome}
        flow.run(checkpoint=self.checkpoint, **settings)


def source_of(servers: str, topic: str, at_most: int) -> KafkaSource:
    settings: Any = {"format": "json", "schema": SCHEMA, "max_offsets_per_trigger": at_most}
    return KafkaSource(topic, bootstrap_servers=servers, **settings)


def on_engine(run: EngineRun, log: Path) -> None:
    """Raises AssertionError where it does not end as it should, with what it wrote to `log`."""
    process = _CONTEXT.Process(target=_logged, args=(run, str(log)))
    process.start()
    process.join(WAIT_S)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    killed = -signal.SIGKILL if run.epochs is not None and run.signal == signal.SIGKILL else 0
    assert code == killed, f"{run} ended with {code}: {log.read_text()[-3000:]}"


def _logged(run: EngineRun, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise

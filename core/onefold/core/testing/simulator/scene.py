"""What a simulated world and its operator share: where the pipeline runs, its sinks, and its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from onefold.core.contract import SinkKind
from onefold.core.positions import Positions
from onefold.core.testing.proof.subject import Subject
from onefold.core.testing.simulator.host import Host
from onefold.core.testing.simulator.model_checkpoint import Checkpoint
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.core.testing.simulator.models import PreparedRows
from onefold.core.testing.simulator.process import Process


class Scene:
    """One pipeline, without what happens to it. With `late`, the last sink is for dead letters."""

    def __init__(
        self, sinks: tuple[SinkKind, ...], subject: Subject, late: bool, reached: Callable[[str], None]
    ) -> None:
        self.subject = subject
        self.host = Host(subject.store())
        self.sinks = {f"sink-{n}": subject.models[kind](f"sink-{n}", reached) for n, kind in enumerate(sinks)}
        self.late = tuple(self.sinks)[-1:] if late else ()
        self.written: dict[str, PreparedRows] = {}
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.complaints: list[str] = []
        self.awake: Process | None = None
        self.asleep: list[Process | Callable[[], object]] = []

    @property
    def store(self) -> ModelStore:
        return self.host.store

    @property
    def checkpoint(self) -> Checkpoint:
        return self.host.checkpoint

    @property
    def first_start(self) -> Positions | None:
        return self.host.first_start

    def resume(self, host: Host) -> None:
        """The process that slept on a host goes on, as if nothing had been."""
        self.awake = next((p for p in self.asleep if isinstance(p, Process) and p.host is host), None)
        self.asleep = [sleeper for sleeper in self.asleep if sleeper is not self.awake]

"""What is seen of a run of a flow while it runs: by its console, its log, and whoever asks the daemon."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onefold.core.errors import OnefoldError
from onefold.core.protocol.epoch import Started
from onefold.core.values.plain import plain
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Traffic
from onefold.engine.driver.fleet import Fleet
from onefold.engine.driver.progress import Progress
from onefold.flow.graph.nodes import Graph
from onefold.store.epoch_figures import EpochSteps, OperatorAcks, RunningEpoch
from onefold.store.job.session import Session


class RunStatus:
    """Any thread may ask."""

    is_paused = False
    started_at_s: float | None = None  # its last start, where that has succeeded: seconds since 1970

    def __init__(self, plan: Plan, session: Session, fleet: Fleet) -> None:
        self._plan, self._session, self._fleet = plan, session, fleet
        self._drains = False
        self.progress = Progress(plan.graph.flow)
        self.steps: EpochSteps | None = None  # this and the next: of the last epoch
        self.operators: tuple[OperatorAcks, ...] = ()
        self.bad = Counter[str]()  # records that could not be read, by their source's `on_error`

    @property
    def started(self) -> Started | None:
        """What its last start found; None before the first has succeeded."""
        return self._session.started

    @property
    def running(self) -> RunningEpoch | None:
        """The epoch that runs, and who has acknowledged it; None between epochs."""
        running, traffic = self._session.clock.running, self.traffic
        if running is None:
            return None
        return replace(running, operators=traffic.acknowledged(running.epoch), at=traffic.at())

    @property
    def waiting_for(self) -> OnefoldError | None:
        """The error of a server that is away or busy, while it is waited out."""
        return self._session.patience.waiting_for

    @property
    def state(self) -> tuple[str, str]:
        """In a word, for people; and why, where it is a server's fault."""
        waiting_for = self.waiting_for
        if waiting_for is not None:
            return "waiting", plain(waiting_for.message)
        if self.started_at_s is None:
            return "starting", ""
        return "stopping" if self._drains else "paused" if self.is_paused else "running", ""

    @property
    def traffic(self) -> Traffic:
        return self._fleet.traffic

    @property
    def graph(self) -> Graph:
        return self._plan.graph

    @property
    def drains(self) -> bool:
        return self._drains

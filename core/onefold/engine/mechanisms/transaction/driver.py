"""The driver's half: the last hop runs as any flow does, and asking its sources how far they go lets the driver plan
what the flow's own sources read."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.core.source import Source
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.driver.fleet import Fleet
from onefold.engine.driver.flow_run import FlowRun, RunSettings
from onefold.engine.driver.progress import Progress
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers
from onefold.engine.mechanisms.transaction.channels import HOPS
from onefold.engine.mechanisms.transaction.hops import Hops
from onefold.engine.mechanisms.transaction.last_hop import HopSetup, OutboxSource, last_hop
from onefold.engine.state import folder_of
from onefold.engine.workers.fork_server import ForkServer
from onefold.flow.graph.nodes import Graph
from onefold.flow.planning import Planners
from onefold.store.job.session import Session


class TransactionRun(FlowRun):
    """A run of the last hop, beside the hops before it."""

    def __init__(self, plan: Plan, session: Session, fleet: Fleet, settings: RunSettings, *more: Any) -> None:
        super().__init__(last_hop(plan, settings.workers), session, fleet, settings, *more)
        self._whole, self._root = plan, Path(self._written.root) / folder_of(session.name) / HOPS
        self._opened = ExitStack()

    def run(self) -> Progress:
        with self._opened:
            return super().run()

    def _epochs(self, planners: Planners, writers: Writers, at: ResumePoint, fingerprint: str) -> None:
        """What sinks have is told first: a driver that has died may have decided it, and hops may wait for that."""
        planners.completed(at.at)
        super()._epochs(planners, writers, at, fingerprint)

    def _resolved(self, graph: Graph) -> dict[int, Source]:
        """Those of the last hop, through which the others are read."""
        sources, settings = super()._resolved(self._whole.graph), self._settings
        hops = Hops(self._whole, self._root, settings.workers, sources, self._session)
        self._opened.enter_context(closing(hops))
        self._opened.callback(self._fleet.end)  # before their databases are closed
        scratch = None if self._databases is None else str(self._databases.folder)
        setup, found = HopSetup(self._root, sources, settings.state, scratch), super()._resolved(graph).items()
        return {n: replace(each, setup=setup, hops=hops) for n, each in found if isinstance(each, OutboxSource)}


def fleet_of(fork_server: ForkServer, plan: Plan, workers: int, _: Marks) -> Fleet:
    """The marks are of the whole flow's nodes."""
    return Fleet(fork_server, last_hop(plan, workers), workers)


FLEET, RUN = fleet_of, TransactionRun

"""The driver's half: the last hop runs as any flow does, and asking its sources how far they go lets the hops go on."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.core.errors import ConfigError, OnefoldError
from onefold.core.source import Source
from onefold.core.values.plain import shown_url
from onefold.engine.dataflow.chains import Plan
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.driver.fleet import Fleet
from onefold.engine.driver.flow_run import FlowRun
from onefold.engine.driver.progress import Progress
from onefold.engine.driver.restarts import Tracker
from onefold.engine.mechanisms.transaction.hops import Hops
from onefold.engine.mechanisms.transaction.last_hop import last_hop
from onefold.engine.mechanisms.transaction.outbox_source import HopSetup, OutboxSource
from onefold.engine.state import folder_of
from onefold.engine.workers.fork_server import ForkServer
from onefold.store.job.session import Session

__all__ = ["FLEET", "RUN"]


class HopFleet(Fleet):
    """Workers with hops, and the last one of each."""

    def __init__(self, fork_server: ForkServer, plan: Plan, workers: int, marks: Marks | None = None) -> None:
        del marks  # of the whole flow's nodes
        self.plan = last_hop(plan, workers)
        super().__init__(fork_server, self.plan, workers)


class HopTracker(Tracker):
    """An epoch of the last hop is no success where a bundle that has failed waits all the same."""

    hops: Hops
    _untaken: dict[Any, Any] | None = None

    def give_up(self, epoch: int, error: OnefoldError) -> float | None:
        self._untaken = self.hops.untaken()
        return super().give_up(epoch, error)

    def completed(self) -> None:
        now = {} if self._untaken is None else self.hops.untaken()
        if not (self._untaken or {}).items() & now.items():
            self._untaken = None
            super().completed()


class TransactionRun(FlowRun):
    """Raises ConfigError where the checkpoint is no folder of this machine."""

    def __init__(self, plan: Plan, session: Session, fleet: HopFleet, *more: Any) -> None:
        super().__init__(fleet.plan, session, fleet, *more)
        root = self._written.root
        if "://" in root:
            raise ConfigError(
                "mechanism-local-disk",
                f"checkpoint={shown_url(root)!r} is no folder of this machine, and with mechanism='transaction' each"
                " bundle waits until it is durable there: name a folder on a local disk",
            )
        self._whole, self._root = plan, Path(root) / folder_of(session.name) / "hops"
        self.tracker: HopTracker = HopTracker(self._settings.restart)
        self._opened = ExitStack()

    def run(self) -> Progress:
        with self._opened:
            return super().run()

    def _resolved(self) -> dict[int, Source]:
        graph, settings, scratch_folder = self._whole.graph, self._settings, None
        if settings.state == "rocksdb" and graph.keeps_state:
            from onefold.engine.state.rocks.scratch import scratch  # needs its package

            scratch_folder = str(self._opened.enter_context(scratch()).folder)
        sources = {node.number: graph.resolved(node, self._session.pin) for node, _ in graph.readings()}
        hops = self._opened.enter_context(
            closing(Hops(self._whole, self._root, settings.workers, sources, self._session))
        )
        self._opened.callback(self._fleet.end)  # before their databases are closed
        self.tracker.hops = hops
        setup = HopSetup(self._root, sources, settings.state, scratch_folder)
        found = {number: source for number, source in super()._resolved().items() if isinstance(source, OutboxSource)}
        return {number: replace(source, setup=setup, hops=hops) for number, source in found.items()}


FLEET, RUN = HopFleet, TransactionRun

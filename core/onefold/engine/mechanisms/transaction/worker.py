"""The workers' half: a process has one subtask of each hop, and is a worker of the last one."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

from onefold.core.checks import present
from onefold.core.waiting import Wait
from onefold.engine.dataflow.chain_operators import Operators
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.dataflow.outbound import Outbound
from onefold.engine.dataflow.progress_marks import Marks
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.mechanisms.transaction.channels import ChannelMap
from onefold.engine.mechanisms.transaction.database import FilesInDatabase, HopDatabase
from onefold.engine.mechanisms.transaction.hop import Hop, HopInput, SplitsInput
from onefold.engine.mechanisms.transaction.last_hop import HopSetup, OutboxSource, last_hop
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.frames import receive_message
from onefold.engine.workers.messages import Launch
from onefold.engine.workers.snapshots import restore
from onefold.engine.workers.worker import Worker
from onefold.engine.workers.worker_setup import WorkerParts, launched

IDLE_S_MIN, IDLE_S_MAX = 0.001, 0.02


class HopWorker(Worker):
    """A worker of the last hop, which has the hops go on where it has nothing to do. What is further down the flow
    comes first."""

    def __init__(self, whole: Plan, launch: Launch, *of_worker: Any) -> None:
        source = next(iter(launch.sources.values()))
        setup = present(source.setup if isinstance(source, OutboxSource) else None, "the last hop reads the others")
        self._hops = hops_of(whole, launch, setup)
        self._wait = Wait(math.inf, IDLE_S_MIN, IDLE_S_MAX)
        super().__init__(*of_worker)
        for hop in self._hops:  # a bundle that has failed fails again before an epoch can be complete, and so counts
            hop.step()

    def _work(self) -> bool:
        if super()._work() or any(hop.step() for hop in self._hops):
            self._wait = Wait(math.inf, IDLE_S_MIN, IDLE_S_MAX)
            return True
        self._wait.pause()
        return True  # nobody says when there is more: it looks again


def work(plan: Plan, marks: Marks, control: socket.socket, links: list[socket.socket]) -> None:
    """What a forked process does."""
    del marks  # of the whole flow's nodes
    launch = receive_message(control)
    if isinstance(launch, Launch):
        parts = WorkerParts(partial(HopWorker, plan, launch))
        launched(last_hop(plan, launch.parallelism), launch, control, links, None, parts)


def hops_of(plan: Plan, launch: Launch, setup: HopSetup, **more: Any) -> list[Hop]:
    """A worker's hops, which go on as its database says: the last of them first."""
    index, workers, of = launch.index, launch.parallelism, plan.graph.max_parallelism
    channels = ChannelMap(plan, workers)
    database = HopDatabase(setup.root, str(index), channels.sent_by(str(index)))

    def inputs(chain: Chain) -> Iterator[HopInput]:
        if chain.source is not None:
            splits, source = channels.splits[chain.number, index], setup.sources[chain.head.number]
            yield SplitsInput(database, splits, source, launch.guarded)
            return
        given, schemas = chain.channels(index, workers), {each.number: each.schema for each in chain.inputs}
        for each in (given[number] for number in chain.turns(given)):
            exchange = present(each.exchange, "the chain reads no source")
            channel = channels.between[exchange, each.sender, index]
            yield HopInput(database, channel, each.port, schemas[exchange])

    def hop(chain: Chain) -> Hop:
        backend, options = None, dict(more)
        if chain.uid is not None:
            files = FilesInDatabase(database, chain.number)
            backend = made_backend(setup.state, files, 1, of, setup.scratch)
            _, _, handle = database.get(f"bundle {chain.number}", (0, 0, ""))
            groups = key_groups_of_subtask(index, workers, of)
            restore(backend, files, plan.graph, chain.head, [handle] if handle else [], groups)
            options["save"] = partial(files.save, backend)
        logics = {node.number: make_logic(plan.graph, node, {}, backend, index, workers) for node in chain.nodes}
        operators, outbound = Operators(chain, logics), Outbound(chain, index, workers, of)
        outputs = {(n, to): each for (n, by, to), each in channels.between.items() if by == index}
        name, numbered = plan.graph.flow, channels.numbered
        return Hop(name, operators, outbound, database, chain, [*inputs(chain)], outputs, numbered, **options)

    return [hop(chain) for chain in reversed(plan.chains) if chain.head.number not in channels.sinks]

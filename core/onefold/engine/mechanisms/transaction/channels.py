"""The channels between hops: each leads from one database to another, and is numbered from 1 on without a gap."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from onefold.engine.dataflow.chains import Plan
from onefold.flow.graph.operators import Writing

HOPS = "hops"  # the folder of all databases, in the flow's own
DRIVER = "driver"  # the database of what sources are to read, and of what sinks have; workers' are called by numbers


@dataclass(frozen=True, slots=True)
class HopChannel:
    """`sender` and `receiver` are the names of databases."""

    name: str
    sender: str
    receiver: str


class ChannelMap:
    """All of a plan with so many workers. `splits`, by which the driver says what to read, by the chain that reads and
    the worker; `between` by exchange, sending and receiving worker, where those into a hop come before those out of it.
    Those into sinks are `last`, and `numbered` the exchanges to sinks whose order names the number of an epoch."""

    def __init__(self, plan: Plan, workers: int) -> None:
        self.splits = {
            (chain.number, index): HopChannel(f"reads {chain.number}/{index}", DRIVER, str(index))
            for chain in plan.chains
            for index in range(workers)
            if chain.source is not None
        }
        self.sinks = {node.number: node.operator for node in plan.graph.nodes if isinstance(node.operator, Writing)}
        self.between = {
            (exchange.number, sender, to): HopChannel(
                f"{exchange.number}/{sender}/{to}", str(sender), DRIVER if exchange.target in self.sinks else str(to)
            )
            for exchange in plan.exchanges
            for sender in range(workers)
            for to in exchange.receivers(sender, workers)
        }
        self.numbered = {
            each.number for each in plan.exchanges if (to := self.sinks.get(each.target)) and to.is_numbered
        }
        self.last = [channel for channel in self.between.values() if channel.receiver == DRIVER]

    @property
    def inner(self) -> list[HopChannel]:
        """Those into hops."""
        return [*self.splits.values(), *(each for each in self.between.values() if each.receiver != DRIVER)]

    def sent_by(self, database: str) -> Collection[HopChannel]:
        return [each for each in (*self.splits.values(), *self.between.values()) if each.sender == database]

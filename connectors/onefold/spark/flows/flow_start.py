"""`Flow.start` and `Flow.recover` of a flow that Spark runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onefold.core.protocol.epoch import Outcome, Started
from onefold.core.protocol.patience import PATIENCE_S
from onefold.flow.graph import Graph
from onefold.spark.flows.flow_writer import FlowWriter

__all__ = ["FlowQuery", "recover", "start"]


@dataclass(frozen=True)
class FlowQuery:
    """A flow that runs on Spark: its writer, and the query that the writer has started."""

    writer: FlowWriter
    query: StreamingQuery

    def await_termination(self, timeout_s: int | None = None) -> bool:
        """Wait for the flow's end, and raise the error that ended it, if one did. False on a timeout."""
        return self.writer.await_termination(self.query, timeout_s)

    def drain(self, within_s: float) -> bool:
        """End the flow with its epoch complete in every sink; False if that took longer."""
        return self.writer.drain(self.query, within_s)

    def close(self) -> None:
        """Let go of all connections, once it has ended."""
        self.writer.close()


def start(
    graph: Graph,
    spark: SparkSession,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    store: str | None = None,
    patience_s: float = PATIENCE_S,
    on_outcome: Callable[[Outcome], None] | None = None,
    require_tls: bool = False,
    trust_machine: bool = False,
) -> FlowQuery:
    """Start a flow as a query of Spark.

    checkpoint  the query's checkpoint, a folder or URL: where Spark keeps the flow's state
    trigger     what DataStreamWriter.trigger takes: {"availableNow": True} ends the flow with what there is now, as by
                itself one ends whose sources all have an end
    store       URL of the checkpoint store: by default the first sink's own database, else SQLite under `.onefold/`
    patience_s  how long a server that is down is waited for
    on_outcome  a function that is called with the outcome of every epoch
    require_tls    refuse every connection that leaves this machine without verified TLS
    trust_machine  nobody else uses this machine: start also where any user of it could run code as this process

    Raises ConfigError for what Spark cannot run of it.
    """
    writer = FlowWriter(
        graph,
        store,
        patience_s=patience_s,
        on_outcome=on_outcome,
        require_tls=require_tls,
        trust_machine=trust_machine,
    )
    return FlowQuery(writer, writer.start(spark, checkpoint, trigger))


def recover(
    graph: Graph,
    *,
    store: str | None = None,
    patience_s: float = PATIENCE_S,
    adopt_ledger: bool = False,
    accept_damage: int | None = None,
    accept_targets: bool = False,
) -> Started:
    """As `EpochWriter.recover`, of a flow that Spark runs: without starting it. It asks neither Spark nor its
    checkpoint."""
    with closing(FlowWriter(graph, store, patience_s=patience_s)) as writer:
        if adopt_ledger:
            writer.check_journals()
        return writer.recover(adopt_ledger=adopt_ledger, accept_damage=accept_damage, accept_targets=accept_targets)

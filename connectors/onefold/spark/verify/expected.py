"""What a flow makes of its source's records for one sink, without running it: the operators before that sink alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from onefold.core import ConfigError
from onefold.core.dead_letters import BAD_COLUMNS
from onefold.core.source import Part, Source
from onefold.core.values.batches import empty_batch
from onefold.engine.dataflow.operators import Operators
from onefold.engine.dataflow.plan import Plan, plan
from onefold.engine.logics.making import make_logic
from onefold.flow.graph import Graph, Node, Shipping
from onefold.flow.operators import Querying, Reading, Writing
from onefold.spark.runtime.columns import mapped
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.transforming import transformed

__all__ = ["Expected"]


@dataclass(frozen=True)
class Expected:
    """The rows of one sink. `source` is what they are made of, `query` what Spark makes of them at last. Pickles but
    for that."""

    plan: Plan
    source: Source
    query: Node | None

    @classmethod
    def of(cls, graph: Graph, sink: str) -> Expected:
        """Raises ConfigError where its rows are made of several sources, or by operators with state."""
        last = next(node for node, writing in graph.writings() if writing.sink.name == sink)
        needed = _before(graph, last)
        kept = [node.name for node in needed if node.keeps_state]
        read = [node for node in needed if isinstance(node.operator, Reading)]
        if kept or len(read) != 1:
            because = f"of operators with state ({', '.join(kept)})" if kept else "of several sources"
            raise ConfigError(
                "verify-unsupported",
                f"sink {sink!r} of flow {graph.flow!r} gets rows {because}, which verify does not make again: name"
                " other sinks, --sink, or compare the totals with a query of your own",
            )
        query = next((node for node in needed if isinstance(node.operator, Querying)), None)
        (node,) = read
        source = node.operator.source if isinstance(node.operator, Reading) else None
        assert source is not None
        return cls(plan(_only(graph, needed), sinks_apart=True), source, query)

    def rows(self, records: DataFrame) -> DataFrame:
        """The sink's rows, of these records of the source."""
        if len(self.plan.graph.nodes) == 2:  # nothing is between the two
            return records
        (last,) = self.plan.graph.nodes[-1].inputs
        made = mapped(records, _applying(self.plan), from_arrow_schema(self.plan.graph.schema(last)))
        operator = None if self.query is None else self.query.operator
        return transformed(made, operator.query) if isinstance(operator, Querying) else made


def _before(graph: Graph, node: Node) -> list[Node]:
    """The node and all that its rows come through, in the graph's order."""
    found, ahead = {node.number}, [node]
    while ahead:
        for edge in ahead.pop().inputs:
            if edge.source not in found:
                found.add(edge.source)
                ahead.append(graph.nodes[edge.source])
    return [each for each in graph.nodes if each.number in found]


def _only(graph: Graph, nodes: list[Node]) -> Graph:
    """A graph of these nodes alone, up to what Spark makes, without exchanges."""
    ends = [at for at, node in enumerate(nodes) if isinstance(node.operator, Querying | Writing)]
    kept = nodes[: min(ends) + 1]
    numbers = {node.number: number for number, node in enumerate(kept)}
    made = tuple(
        replace(
            node,
            number=numbers[node.number],
            operator=replace(node.operator, query="") if isinstance(node.operator, Querying) else node.operator,
            inputs=tuple(
                replace(edge, source=numbers[edge.source], shipping=Shipping.FORWARD, key=()) for edge in node.inputs
            ),
        )
        for node in kept
    )
    return replace(graph, nodes=made)


def _applying(found: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        chain, none = found.chains[0], empty_batch(BAD_COLUMNS)
        logics = {node.number: make_logic(found.graph, node, {}, None, 0, 1) for node in chain.nodes}
        operators, schema = Operators(chain, logics), chain.head.schema
        (last,) = found.graph.nodes[-1].inputs
        for batch in batches:
            for node, output, rows in operators.take(Part(batch.cast(schema), none), 0):
                if (node, output) == (last.source, last.output):
                    yield rows

    return apply

"""What a flow makes of its source's records for one sink, without running it: the operators before that sink alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from onefold.core import ConfigError
from onefold.core.source import Part, Source
from onefold.core.values.batches import empty_batch
from onefold.core.values.ids import OrderedIds
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow.chain_operators import Operators
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.logics.logic_factory import make_logic
from onefold.flow.graph.nodes import Graph, Node, Shipping, feeding
from onefold.flow.graph.operators import Deduplicating, Querying, Reading, Writing
from onefold.sinks.postgres import PostgresSink
from onefold.sinks.sql import SqlSink
from onefold.spark.runtime.dataframe_columns import columns, mapped
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.transforming import transformed

Applied = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_NUMBER = "__onefold_number"


@dataclass(frozen=True)
class Expected:
    """The rows of one sink. `source` is what they are made of; `plans` are the operators without state, of which
    `once` stands behind the first, and `query` is what Spark makes of the rows at last."""

    source: Source
    plans: tuple[Plan, ...]
    once: Node | None
    query: Node | None

    @classmethod
    def of(cls, graph: Graph, sink: str) -> Expected:
        """Raises ConfigError where its rows are made of several sources, or by operators with state."""
        last, to = next((node, writing.sink) for node, writing in graph.writings() if writing.sink.name == sink)
        needed = _before(graph, last)
        once = _sole_once(graph, needed, into_table=isinstance(to, PostgresSink | SqlSink))
        kept = [node.name for node in needed if node.keeps_state and node is not once]
        sources = [node.operator.source for node in needed if isinstance(node.operator, Reading)]
        if kept or len(sources) != 1:
            because = f"of operators with state ({', '.join(kept)})" if kept else "of several sources"
            raise ConfigError(
                "verify-unsupported",
                f"sink {sink!r} of flow {graph.flow!r} gets rows {because}, which verify does not make again: name"
                " other sinks, --sink, or say by a query what it is to have, --expect",
            )
        if any(of.watermarks is not None and of.watermarks.by_epochs for _, of in graph.readings()):
            raise ConfigError(
                "verify-unsupported",
                f"flow {graph.flow!r} has ingestion(), and which epoch has read a record, verify does not find out: say"
                " by a query what the sink is to have, --expect",
            )
        query = next((node for node in needed if isinstance(node.operator, Querying)), None)
        (source,) = sources
        parts = [needed]
        if once is not None:
            before = _before(graph, once)
            head = replace(once, operator=Reading(source), inputs=())
            parts = [before, [head, *(node for node in needed if node not in before)]]
        return cls(source, tuple(plan(_only(graph, nodes), sinks_apart=True) for nodes in parts), once, query)

    def applied(self) -> Applied | None:
        """What makes the rows of records, in batches; None where something keeps state, or Spark makes them."""
        if self.once is not None or self.query is not None:
            return None
        (only,) = self.plans
        return _applying(only) if _makes_rows(only) else lambda batches: batches

    def rows(self, records: DataFrame) -> DataFrame:
        """The sink's rows, of these records of the source."""
        made = _made(self.plans[0], records)
        if self.once is not None:
            made = _made(self.plans[1], _first_of_each(self.once, made))
        operator = None if self.query is None else self.query.operator
        return transformed(made, operator.query) if isinstance(operator, Querying) else made


def sources_of(graph: Graph, sink: str) -> list[str]:
    """The names of the sources that a sink's rows are made of."""
    last = next(node for node, writing in graph.writings() if writing.sink.name == sink)
    return [node.operator.source.name for node in _before(graph, last) if isinstance(node.operator, Reading)]


def _sole_once(graph: Graph, needed: list[Node], into_table: bool) -> Node | None:
    """The operator that drops repeats by ordered ids, where all rows come through it, into a table. By other ids the
    time decides; other sinks' rows are made again epoch by epoch."""
    found = [node for node in needed if isinstance(node.operator, Deduplicating)]
    if len(found) != 1 or not into_table:
        return None
    (once,) = found
    before = {node.number for node in _before(graph, once)} - {once.number}
    passed = any(edge.source in before for node in needed if node.number > once.number for edge in node.inputs)
    is_ordered = isinstance(once.operator, Deduplicating) and isinstance(once.operator.ids, OrderedIds)
    return once if is_ordered and not passed else None


def _first_of_each(once: Node, rows: DataFrame) -> DataFrame:
    """The first row of each id in a partition of the source."""
    operator = once.operator
    assert isinstance(operator, Deduplicating)
    first = Window.partitionBy(*columns([*operator.key, *operator.id])).orderBy(*columns(operator.place[-1:]))
    numbered = rows.withColumn(_NUMBER, F.row_number().over(first)).where(F.col(_NUMBER) == 1)
    return numbered.select(columns(once.schema.names if once.schema else ()))


def _made(of: Plan, given: DataFrame) -> DataFrame:
    """What the operators of a plan without state make of rows."""
    if not _makes_rows(of):
        return given
    (last,) = of.graph.nodes[-1].inputs
    return mapped(given, _applying(of), from_arrow_schema(of.graph.schema(last)))


def _makes_rows(of: Plan) -> bool:
    """Whether there is anything between the first node and the last."""
    return len(of.graph.nodes) > 2


def _before(graph: Graph, node: Node) -> list[Node]:
    """The node and all that its rows come through, in the graph's order."""
    return [*feeding(graph.nodes, node.inputs), node]


def _only(graph: Graph, nodes: list[Node]) -> Graph:
    """A graph of these nodes alone, up to what Spark makes, without exchanges."""
    ends = [at for at, node in enumerate(nodes) if isinstance(node.operator, Querying | Deduplicating | Writing)]
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


def _applying(found: Plan) -> Applied:
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

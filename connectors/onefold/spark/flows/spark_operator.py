"""The operator of a flow that Spark itself runs: the rows that it gets, and the columns that it makes of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from onefold.core import ConfigError, EpochRecord, Sink
from onefold.core.source import Source
from onefold.core.values.ddl import ddl_of, schema_of, type_name
from onefold.core.writing.attempt import Written
from onefold.core.writing.dead_letters import Policy
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import Querying
from onefold.spark.flows.packing import BAD, name_of, packed_rows, unpacked
from onefold.spark.flows.stages import Batches
from onefold.spark.formats.bounded_records import bad_of_epoch
from onefold.spark.output_modes import check_output_mode, refused_query
from onefold.spark.runtime.dataframe_columns import arrow_of, struct_of, with_epoch
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.runtime.writers import OwnWriting, run_letters, run_writers
from onefold.spark.transforming import transformed
from onefold.store.job.session import task_of

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource

log = logging.getLogger("onefold")

_CHECKED = "spark.sql.streaming.unsupportedOperationCheck"  # as Spark itself does when a query starts


@dataclass(frozen=True)
class SparkOperator:
    """`given` are the columns of its input, as Spark has them."""

    node: Node
    query: str | Callable[[DataFrame], DataFrame]
    output_mode: Literal["append", "update"]
    given: pa.Schema

    def check(self, spark: SparkSession, sinks: Sequence[Sink]) -> None:
        """Raise ConfigError where Spark makes other columns than were declared, does not run the query in its mode, or
        the sinks cannot take its rows. It asks no server: the rows are of a stream without any."""
        never = spark.readStream.format("rate").load()
        rows = self.rows(never.mapInArrow(_nothing, struct_of(ddl_of(self.given))))
        check_output_mode(self.output_mode, rows, sinks)
        if spark.conf.get(_CHECKED) == "false":
            return
        spark_sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # PySpark: "JVMView | None"
        mode = getattr(spark_sql.streaming.OutputMode, self.output_mode.capitalize())()
        try:
            plan = rows._jdf.queryExecution().analyzed()
            spark_sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
        except AnalysisException as error:
            raise refused_query(error, self.output_mode) from error

    def rows(self, given: DataFrame) -> DataFrame:
        """What it makes of these rows. Raises ConfigError where the columns are others than were declared."""
        made = transformed(given, self.query)
        if not isinstance(made, DataFrame) or not made.isStreaming:
            raise ConfigError(
                "transform-failed",
                f"{self.node.name!r} returns {'a DataFrame of its own' if isinstance(made, DataFrame) else repr(made)},"
                " and not one that is made of the rows that it was given: return that",
            )
        found, declared = _columns(arrow_of(made.schema)), _columns(self.node.schema)
        if found != declared:
            raise ConfigError(
                "spark-operator-schema",
                f"{self.node.name!r} makes other columns than were declared: {_differences(declared, found)}. Declare"
                " them as they are made, in schema=; or have them made so, with CAST and AS",
            )
        return made

    def of_packed(self, plan: Plan, packed: DataFrame, before: Callable[[Batches], Batches] | None) -> DataFrame:
        """The rows of its input, of packed ones. With `before`, that is what packs them, in the same task."""
        chain = plan.chain_of(self.node.number)
        return packed.mapInArrow(partial(_unpack, plan, chain, self.given, before), struct_of(ddl_of(self.given)))


@dataclass(frozen=True)
class OperatorWriting(OwnWriting):
    """Writes the rows that Spark has made. These have lost where they came from, so the bad records of `lettered`, the
    source that has dead letters, are read again for these. `passed` counts what goes into sinks, as `Operators.passed`
    does."""

    plan: Plan
    lettered: KafkaSource | None
    passed: Counter[int] = field(default_factory=Counter)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        return self.plan.graph.schemas()

    def write(self, df: DataFrame, record: EpochRecord, sinks: Sequence[Sink]) -> Written:
        task, letters = task_of(record), self.plan.graph.letters()
        made = [sink for sink in sinks if sink.name not in letters]
        is_numbered = any(writing.is_numbered for _, writing in self.plan.graph.writings())
        dead = next((sink for sink in sinks if sink.name in letters), None)
        others = [] if dead is None else [dead]
        rows = run_writers(with_epoch(df, record.epoch) if is_numbered else df, made, task, others=others)
        self._count(rows)
        if self.lettered is None:
            return rows
        found = bad_of_epoch(df.sparkSession, self.lettered, record.range)
        bad = run_letters(found, Policy(dead, self.lettered.bad_records_max), task, others=made)
        self._count(bad)
        return Written(rows.committables + bad.committables, found=bad.found)

    def _count(self, written: Written) -> None:
        """By one sink of each stream: all of them get the same rows."""
        for stream, sink in {stream: node.name for node, stream in self.plan.edges}.items():
            for each in written.committables:
                if each.sink == sink:
                    self.passed.update({2 * stream: each.rows, 2 * stream + 1: each.bytes})


def lettered(graph: Graph, sources: Iterable[Source]) -> KafkaSource | None:
    """The source whose bad records are read again. Raises ConfigError where that cannot be."""
    read = [*sources]
    found = [source for source in read if source.on_error == "dead_letter"]
    if not found:
        return None
    from onefold.sources.kafka import KafkaSource

    (source,) = found if len(read) == 1 else (None,)
    if not isinstance(source, KafkaSource):
        raise ConfigError(
            "flow-not-on-spark",
            f"flow {graph.flow!r}: the bad records of {found[0].name!r} cannot be dead letters beside an operator that"
            " Spark runs: they are read a second time, which needs one source, a topic. Give it on_error='fail' or"
            " 'skip', or make two flows of it",
        )
    return source


def checked_operator(spark: SparkSession, graph: Graph) -> SparkOperator | None:
    """A flow's, checked as a start does; None where it has none. Raises ConfigError, also for a column that Spark has
    no type for."""
    if (found := graph.querying()) is None:
        return None
    node, querying = found
    given = schema_of(ddl_of(graph.schema(node.inputs[0])))
    mode = cast(Literal["append", "update"], querying.output_mode)
    operator = SparkOperator(node, querying.query, mode, given)
    letters = graph.letters()
    sinks = [writing.sink for _, writing in graph.writings()]
    operator.check(spark, [sink for sink in sinks if sink.name not in letters])
    return operator


def for_tasks(graph: Graph) -> Graph:
    """The graph without the operator's function, which the driver calls, and which need not pickle."""
    nodes = [
        replace(node, operator=replace(node.operator, query="")) if isinstance(node.operator, Querying) else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def _unpack(
    plan: Plan, chain: Chain, given: pa.Schema, before: Callable[[Batches], Batches] | None, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """The rows for one chain. Others are bad records, which are read again for the dead letters, or skipped: only the
    task's own log can say so."""
    freeze_imports()
    name, read = name_of(chain), {node.number: reading.source for node, reading in plan.graph.readings()}
    for batch in batches if before is None else before(batches):
        for row in packed_rows(batch):
            if row.chain == name:
                yield unpacked(plan, row).cast(given)
            elif row.exchange == BAD and (source := read[row.sender]).on_error == "skip":
                log.warning("%s: unreadable records, skipped: %d", source.name, row.number)


def _columns(schema: pa.Schema | None) -> list[str]:
    """As an error names them. Whether they may be null is for the rows to show."""
    return [f"{field.name} {type_name(field.type)}" for field in schema or ()]


def _differences(declared: Sequence[str], found: Sequence[str]) -> str:
    told = []
    for number, (wanted, made) in enumerate(zip_longest(declared, found), start=1):
        if wanted != made:
            told.append(f"column {number} is declared {wanted or 'not at all'}, and is {made or 'not made'}")
    return "; ".join(told)

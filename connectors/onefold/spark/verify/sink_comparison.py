"""Compares what a sink is to have, by the flow's own operators or by an expectation, with what it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onefold.core import Committable, ConfigError
from onefold.core.checks import present
from onefold.core.invariants import Comparison
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.flow.graph.nodes import Graph
from onefold.sinks.kafka import KafkaSink
from onefold.sinks.postgres import PostgresSink
from onefold.spark.errors.failures import from_spark
from onefold.spark.runtime.dataframe_columns import columns, is_case_told
from onefold.spark.transforming import SOURCE, selected
from onefold.spark.verify.comparing.comparison import check, compare, near
from onefold.spark.verify.comparing.reconcile import DeadLetters, read_dead_letters, shown
from onefold.spark.verify.comparing.sides import Sources
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.expected import Expected, sources_of
from onefold.spark.verify.kafka_results import compare_with_topic
from onefold.spark.verify.locating import locating
from onefold.spark.verify.origin import SourceRecords
from onefold.spark.verify.relations import There, Verifiable, is_table
from onefold.spark.verify.second_parser import is_not_taken

if TYPE_CHECKING:
    from onefold.sinks.hbase import HBaseSink
    from onefold.sinks.sql import SqlSink

_OF_POSITION = re.compile(r"kafka_|(?<!count\()\*", re.IGNORECASE)  # what asks for columns of a position, or for all


@contextmanager
def reading(origins: Sequence[SourceRecords]) -> Iterator[None]:
    """Spark's failures come in onefold's words, and what was kept of the records is let go in the end."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise from_spark(error) from error
    finally:
        for origin in origins:
            origin.release()


@dataclass(frozen=True)
class Asked:
    """What is asked of a pipeline's sink, whose rows `key` tells apart. With `expect` a query says what it is to have,
    and no operator of the flow. `mending` takes what is wrong."""

    pipeline: str
    sink: Verifiable
    key: Sequence[str]
    expect: str = ""
    mending: WrongRows | None = None


def made_of(asked: Asked, graph: Graph) -> tuple[Expected | None, list[str]]:
    """What makes the sink's rows, None where a query does, and the names of the sources that they are made of."""
    if asked.expect:
        return None, sources_of(graph, asked.sink.name)
    made = Expected.of(graph, asked.sink.name)
    return made, [made.source.name]


def compared(
    asked: Asked,
    origins: Sequence[SourceRecords],
    made: Expected | None,
    there: There,
    leftovers: Sequence[Committable] = (),
) -> Comparison:
    """With what the flow's own operators make of the records; or, where these are not asked, with what a query does."""

    def compare_with(origins: Sequence[SourceRecords]) -> Comparison:
        if made is None:
            return _compared_with_expectation(asked, origins, there)
        return _compared_with_rows(asked, replace(origins[0], transform=made.rows), made, there, leftovers)

    try:
        found = compare_with(origins)
    except (PySparkException, Py4JJavaError) as error:
        if not is_not_taken(error):
            raise
        origins = [replace(origin, is_passed=False) for origin in origins]
        found = compare_with(origins)
    notes = [note for origin in origins for note in origin.notes()]
    if found.unexpected and (topics := [topic for origin in origins for topic in origin.compacted()]):
        gone = f"{', '.join(topics)}: compacted, so older records of a key may be gone, and rows of them are unexpected"
        notes.append(gone)
        if asked.mending is not None:
            asked.mending.refuse(gone)
    return replace(found, notes=(*found.notes, *notes))


def _compared_with_rows(
    asked: Asked, origin: SourceRecords, made: Expected, there: There, leftovers: Sequence[Committable]
) -> Comparison:
    sink, key, mending, sources = asked.sink, asked.key, asked.mending, locating(origin, made)
    if there.is_copy:
        rows, changes = origin.rows(), sink.settings.changes if is_table(sink) else None
        return compare(rows, there.rows(rows.schema), key, changes, sources=sources, mending=mending)
    if isinstance(sink, KafkaSink):
        return compare_with_topic(origin, present(there.topic, "a look at a topic"), key, leftovers, mending)
    if is_table(sink):
        letters = None
        if isinstance(sink, PostgresSink):
            letters = read_dead_letters(origin.spark, asked.pipeline, sink, there.snapshot, there.stored)
        return compare_with_table(origin.rows(), sink, there, key, letters, sources, mending)
    return _compare_with_hbase(origin, cast("HBaseSink", sink), there, sources, mending)


def _compared_with_expectation(asked: Asked, origins: Sequence[SourceRecords], there: There) -> Comparison:
    sink, key = asked.sink, asked.key
    may_ask = _OF_POSITION.search(asked.expect) is not None
    views = {origin.source.name: origin.with_columns_of_position() if may_ask else origin.rows() for origin in origins}
    if len(origins) == 1:
        views[SOURCE] = next(iter(views.values()))
    # Kept: a query may give other rows each time that it is asked.
    expected = origins[0].keep(there.stored(selected(views, asked.expect)))
    if isinstance(sink, KafkaSink):
        key = key or sink.settings.encoding.key
    check(expected, key)
    is_told = is_case_told(origins[0].spark)
    names = [name if is_told else name.lower() for name in expected.columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError("column-name-twice", f"the expectation has two columns {twice!r}: rename one")
    return compare(expected, near(there.rows(expected.schema), expected, key), key, mending=asked.mending)


def compare_with_table(
    expected: DataFrame,
    sink: PostgresSink | SqlSink,
    there: There,
    key: Sequence[str],
    letters: DeadLetters | None = None,
    sources: Sources | None = None,
    mending: WrongRows | None = None,
) -> Comparison:
    """Compare rows with those of a sink's table."""
    expected = there.stored(expected)
    actual = there.rows(expected.select(columns(shown(sink, expected.columns))).schema)
    changes = sink.settings.changes
    if changes is not None and EPOCH_COLUMN in changes.order and EPOCH_COLUMN not in expected.columns:
        expected = expected.withColumn(EPOCH_COLUMN, F.lit(0))  # of update mode: here each group is one row
    return compare(expected, actual, key, changes, letters, sources=sources, mending=mending)


def _compare_with_hbase(
    origin: SourceRecords, sink: HBaseSink, there: There, sources: Sources | None, mending: WrongRows | None
) -> Comparison:
    # Here, for who verifies a Postgres table need not have HBase's client.
    from onefold.spark.verify.hbase_results import due, newest_by_epoch

    wanted = due(origin.rows(), sink)
    found_there = there.rows(wanted.rows.select(columns(wanted.shown)).schema)
    wanted = newest_by_epoch(wanted, origin)
    actual = near(found_there, wanted.rows, wanted.key, wanted.sums)
    found = compare(wanted.rows, actual, wanted.key, wanted.versions, sources=sources, mending=mending)
    if not found.untold:
        return found
    first = min((record.epoch for record in origin.history), default=0)
    note = (
        f"{found.untold} rows have several versions that are all from before epoch {first}, the oldest that the"
        " checkpoint store remembers: which of them is the newest nobody can tell any more, and any counts as right"
    )
    return replace(found, notes=(note,))

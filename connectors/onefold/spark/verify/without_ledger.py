"""Verifies what somebody else has written, by all that the sources have, or what is before given positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onefold.core import ConfigError, Positions, Range
from onefold.core.invariants import Evidence, NoDuplicate, NoLoss, verdicts
from onefold.core.source import MemoryJournal, Source, unbounded
from onefold.flow.graph.nodes import Graph
from onefold.spark.runtime.dataframe_columns import columns
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.expected import Expected
from onefold.spark.verify.origin import SourceRecords
from onefold.spark.verify.relations import There, Verifiable, looked_at
from onefold.spark.verify.sink_comparison import Asked, compared, made_of, reading
from onefold.spark.verify.verification import Verification, once_more_guarded

_PARTITIONS_MAX = 20  # that are named
_NOTE = (
    "nothing is known of how this was written: whether it shows a part of what a writer calls a transaction, or has one"
    " in doubt, cannot be told. Expected is what the sources have before {}"
)
_LATER = "expected begins at {}: older records are gone, or not asked for, and rows of them are unexpected"


def verify_without_ledger(
    spark: SparkSession,
    graph: Graph,
    sink: Verifiable,
    key: Sequence[str],
    expect: str = "",
    until: Mapping[str, int] | None = None,
    against: Graph | None = None,
    mending: WrongRows | None = None,
) -> Verification:
    """Compare what the flow's sources have now with the table or topic that a sink of it describes, without asking who
    wrote it; or with what another flow, `against`, would give its first sink. Of partitions named by `until`, as
    `orders/0`, records before that offset. Asks no checkpoint store, and writes nothing.

    Raises ConfigError where the flow has an operator with state before the sink and there is no `expect`.
    """
    asked = Asked(graph.flow, sink, key, expect, mending)
    return once_more_guarded(spark, lambda: _verify(spark, graph, asked, until or {}, against))


def _verify(
    spark: SparkSession, graph: Graph, asked: Asked, until: Mapping[str, int], against: Graph | None
) -> Verification:
    sink, left, (made, names) = asked.sink, dict(until), made_of(asked, graph)
    with ExitStack() as opened:
        origins, first, end = _records(spark, graph, names, left, opened)
        if left:
            raise ConfigError("option-value", f"--until names {', '.join(left)}, and the sources have {_said(end)}")
        opened.enter_context(reading(origins))
        there = opened.enter_context(looked_at(spark, sink)) if against is None else _copy(spark, against, opened)
        found = compared(asked, origins, made, there)
    notes = [*found.notes, _NOTE.format(_said(end))]
    if against is not None:
        notes.append(f"in the place of sink {sink.name!r} stands what {against.flow!r} makes of its source")
    later = Positions.of([(name, at) for name, at in first.items if isinstance(at, int) and at > 0])
    if later.items:
        notes.append(_LATER.format(_said(later)))
        if asked.mending is not None:
            asked.mending.refuse(notes[-1])
    found = replace(found, notes=tuple(notes))
    evidence = Evidence(compared={sink.name: found})
    more = (f"{sink.name} shows {found.unexpected} records that the sources do not have",) if found.unexpected else ()
    judged = verdicts(evidence, (NoLoss(), NoDuplicate())) | {"nothing-else": more}
    return Verification(found, end, 0, judged)


def _records(
    spark: SparkSession, graph: Graph, names: Sequence[str], left: dict[str, int], opened: ExitStack
) -> tuple[list[SourceRecords], Positions, Positions]:
    """What sources have now, or before what is named of them, which goes from `left`; and where that begins and ends.
    What their planners hold is closed with `opened`."""
    origins, first, end = [], Positions(), Positions()
    for node, of in graph.readings():
        if of.source.name not in names:
            continue
        source = unbounded(graph.resolved(node, lambda _, find: find()))
        planner = opened.enter_context(closing(source.planner(journal=MemoryJournal())))
        begin = planner.initial()
        mine = _until(source, begin, planner.latest(begin), left)
        end, first = end.beside(mine), first.beside(begin)
        origins.append(SourceRecords(spark, source, planner.splits(Range(begin, mine))))
    return origins, first, end


def _copy(spark: SparkSession, graph: Graph, opened: ExitStack) -> There:
    """What a flow would give its first sink, which is not asked, of all that its source has now."""
    made = Expected.of(graph, next(writing.sink.name for _, writing in graph.writings()))
    (origin,), _, _ = _records(spark, graph, [made.source.name], {}, opened)

    def rows(schema: StructType) -> DataFrame:
        found = made.rows(origin.rows())
        kinds = {field.name: field.dataType.simpleString() for field in found.schema}
        wanted = {field.name: field.dataType.simpleString() for field in schema}
        if lacking := [f"{name} {kind}" for name, kind in wanted.items() if kinds.get(name) != kind]:
            has = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
            raise ConfigError(
                "verify-columns-missing",
                f"the rows of {graph.flow!r} have no columns {', '.join(lacking)} as those that they are compared with;"
                f" they have {has}. Give both the same by schema= or a step",
            )
        return found.select(columns(schema.names))

    return There(rows, is_copy=True)


def _until(source: Source, begin: Positions, latest: Positions, left: dict[str, int]) -> Positions:
    """The source's end, and what is named of it, which goes from `left`."""
    first, last = dict(begin.items), dict(latest.items)
    given = {name: left.pop(name) for name in [*left] if source.covers(name) and isinstance(last.get(name), int)}
    for name, offset in given.items():
        if not int(first.get(name, 0)) <= offset <= int(last[name]):
            raise ConfigError(
                "option-value", f"--until {name}={offset}: the source has it from {first.get(name, 0)} to {last[name]}"
            )
    return Positions.of({**last, **given}, latest.marks)


def _said(positions: Positions) -> str:
    shown = [f"{name}={at}" for name, at in positions.items[:_PARTITIONS_MAX]]
    return ", ".join(shown) + (" and others" if len(positions.items) > len(shown) else "")

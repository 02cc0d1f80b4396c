"""What a pipeline's sinks would get of its first records: these go through its flow, and nothing is written."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pyarrow as pa

from onefold.core import Sink
from onefold.core.contract import Upserting
from onefold.core.positions import Range
from onefold.core.source import BoundedSource, MemoryJournal, Part, Source, Split
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.driver.inline_flow import InlineFlow
from onefold.engine.driver.running import check_runs_here
from onefold.flow.graph.nodes import Graph
from onefold.flow.planning import Planners
from onefold.pipeline import Pipeline

_BAD_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SinkPreview:
    """The rows that a sink would get. Of those with the same `key` it keeps one, and so `merged` of them leave no row
    of their own; without a key it keeps each."""

    name: str
    rows: pa.Table
    key: tuple[str, ...] = ()
    merged: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """`read` is how many records of each source were read, by its name, those that cannot be parsed included; `bad` are
    these, as `BAD_COLUMNS`, where the source does not refuse them."""

    pipeline: str
    read: Mapping[str, int]
    bad: pa.Table
    sinks: tuple[SinkPreview, ...]


def preview(pipeline: Pipeline, limit: int) -> Preview:
    """Read at most so many records of each source, from where a first start would begin, and run them through the flow
    as one epoch, in this process. Asks the servers of sources, and no sink's; of a file that leaves a schema open, the
    store for the one that was found.

    Raises ConfigError for an operator that only Spark runs, BadRecord for a record that would end the pipeline, and
    what the flow's functions raise.
    """
    graph = pipeline.graph
    check_runs_here(graph)
    parts = _read(graph, limit)
    given = {number: [("", part) for part in of] for number, of in parts.items()}
    with tempfile.TemporaryDirectory(prefix="onefold-preview-") as folder, closing(InlineFlow(graph, folder)) as flow:
        written = flow.run(given, {}, time.time_ns() // 1_000_000, lambda batch: [batch])
    bad = [part.bad for of in parts.values() for part in of]
    return Preview(
        pipeline.name,
        {graph.nodes[number].name: sum(map(_records, of)) for number, of in parts.items()},
        pa.Table.from_batches(bad, BAD_COLUMNS),
        tuple(
            _of_sink(writing.sink, pa.Table.from_batches(written[writing.sink.name], graph.written(node)))
            for node, writing in graph.writings()
        ),
    )


def _read(graph: Graph, limit: int) -> dict[int, list[Part]]:
    """Of each source by the number of its node."""
    sources = {node.number: _lenient(graph.resolved(node, lambda _, find: find())) for node, _ in graph.readings()}
    with closing(Planners(sources, None, lambda _: MemoryJournal())) as planners:
        begin = planners.initial()
        splits = planners.splits(Range(begin, planners.end(begin)))
        return {number: [*_first(source, splits.get(number, ()), limit)] for number, source in sources.items()}


def _lenient(source: Any) -> Any:
    """The source, which stops at no number of bad records: it reads more of them at once than the first ones."""
    if isinstance(source, BoundedSource):
        return replace(source, source=_lenient(source.source))
    if source.on_error == "fail" or not is_dataclass(source):
        return source
    bounds = {each.name: _BAD_MAX for each in fields(source) if each.name == "bad_records_max"}
    return replace(source, **bounds)  # type: ignore[type-var]


def _first(source: Source, splits: Sequence[Split], limit: int) -> Iterator[Part]:
    """So many records, of each split about as many as of any other."""
    for number, split in enumerate(splits):
        left = -(-limit // (len(splits) - number))
        limit -= left
        for part in source.read(split):
            bad = part.bad.slice(0, left)  # of what comes together, these are what one wants to see
            rows = part.rows.slice(0, left - bad.num_rows)
            left -= rows.num_rows + bad.num_rows
            yield Part(rows, bad)
            if not left:
                break
        limit += left  # what it does not have, the others may


def _records(part: Part) -> int:
    return int(part.rows.num_rows + part.bad.num_rows)


def _of_sink(sink: Sink, rows: pa.Table) -> SinkPreview:
    upsert = sink.upsert() if isinstance(sink, Upserting) else None
    if upsert is None:
        return SinkPreview(sink.name, rows)
    named = rows.select(upsert.key).drop_null()  # null is no key
    return SinkPreview(
        sink.name, rows, upsert.key, named.num_rows - named.group_by([*upsert.key]).aggregate([]).num_rows
    )

"""What a flow says of windows, checked: by which column of time, and which columns come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates import Aggregate, aggregated_schema
from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us
from onefold.core.values.names import check_columns
from onefold.flow.building import Nodes, needs_uid
from onefold.flow.evaluation import column_of
from onefold.flow.graph import (
    Deduplicating,
    Edge,
    Filtering,
    FlatMapping,
    Joining,
    MappingBatches,
    Processing,
    Reading,
    Selecting,
    Uniting,
    Windowing,
    clocks_of,
)
from onefold.flow.time.joins import AsOf
from onefold.flow.time.triggers import EachEpoch, Every, Timing, Trigger
from onefold.flow.time.watermarks import is_time
from onefold.flow.time.windows import SIZE_US_MAX, Aligned, Session, Sessions, Sliding, Tumbling, aligned

__all__ = [
    "EMISSION",
    "RETRACTS",
    "WINDOW_END",
    "WINDOW_START",
    "ResultsOf",
    "Window",
    "WindowOptions",
    "Windows",
    "rows_time",
    "windows_of",
]

WINDOW_START, WINDOW_END, EMISSION, RETRACTS = "window_start", "window_end", "emission", "retracts"
ResultsOf: TypeAlias = Literal["accumulating", "discarding", "retracting"]
Window: TypeAlias = Tumbling | Sliding | Session


@dataclass(frozen=True, slots=True)
class Windows:
    """Those that a user has asked for, of the rows of an edge: without aggregates so far."""

    nodes: Nodes
    edge: Edge
    windowing: Windowing
    late: str | None

    def aggregated(self, uid: str | None, columns: Mapping[str, Aggregate | Timing], queryable: bool) -> Edge:
        """Raises ConfigError for what cannot be computed, and for a name that a window's own column has."""
        given, of = self.nodes.schema(self.edge), self.windowing
        timings = [name for name, each in columns.items() if isinstance(each, Timing)]
        aggregates = {name: each for name, each in columns.items() if not isinstance(each, Timing)}
        found = aggregated_schema(given, of.key, aggregates)
        kind = pa.timestamp("us", getattr(given.field(of.on).type, "tz", None))
        own = [pa.field(WINDOW_START, kind, nullable=False), pa.field(WINDOW_END, kind, nullable=False)]
        again = [pa.field(EMISSION, pa.int64(), nullable=False)] if of.fires_again else []
        again += [pa.field(RETRACTS, pa.bool_(), nullable=False)] if of.takes_back else []
        again += [pa.field(name, pa.string(), nullable=False) for name in timings]
        if len(timings) > 1:
            raise ConfigError("option-value", f"aggregate({uid!r}): {' and '.join(timings)} are timing(): have one")
        names = [field.name for field in (*own, *again)]
        taken = [name for name in names if name in found.names or names.count(name) > 1]
        if taken := taken + [name for name in (*given.names, *found.names) if name.startswith("$")]:
            raise ConfigError(
                "column-name-taken",
                f"aggregate({uid!r}): {taken[0]!r} is a column that windows add, or begins as those do that they keep."
                " Name that of the rows, or the aggregate, otherwise",
            )
        keys, results = [*found][: len(of.key)], [*found][len(of.key) :]
        schema = pa.schema([*keys, *own, *results, *again])
        sides = {} if self.late is None else {self.late: given}
        operator = replace(of, aggregates=tuple(aggregates.items()), timing=next(iter(timings), None))
        node = self.nodes.add(operator, [self.edge], schema, sides, needs_uid(uid, "aggregate"), queryable)
        return Edge(node.number)


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """As `KeyedStream.window` is given them."""

    on: str | None
    lateness: str
    late: str | None
    trigger: Trigger | None
    results: ResultsOf


def windows_of(nodes: Nodes, edge: Edge, window: Window, given: WindowOptions) -> Windows:
    """Raises ConfigError for an unknown window, for rows whose time is not known, and for those without watermarks."""
    if isinstance(window, Session):
        found: Aligned | Sessions = _sessions(nodes.schema(edge), window)
    else:
        pane_us = duration_us(given.trigger.interval, "interval") if isinstance(given.trigger, Every) else 0
        found = aligned(window, pane_us)
    _check_trigger(found, given.trigger)
    if given.results not in (known := get_args(ResultsOf)):
        raise ConfigError("option-value", f"window: results={given.results!r:.100} is {' or '.join(known)}")
    clocks_of(nodes.made, [edge])
    name, is_end = rows_time(nodes, edge, given.on, "window")
    lateness_us = duration_us(given.lateness, "lateness")
    windowing = Windowing(found, str(window), name, is_end, edge.key, (), lateness_us, given.results, given.trigger)
    if isinstance(found, Sessions) and windowing.fires_again and given.results == "discarding":
        raise ConfigError(
            "session-parts",
            "window: results='discarding' gives the result of a window in parts, and a session changes its start and"
            " end from one to the next: leave out results=, or have the parts taken back by results='retracting'",
        )
    return Windows(nodes, edge, windowing, given.late)


def rows_time(nodes: Nodes, edge: Edge, on: str | None, label: str) -> tuple[str, bool]:
    """The column of the rows' time, and whether they are older than that. Raises ConfigError where it is not known."""
    kept, schema = _time_of(nodes, edge), nodes.schema(edge)
    if on is None and kept is None:
        named = ", or name another with on=" if label == "window" else ""
        raise ConfigError(
            "time-column-missing",
            f"{label}: the rows have {', '.join(schema.names)}, and none of these is the time that the source's"
            f" watermarks go by: keep that column until here{named}",
        )
    name, is_end = kept if kept is not None and on in (None, kept[0]) else (str(on), False)
    check_columns([name], schema, label)
    if not is_time(kind := schema.field(name).type):
        raise ConfigError(
            "watermark-column", f"{label}: {name!r} is of type {kind}: name a column of timestamps or dates with on="
        )
    return name, is_end


def _sessions(schema: pa.Schema, window: Session) -> Sessions:
    """Raises ConfigError for a gap that is neither a duration nor a column of durations."""
    if isinstance(window.gap, pc.Expression):
        name = column_of(window.gap)
        if name is None or not pa.types.is_duration(schema.field(name).type if name in schema.names else pa.null()):
            raise ConfigError(
                "session-gap-column",
                f"window: the gap {window.gap} is no column of durations: make one before, as by"
                " with_columns(gap=pc.field('seconds').cast(pa.duration('s'))), and give pc.field('gap')",
            )
        return Sessions(None, name)
    gap_us = duration_us(window.gap, "gap")
    if not 0 < gap_us < SIZE_US_MAX:
        raise ConfigError(
            "option-value", f"sessions of {window}: let the gap be longer than nothing, and under 36,000 years"
        )
    return Sessions(gap_us, None)


def _check_trigger(windows: Aligned | Sessions, trigger: Trigger | None) -> None:
    if not isinstance(trigger, Every | EachEpoch | None):
        raise ConfigError(
            "option-value", f"window: trigger={trigger!r:.100} is none: give Every('10 seconds') or EachEpoch()"
        )
    if not isinstance(trigger, Every):
        return
    if isinstance(windows, Sessions):
        raise ConfigError(
            "trigger-sessions",
            f"window: Every({trigger.interval!r}) counts from a window's start, and that of a session changes: use"
            " EachEpoch()",
        )
    if not windows.pane_us or windows.size_us % windows.pane_us or windows.slide_us % windows.pane_us:
        raise ConfigError(
            "trigger-interval",
            f"window: Every({trigger.interval!r}) does not divide the windows' size and slide: choose an interval that"
            " does",
        )


def _time_of(nodes: Nodes, edge: Edge) -> tuple[str, bool] | None:
    """The column of event time, as far as it is known, and whether it is the end of a window, whose rows are older. A
    session fires once the watermark is beyond its end, so its row is at the end itself: before it that may be late."""
    node = nodes.made[edge.source]
    match node.operator:
        case Reading(_, watermarks) if edge.output is None and watermarks is not None and watermarks.column is not None:
            return watermarks.column, False
        case Windowing(windows, on=on, is_end=is_end):
            return (WINDOW_END, isinstance(windows, Aligned)) if edge.output is None else (on, is_end)
        case Joining(Aligned()) if edge.output is None:
            return WINDOW_END, True
        case Joining(of, sides=sides, late=late) if edge.output is not None or isinstance(of, AsOf):
            side = sides[0 if edge.output is None else late.index(edge.output)]
            return side.on, side.is_end
        case Filtering() | Deduplicating():
            return _time_of(nodes, node.inputs[0])
        case Selecting(columns):
            before = _time_of(nodes, node.inputs[0])
            named = [name for name, made in columns if before is not None and column_of(made) == before[0]]
            return (named[0], before[1]) if before is not None and named else None
        case Uniting():
            return _same([_time_of(nodes, each) for each in node.inputs])
        case MappingBatches() | FlatMapping() | Processing():
            before = _time_of(nodes, node.inputs[0])
            return None if before is None or not _is_kept(nodes, edge, before[0]) else before
        case _:
            return None


def _is_kept(nodes: Nodes, edge: Edge, name: str) -> bool:
    """Whether what a function gives has a column of that name and type, as it was given."""
    given, schema = nodes.schema(nodes.made[edge.source].inputs[0]), nodes.schema(edge)
    return name in schema.names and bool(schema.field(name).type == given.field(name).type)


def _same(found: Sequence[tuple[str, bool] | None]) -> tuple[str, bool] | None:
    return found[0] if len(set(found)) == 1 else None

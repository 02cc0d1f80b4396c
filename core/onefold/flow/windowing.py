"""What a flow says of windows, checked: by which column of time, and which columns come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates import Aggregate, aggregated_schema
from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us
from onefold.core.values.names import check_columns
from onefold.flow.building import Nodes, needs_uid
from onefold.flow.evaluation import column_of
from onefold.flow.graph.event_time import check_timed
from onefold.flow.graph.nodes import Edge
from onefold.flow.graph.operators import (
    WINDOW_END,
    WINDOW_NUMBER,
    Deduplicating,
    Elements,
    Filtering,
    FlatMapping,
    Joining,
    MappingBatches,
    Processing,
    Reading,
    Selecting,
    Uniting,
    Windowing,
)
from onefold.flow.processing.declaring import as_schema
from onefold.flow.processing.processor import Schema
from onefold.flow.time.evictors import Evictor, KeepDelta, KeepLast
from onefold.flow.time.joins import AsOf
from onefold.flow.time.triggers import AfterRows, EachEpoch, Every, OnDelta, Purging, Timing, Trigger, check_trigger_of
from onefold.flow.time.watermarks import is_time
from onefold.flow.time.window_processor import WindowProcessor
from onefold.flow.time.windows import (
    SIZE_US_MAX,
    Aligned,
    Global,
    Rows,
    Session,
    Sessions,
    Sliding,
    Tumbling,
    Whole,
    aligned,
    check_clock,
)

EMISSION, RETRACTS = "emission", "retracts"
ResultsOf: TypeAlias = Literal["accumulating", "discarding", "retracting"]
Window: TypeAlias = Tumbling | Sliding | Session | Rows | Global


@dataclass(frozen=True, slots=True)
class Windows:
    """Those that a user has asked for, of the rows of an edge: without what is made of them so far."""

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
        if len(timings) > 1:
            raise ConfigError("option-value", f"aggregate({uid!r}): {' and '.join(timings)} are timing(): have one")
        if queryable and (of.elements is not None or (isinstance(of.windows, Aligned) and of.windows.calendar)):
            raise ConfigError(
                "window-not-queryable",
                f"aggregate({uid!r}): windows whose rows are kept one by one, and those of a zone, cannot be asked for"
                " while they are open: leave out queryable=",
            )
        operator = replace(of, aggregates=tuple(aggregates.items()), timing=next(iter(timings), None))
        return self._made("aggregate", operator, uid, [*found][len(of.key) :], {}, queryable)

    def processed(
        self,
        processor: WindowProcessor,
        schema: Schema | None,
        uid: str | None,
        sides: Mapping[str, Schema] | None = None,
    ) -> Edge:
        """Rows of that schema; of the given rows' own without their key. Raises ConfigError for what is no processor of
        windows."""
        label, of = type(processor).__name__, self.windowing
        if not isinstance(processor, WindowProcessor):
            raise ConfigError("processor-kind", f"process takes a subclass of WindowProcessor, and {label} is none")
        if self.late is not None and self.late in (sides or {}):
            raise ConfigError(
                "option-value", f"process({uid!r}): {self.late!r} is the side output of late rows: name that otherwise"
            )
        own = [field for field in self.nodes.schema(self.edge) if field.name not in of.key]
        elements = replace(of.elements or Elements(late=self.late), processor=processor)
        columns = own if schema is None else [*as_schema(schema, label)]
        return self._made(f"process({label})", replace(of, elements=elements), uid, columns, sides or {})

    def _made(
        self,
        label: str,
        of: Windowing,
        uid: str | None,
        results: Sequence[pa.Field],
        sides: Mapping[str, Schema],
        queryable: bool = False,
    ) -> Edge:
        given = self.nodes.schema(self.edge)
        finer = [field.name for field in given if getattr(field.type, "unit", None) == "ns"]
        if of.elements is not None and finer:
            raise ConfigError(
                "window-column-type",
                f"{label}({uid!r}): {finer[0]!r} is of nanoseconds, which rows that are kept one by one cannot have:"
                " cast it to microseconds before the window",
            )
        zone = "UTC" if of.on is None else getattr(given.field(of.on).type, "tz", None)
        kinds = {WINDOW_NUMBER: pa.int64()}
        own = [pa.field(name, kinds.get(name, pa.timestamp("us", zone)), nullable=False) for name in of.columns]
        again = [pa.field(EMISSION, pa.int64(), nullable=False)] if of.fires_again else []
        again += [pa.field(RETRACTS, pa.bool_(), nullable=False)] if of.takes_back else []
        again += [] if of.timing is None else [pa.field(of.timing, pa.string(), nullable=False)]
        keys = [given.field(name) for name in of.key]
        names = [field.name for field in (*own, *again)]
        others = [field.name for field in (*keys, *results)]
        taken = [name for name in names if name in others or names.count(name) > 1]
        taken += [name for name in others if others.count(name) > 1]
        if taken := taken + [name for name in (*given.names, *others) if name.startswith("$")]:
            raise ConfigError(
                "column-name-taken",
                f"{label}({uid!r}): {taken[0]!r} is a column that windows add, or begins as those do that they keep."
                " Name that of the rows, or the result, otherwise",
            )
        outputs = {**({} if self.late is None else {self.late: given}), **sides}
        schema = pa.schema([*keys, *own, *results, *again])
        return Edge(self.nodes.add(of, [self.edge], schema, outputs, needs_uid(uid, label), queryable).number)


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """As `KeyedStream.window` is given them."""

    on: str | None
    lateness: str
    late: str | None
    trigger: Trigger | Purging | None
    evictor: Evictor | None
    results: ResultsOf


def windows_of(nodes: Nodes, edge: Edge, window: Window, given: WindowOptions) -> Windows:
    """Raises ConfigError for an unknown window, for rows whose time is not known, and for those without watermarks."""
    if given.results not in (known := get_args(ResultsOf)):
        raise ConfigError("option-value", f"window: results={given.results!r:.100} is {' or '.join(known)}")
    if isinstance(window, Rows):
        given = _of_rows(window, given)
    trigger, results = given.trigger, given.results
    if isinstance(trigger, Purging):
        if trigger.trigger is None or results == "retracting":
            raise ConfigError(
                "option-value",
                f"window: Purging({trigger.trigger}) takes a trigger, and its firings empty the window: leave out"
                " results='retracting'",
            )
        trigger, results = trigger.trigger, "discarding"
    if trigger is not None:
        check_trigger_of(trigger)
    pane_us = trigger.step_us if type(trigger) is Every and trigger.clock == "event" else 0
    found: Aligned | Sessions | Whole
    if isinstance(window, Session):
        found = _sessions(nodes.schema(edge), window)
    elif isinstance(window, Rows | Global):
        found = Whole(isinstance(window, Rows))
    else:
        found = aligned(window, pane_us)
    clock = getattr(window, "clock", "event")
    check_clock(clock, getattr(window, "zone", None))
    _check_trigger(found, trigger, nodes.schema(edge), given.evictor)
    lateness_us = duration_us(given.lateness, "lateness")
    if (clock == "processing" or isinstance(found, Whole)) and (lateness_us or given.late is not None):
        raise ConfigError("window-lateness", f"windows of {window}: no row comes late: leave out lateness= and late=")
    if given.evictor is not None and results == "discarding":
        raise ConfigError(
            "evictor-discarding", "window: where each firing empties the window there is nothing to evict"
        )
    by_arrival = type(trigger) in (AfterRows, EachEpoch, OnDelta) or getattr(trigger, "clock", "event") != "event"
    by_arrival = by_arrival and given.on is None and type(given.evictor) in (type(None), KeepLast, KeepDelta)
    if clock == "processing" or (isinstance(found, Whole) and by_arrival and _time_of(nodes, edge) is None):
        name, is_end = None, False
    else:
        check_timed(nodes.made, [edge])
        name, is_end = rows_time(nodes, edge, given.on, "window")
    is_by_states = trigger is None or pane_us or type(trigger) is EachEpoch
    by_rows = isinstance(found, Whole) or given.evictor is not None or not is_by_states
    elements = Elements(given.evictor, late=given.late) if by_rows else None
    key = edge.key
    windowing = Windowing(found, str(window), name, is_end, key, (), lateness_us, results, trigger, elements=elements)
    if isinstance(found, Sessions) and windowing.fires_again and results == "discarding":
        raise ConfigError(
            "session-parts",
            "window: results='discarding' gives the result of a window in parts, and a session changes its start and"
            " end from one to the next: leave out results=, or have the parts taken back by results='retracting'",
        )
    return Windows(nodes, edge, windowing, given.late)


def _of_rows(window: Rows, given: WindowOptions) -> WindowOptions:
    """Windows of rows are one window for all time, which fires after so many."""
    count, slide = window.count, window.count if window.slide is None else window.slide
    has_more = given.trigger is not None or given.evictor is not None or given.results != "accumulating"
    if type(count) is not int or count < 1 or has_more:
        raise ConfigError(
            "option-value", f"windows of {window}: a number from 1 on, without trigger=, evictor= and results="
        )
    if slide == count:
        return replace(given, trigger=AfterRows(count), results="discarding")
    return replace(given, trigger=AfterRows(slide), evictor=KeepLast(count))


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


def _check_trigger(
    windows: Aligned | Sessions | Whole, trigger: Trigger | None, schema: pa.Schema, evictor: Evictor | None
) -> None:
    if evictor is not None and not isinstance(evictor, Evictor):
        raise ConfigError(
            "option-value", f"window: evictor={evictor!r:.100} is none: give KeepLast(10), KeepTime('1 minute'), ..."
        )
    for each in (trigger, evictor):
        if isinstance(each, OnDelta | KeepDelta):
            check_columns([each.column], schema, "window")
            _check_threshold(each.threshold, schema.field(each.column).type, str(each))
    if trigger is None and isinstance(windows, Whole):
        raise ConfigError("trigger-missing", "window(Global()) has no end to fire at: give it a trigger=")
    if isinstance(windows, Sessions) and trigger is not None and type(trigger).on_merge is Trigger.on_merge:
        raise ConfigError(
            "trigger-sessions",
            f"window: sessions may become one, and {type(trigger).__name__} does not say what becomes of it then: give"
            " it the method on_merge, or use other windows",
        )
    if not isinstance(trigger, Every) or trigger.clock == "processing":
        return
    if isinstance(windows, Sessions):
        raise ConfigError(
            "trigger-sessions",
            f"window: Every({trigger.interval!r}) counts from a window's start, and that of a session changes: use"
            " EachEpoch()",
        )
    step_us, spans = trigger.step_us, (windows.size_us, windows.slide_us) if isinstance(windows, Aligned) else (0,)
    if not step_us or any(span % step_us for span in spans):
        raise ConfigError(
            "trigger-interval",
            f"window: Every({trigger.interval!r}) does not divide the windows' size and slide: choose an interval that"
            " does",
        )


def _check_threshold(threshold: object, kind: pa.DataType, label: str) -> None:
    """Raise ConfigError for a column whose values have no difference, and where that is not what the threshold is."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    is_span = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)
    wanted = (int, float, Decimal) if is_number else timedelta if is_span else ()
    is_nan = threshold.is_nan() if isinstance(threshold, Decimal) else threshold != threshold
    if not isinstance(threshold, wanted) or is_nan:
        raise ConfigError(
            "option-value",
            f"window: {label}: the column is of type {kind}. It takes numbers and a number as the threshold; or"
            " timestamps, dates or durations, and a timedelta",
        )


def _time_of(nodes: Nodes, edge: Edge) -> tuple[str, bool] | None:
    """The column of event time, as far as it is known, and whether it is the end of a window, whose rows are older. A
    session fires once the watermark is beyond its end, so its row is at the end itself: before it that may be late."""
    node = nodes.made[edge.source]
    match node.operator:
        case Reading(_, watermarks) if edge.output is None and watermarks is not None and watermarks.column is not None:
            return watermarks.column, False
        case Windowing(windows, on=on, is_end=is_end):
            if on is None or (isinstance(windows, Whole) and edge.output is None):
                return None
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

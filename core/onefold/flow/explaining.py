"""A flow's graph for people: as text, and as a picture or a diagram's source. With what its sinks guarantee, and the
flow then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onefold.core.contract import Guarantee, Sink, SinkKind
from onefold.core.errors import ConfigError, OnefoldError
from onefold.core.protocol.committer_kinds import sole_last_resource
from onefold.core.source import ReadOnce
from onefold.core.values.ids import IdsWithin, called
from onefold.core.values.names import told_columns
from onefold.flow.drawing.svg import Box, Connector, drawn
from onefold.flow.graph.epochs_apart import aligned_anyway
from onefold.flow.graph.nodes import Edge, Graph, Node, Shipping
from onefold.flow.graph.operators import (
    Aggregating,
    Connecting,
    Deduplicating,
    Elided,
    Filtering,
    FlatMapping,
    Joining,
    MappingBatches,
    Operator,
    Processing,
    Querying,
    Reading,
    Reducing,
    Selecting,
    Uniting,
    Windowing,
    Writing,
)
from onefold.flow.graph.order import order_dependent
from onefold.flow.planning import check_mechanism, check_replayable
from onefold.flow.processing.mechanisms import (
    AlignmentKind,
    Mechanism,
    check_sinks_shown_early,
    promised,
    refuse_write_through,
)
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.windows import Aligned, Whole

_KINDS = {Reading: "source", Writing: "sink", Processing: "state", Connecting: "state"}
_KINDS |= {Reducing: "state", Aggregating: "state", Windowing: "state", Joining: "state", Deduplicating: "state"}
_SHAPES = {
    "source": ('[/"', '"/]'),
    "sink": ('[("', '")]'),
    "state": ('{{"', '"}}'),
    "function": ('["', '"]'),
}  # Mermaid's
_ESCAPES = str.maketrans({char: f"#{ord(char)};" for char in '"#<>&|`\\{}[]()'} | {"\n": " "})


@dataclass(frozen=True, slots=True)
class Protection:
    """What protects a run's records on the engine: settings of `onefold.engine.run`."""

    mechanism: Mechanism = "barriers"
    alignment: AlignmentKind = "aligned"
    workers: int = 1


def explained(graph: Graph, by: Protection) -> str:
    """The graph as text: each operator with its inputs and the columns that it gives, and the guarantees."""
    lines = [f"flow {graph.flow}, {graph.max_parallelism} key groups"]
    for node in graph.nodes:
        lines += ["", f"{node.name}: {_what(node.operator)}"]
        lines += [f"  from {graph.nodes[edge.source].name}{_way(edge)}" for edge in node.inputs]
        for output, schema in node.outputs().items():
            lines.append(f"  {'gives' if output is None else f'side {output}'}: {told_columns(schema)}")
        if isinstance(node.operator, Writing):
            lines += [f"  {line}" for line in _promises(node.operator.sink)]
    return "\n".join([*lines, "", *_guarantee(graph, by)])


def pictured(graph: Graph, by: Protection) -> str:
    """The graph as an SVG."""
    return drawn(f"flow {graph.flow}", boxes(graph), connectors(graph), _guarantee(graph, by))


def diagrammed(graph: Graph, by: Protection) -> str:
    """The graph as a flowchart in Mermaid's language, which has no guarantees; exchanges between workers are thick."""
    del by
    lines = ["flowchart LR"]
    for box in boxes(graph):
        opening, closing = _SHAPES[box.kind]
        told = "<br/>".join(text.translate(_ESCAPES) for text in (box.title, box.says))
        lines.append(f"  n{box.number}{opening}{told}{closing}")
    for way in connectors(graph):
        label = f'|"{way.label.translate(_ESCAPES)}"|' if way.label else ""
        lines.append(f"  n{way.start} {'==>' if way.is_exchange else '-->'}{label} n{way.end}")
    return "\n".join(lines)


def boxes(graph: Graph) -> list[Box]:
    """Its nodes, to be drawn."""
    found = []
    for node in graph.nodes:
        schema = graph.written(node) if node.schema is None else node.schema
        columns = [f"{field.name} {field.type}" for field in schema]
        kind = _KINDS.get(type(node.operator), "function")
        found.append(Box(node.number, node.name, _what(node.operator), tuple(columns), kind))
    return found


def connectors(graph: Graph) -> list[Connector]:
    """Its edges, by the nodes that they lead to."""
    return [
        Connector(edge.source, node.number, _way(edge).lstrip(", "), edge.shipping is not Shipping.FORWARD)
        for node in graph.nodes
        for edge in node.inputs
    ]


def _what(operator: Operator) -> str:
    match operator:
        case Reading(source, watermarks):
            by = "" if watermarks is None else f"; event time {watermarks}"
            return f"reads {type(source).__name__} {source.name}{by}"
        case Filtering(condition, text):
            return f"keeps rows with {text or condition}"
        case Selecting(columns, texts):
            taken = [name if name == str(made) else f"{name} = {texts.get(name, made)}" for name, made in columns]
            return f"selects {', '.join(taken)}"
        case MappingBatches(function):
            return f"maps batches by {_called(function)}"
        case FlatMapping(function):
            return f"maps rows by {_called(function)}"
        case Uniting():
            return "unites streams"
        case Processing(processor, key, states) | Connecting(processor, key, states):
            kept = ", ".join(f"{state.name} ({state.kind.value}{_lives(state.ttl)})" for state in states)
            timers = "; timers of event time" if isinstance(operator, Processing) and operator.timers == "event" else ""
            return f"processes by {', '.join(key)} with {type(processor).__name__}; state: {kept or 'none'}{timers}"
        case Reducing(function, key, ttl):
            return f"reduces by {', '.join(key)} with {_called(function)}{_lives(ttl)}"
        case Aggregating(aggregates, key, ttl):
            made = ", ".join(f"{name} = {each}" for name, each in aggregates)
            return f"aggregates by {', '.join(key)}: {made}{_lives(ttl)}"
        case Windowing() as of:
            return _windows(of)
        case Joining(of, text, sides, how):
            slices = f"; by slices of {of.slice_us / 1_000_000:g} s" if isinstance(of, Aligned) else ""
            by = " and ".join(", ".join(side.key) for side in sides)
            return f"joins by {by}: {text}, of {sides[0].on!r} and {sides[1].on!r}; {how}{slices}"
        case Deduplicating(IdsWithin(span) as ids):
            return f"drops rows whose id was seen within {span}: {called(ids)}; state: ids of that time"
        case Deduplicating(ids, key):
            kept = f"the highest number of each source, by {', '.join(key)}"
            return f"drops rows whose id was seen: {called(ids)}; state: {kept}"
        case Querying(query, output_mode):
            what = (
                f"selects in Spark's SQL {query}" if isinstance(query, str) else f"runs {_called(query)} on DataFrames"
            )
            return f"{what}; only Spark does, with output_mode {output_mode}"
        case Elided():
            return "keeps state"
        case Writing(sink, is_letters, is_numbered):
            more = " dead letters" if is_letters else " rows and their epoch's number" if is_numbered else ""
            return f"writes{more} to {type(sink).__name__}"


def _lives(ttl: Ttl | None) -> str:
    return "" if ttl is None else f", lives {ttl}"


def _called(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def _way(edge: Edge) -> str:
    side = f", side {edge.output}" if edge.output else ""
    match edge.shipping:
        case Shipping.FORWARD:
            return side
        case Shipping.KEYED if not edge.key:
            return f"{side}, all in one task"
        case Shipping.KEYED:
            return f"{side}, by key {', '.join(edge.key)}"
        case shipping:
            return f"{side}, {shipping.value}"


def _windows(of: Windowing) -> str:
    is_aligned, rows = isinstance(of.windows, Aligned), of.elements
    kind = "" if isinstance(of.windows, Whole) else "windows of " if is_aligned else "sessions with gaps of "
    by = ", ".join((*of.key, f"{kind}{of.text}")) + ("" if of.on is None else f" of {of.on!r}")
    made = ", ".join(f"{name} = {each}" for name, each in of.aggregates)
    if rows is not None and not made:
        made = type(rows.processor).__name__
    early = f"; early results {of.trigger}" if of.trigger and not of.by_number else ""
    early += f"; {rows.evictor}" if rows is not None and rows.evictor is not None and not of.by_number else ""
    longer = f", {of.lateness_us / 1_000_000:g} s longer for late rows" if of.lateness_us else ""
    again = f"; {of.results}{longer}" if of.fires_again else ""
    path = "; by elements"
    if rows is None:
        is_of_zone = isinstance(of.windows, Aligned) and of.windows.calendar is not None
        length = f" of {of.windows.slice_us / 1_000_000:g} s" if isinstance(of.windows, Aligned) else ""
        path = "; by slices" + ("" if is_of_zone else length) if is_aligned else ""
    return f"aggregates by {by}: {made}{early}{again}{path}"


def _guarantee_of(sink: Sink) -> Guarantee | str:
    try:
        return sink.guarantee()
    except OnefoldError as error:
        return error.message


def _shows_early(told: Guarantee | str) -> bool:
    return isinstance(told, Guarantee) and told.kind is SinkKind.WRITE_THROUGH


def _promises(sink: Sink) -> Iterator[str]:
    told = _guarantee_of(sink)
    if isinstance(told, str):
        yield f"guarantee: not known: {told}"
        return
    atomic = "an epoch appears at once" if told.atomic_epoch else "readers may see part of an epoch"
    yield f"guarantee: {told.mode} ({told.kind.value}), {atomic}"
    yield from (f"condition: {condition}" for condition in told.conditions)


def _guarantee(graph: Graph, by: Protection) -> list[str]:
    """What the sinks' guarantees make of the flow, and what protects it."""
    told = {node.name: (node, _guarantee_of(writing.sink)) for node, writing in graph.writings()}
    times = "at least" if by.mechanism == "ack" else "exactly"
    lines = [f"guarantee: every record is reflected {times} once in {', '.join(told)}, after any number of crashes"]
    if says := promised(by.mechanism):
        lines.append(f"mechanism {by.mechanism}: {says}")
    says, may_double = told_of_alignment(graph, by.alignment, by.workers)
    if says:
        lines = [f"guarantee: {says}"] if may_double else [*lines, f"on the engine: {says}"]
    if (found := graph.querying()) is not None:
        letters = ", ".join(graph.letters())
        again = f", and are read a second time for {letters}" if letters else ""
        lines.append(
            f"on Spark alone: {found[0].name} is Spark's, and so is its state; bad records are found before it{again}"
        )
    for align in graph.alignments:
        ahead = f"what is over {align.drift_us / 1_000_000:g} s ahead in event time waits for the others"
        lines.append(f"on the engine: of {', '.join(sorted(align.uids))} {ahead}")
    for node, reading in graph.readings():
        if isinstance(reading.source, ReadOnce):
            when = "at one moment" if reading.source.is_of_one_moment else "each record at a moment of its own"
            lines.append(
                f"condition: {node.name} is read once, whole, in one epoch, {when}; as it is then where that epoch runs"
                " again after a crash"
            )
    for name, (node, guarantee) in told.items():
        if _shows_early(guarantee):
            lines.append(
                f"condition: {name} is written before an epoch is decided, and again after a crash: the same records"
                " must give the same rows"
            )
            if ordered := [each.name for each in order_dependent(graph, node)]:
                lines.append(
                    f"condition: {', '.join(ordered)} before {name} takes rows in an order that is the same again, with"
                    " as many workers: an epoch that was begun runs again with no other number"
                )
    try:
        sole_last_resource({name: each for name, (_, each) in told.items() if isinstance(each, Guarantee)})
        known = [writing.sink for node, writing in graph.writings() if isinstance(told[node.name][1], Guarantee)]
        check_replayable(graph.flow, (reading.source for _, reading in graph.readings()), known)
        early = [name for name, (_, each) in told.items() if _shows_early(each)]
        check_sinks_shown_early(graph.flow, by.mechanism, early)
        refuse_write_through(by.alignment, early)
        check_mechanism(graph, by.mechanism)
    except ConfigError as error:
        lines.append(f"refused at its start: {error.message}")
    return lines


def told_of_alignment(graph: Graph, alignment: AlignmentKind, workers: int) -> tuple[str, bool]:
    """What to tell of `alignment` as `onefold.engine.run` takes it, and whether records may count twice. Of aligned
    barriers there is nothing to tell."""
    if alignment == "aligned":
        return "", False
    aligned = aligned_anyway(graph, alignment == "unaligned")
    stay = [node.name for node in graph.nodes if node.number in aligned and _waits(node, workers)]
    but = f"; {', '.join(stay)}: aligned, for event time, or a sink that goes by the epoch alone" if stay else ""
    if alignment == "unaligned":
        return f"unaligned barriers: what they overtake is stored with its epoch, exactly once{but}", False
    twice = [node.name for node in graph.nodes if node.number not in aligned and _waits(node, workers)]
    if not twice:
        return f"barriers that are not aligned: exactly once, since no subtask has several channels{but}", False
    return f"at least once: after a crash records between two barriers count twice in {', '.join(twice)}{but}", True


def _waits(node: Node, workers: int) -> bool:
    """Whether a subtask may have several channels that lead to it."""
    return len(node.inputs) > 1 or (workers > 1 and any(edge.shipping is not Shipping.FORWARD for edge in node.inputs))


FORMATS: Mapping[str, Callable[[Graph, Protection], str]] = {"text": explained, "svg": pictured, "mermaid": diagrammed}

"""The graph that a flow describes: operators as nodes, the way of records between them as edges. Runtimes read it.

An operator is a frozen value, as a user described it. How it runs is a runtime's own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import present
from onefold.core.contract import Sink, Upserting
from onefold.core.errors import ConfigError
from onefold.core.source import Keep, Source
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.core.writing.dead_letters import LETTER_COLUMNS
from onefold.flow.processing.evolution import NO_EVOLUTION, Evolution
from onefold.flow.time.joins import AsOf, How, JoinSide, Within
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.watermarks import INGESTED_AT, UNTIMED, Watermarks
from onefold.flow.time.windows import Aligned, Sessions, Whole

if TYPE_CHECKING:
    from onefold.core.aggregates import Aggregate
    from onefold.core.values.ids import Deduplication
    from onefold.flow.processing.declaring import StateDeclaration
    from onefold.flow.processing.processor import BroadcastProcessor, StatefulProcessor
    from onefold.flow.processing.rows import Side
    from onefold.flow.time.alignment import Alignment
    from onefold.flow.time.evictors import Evictor
    from onefold.flow.time.triggers import Trigger
    from onefold.flow.time.window_processor import WindowProcessor

WINDOW_START, WINDOW_END, WINDOW_NUMBER = "window_start", "window_end", "window_number"
MAX_PARALLELISM = 32_768  # of key groups: as many as 15 bits name

Dict = dict[str, Any]
TimersOf: TypeAlias = Literal["processing", "event"]
Batches = Callable[[pa.RecordBatch], "pa.RecordBatch | Iterable[pa.RecordBatch | Side]"]


@dataclass(frozen=True)
class Reading:
    """Reads a source, as a user gave it: a runtime asks `Graph.resolved` for the one that it reads. With
    `on_error="dead_letter"` it has the side output `bad`: the records that could not be read, as `BAD_COLUMNS`.
    `watermarks` say what its records are of event time; without them it has none."""

    source: Source
    watermarks: Watermarks | None = None

    def given(self, schema: pa.Schema) -> pa.Schema:
        """What it makes of records of the source's schema."""
        return schema.append(INGESTED_AT) if getattr(self.watermarks, "by_epochs", False) else schema


@dataclass(frozen=True, eq=False)  # expressions have no equality of their own
class Filtering:
    """Keeps the rows for which the expression is true. `text` is what it was given as, where that was a text."""

    condition: pc.Expression
    text: str | None = None


@dataclass(frozen=True, eq=False)
class Selecting:
    """Rows of these columns, by name, each from an expression. `texts` has what those were given as that were texts."""

    columns: tuple[tuple[str, pc.Expression], ...]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MappingBatches:
    """`function` of a record batch gives one or more record batches, of the node's schema (`map_batches`), and
    `Side` for its side outputs."""

    function: Batches


@dataclass(frozen=True)
class FlatMapping:
    """`function` of a row (a dict) gives any number of rows (dicts), and `Side` for its side outputs."""

    function: Callable[[Dict], Iterable[Dict | Side] | None]


@dataclass(frozen=True)
class Uniting:
    """The rows of all inputs, which have one schema."""


@dataclass(frozen=True)
class Processing:
    """Runs a stateful processor on the rows of each key. `states` are those that its `init` asks for; `timers` says of
    which time its timers are."""

    processor: StatefulProcessor
    key: tuple[str, ...]
    states: tuple[StateDeclaration, ...] = ()
    timers: TimersOf = "processing"


@dataclass(frozen=True)
class Reducing:
    """Keeps one row a key: `function(kept, row)` of each further row. Emits the kept row of each key that changed,
    once an epoch."""

    function: Callable[[Dict, Dict], Dict]
    key: tuple[str, ...]
    ttl: Ttl | None = None


@dataclass(frozen=True)
class Aggregating:
    """Keeps aggregates a key. Emits key and aggregates of each key that changed, once an epoch."""

    aggregates: tuple[tuple[str, Aggregate], ...]
    key: tuple[str, ...]
    ttl: Ttl | None = None


@dataclass(frozen=True)
class Windowing:
    """Keeps aggregates a key and window of time. Emits them once the watermark has come to the window's end; again, for
    late rows, in each epoch that has some, until it is `lateness_us` further. The side output, if there is one, has the
    rows that come later than that.

    windows  as the user wrote them: `text`
    on       the column of the rows' time; of an `is_end` the rows are older, as the results of windows are. None in
             windows of processing time, and where none is known to windows for all time
    results  "accumulating": what comes again is of all rows of the window; "discarding": of the new ones; "retracting":
             of all, and before it comes the row that it takes back
    trigger  when it fires before its end, too
    timing   the column that says when a result came
    elements what is done with the rows where they are kept one by one, and not as states by slices and sessions
    """

    windows: Aligned | Sessions | Whole
    text: str
    on: str | None
    is_end: bool
    key: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    lateness_us: int
    results: str
    trigger: Trigger | None = None
    timing: str | None = None
    elements: Elements | None = None

    @property
    def by_number(self) -> bool:
        """Whether they are windows of rows, each of which comes once."""
        return isinstance(self.windows, Whole) and self.windows.is_numbered

    @property
    def is_of_processing(self) -> bool:
        """Whether the epochs' time closes them."""
        return self.on is None and not isinstance(self.windows, Whole)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that say which window a result is of."""
        if isinstance(self.windows, Whole):
            return (WINDOW_NUMBER,) if self.by_number else ()
        return WINDOW_START, WINDOW_END

    @property
    def fires_again(self) -> bool:
        return not self.by_number and (self.lateness_us > 0 or self.trigger is not None)

    @property
    def takes_back(self) -> bool:
        """Whether rows come out that take others back: of a session the start changes, too."""
        return self.fires_again and (self.results == "retracting" or isinstance(self.windows, Sessions))


@dataclass(frozen=True)
class Elements:
    """Windows whose rows are kept as they are.

    evictor    which of them stay when the window fires
    processor  what is made of them; without one they are aggregated
    late       the side output of late rows; others are the processor's
    """

    evictor: Evictor | None = None
    processor: WindowProcessor | None = None
    late: str | None = None


@dataclass(frozen=True)
class Joining:
    """Rows of two inputs that belong together, by their keys and times: of each pair one row. With `how` also the rows
    of the one, the other, or both that belong to none.

    of     windows in which both have to be; or how their times are to each other
    text   that, as the user wrote it
    sides  the inputs
    late   the side outputs of each one's rows that come too late
    """

    of: Aligned | Within | AsOf
    text: str
    sides: tuple[JoinSide, JoinSide]
    how: How
    late: tuple[str | None, str | None] = (None, None)

    @property
    def key(self) -> tuple[str, ...]:
        return self.sides[0].key

    @property
    def lateness_us(self) -> int:
        """How long rows are taken after the watermark has come to them."""
        return self.of.before_us + self.of.after_us if isinstance(self.of, Within) else 0

    @property
    def fires_again(self) -> bool:
        return self.lateness_us > 0


@dataclass(frozen=True)
class Elided:
    """All that a flow remembers, where only its ends are known: commands finish what it left, and nothing runs it."""


@dataclass(frozen=True)
class Deduplicating:
    """Keeps the rows whose id it has not seen.

    key    the columns by which ids are kept: of the record's partition with `OrderedIds`; with `IdsWithin` the id
    id     the column with the id, or those with its source and its sequence. One that the node's rows do not have was
           added for this
    place  the columns of the record's partition and its number there, for errors; empty where the rows do not say it
    """

    ids: Deduplication
    key: tuple[str, ...]
    id: tuple[str, ...]
    place: tuple[str, ...]


@dataclass(frozen=True)
class Connecting:
    """Two inputs: the first's rows by key, the second's broadcast to every subtask. `processor` sees both."""

    processor: BroadcastProcessor
    key: tuple[str, ...]
    states: tuple[StateDeclaration, ...] = ()


@dataclass(frozen=True)
class Querying:
    """Rows that Spark makes, of the columns that its user declared: by SQL, a SELECT over the view `source`, or by a
    function from a streaming DataFrame to another. `output_mode` is Spark's own."""

    query: str | Callable[[Any], Any]
    output_mode: str


@dataclass(frozen=True)
class Writing:
    """Writes to a sink.

    is_letters   the rows are `BAD_COLUMNS`, and the sink gets them as `onefold.core.writing.dead_letters.letters`
    is_numbered  the rows get the number of their epoch, as the column `EPOCH_COLUMN`, which the sink's order names
    """

    sink: Sink
    is_letters: bool = False
    is_numbered: bool = False

    @property
    def keeps_last(self) -> bool:
        """Whether the sink keeps the newest epoch's row of a key, without a column that says which is newer."""
        upsert = self.sink.upsert() if isinstance(self.sink, Upserting) else None
        return upsert is not None and not upsert.order


Operator = (
    Reading
    | Filtering
    | Selecting
    | MappingBatches
    | FlatMapping
    | Uniting
    | Processing
    | Reducing
    | Aggregating
    | Windowing
    | Joining
    | Deduplicating
    | Connecting
    | Elided
    | Querying
    | Writing
)

_CALLED: dict[type, str] = {
    Filtering: "filter",
    Selecting: "select",
    MappingBatches: "map_batches",
    FlatMapping: "flat_map",
    Uniting: "union",
    Querying: "spark",
}  # others have a uid


class Shipping(enum.Enum):
    """How an edge's records get from the subtasks of one operator to those of the next."""

    FORWARD = "forward"  # each subtask to its own one: no exchange
    KEYED = "keyed"  # by the key group of `Edge.key`
    REBALANCE = "rebalance"  # evenly
    BROADCAST = "broadcast"  # all records to every subtask


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of a node: `output` of the node numbered `source`; None is its main output, a name a side output."""

    source: int
    shipping: Shipping = Shipping.FORWARD
    key: tuple[str, ...] = ()
    output: str | None = None

    @property
    def can_overtake(self) -> bool:
        """Whether what barriers overtake on it could be shared out anew at a restore."""
        return self.shipping in (Shipping.KEYED, Shipping.REBALANCE)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in a graph. `schema` is its main output's, `sides` its side outputs'; a sink has neither.
    `queryable`: its state can be asked for while it runs."""

    number: int
    operator: Operator
    inputs: tuple[Edge, ...]
    schema: pa.Schema | None
    sides: tuple[tuple[str, pa.Schema], ...] = ()
    uid: str | None = None
    queryable: bool = False

    @property
    def name(self) -> str:
        """For people: the uid, the sink's name, or what a user called and a number."""
        if isinstance(self.operator, Writing):
            return self.operator.sink.name
        return self.uid or f"{_CALLED[type(self.operator)]}-{self.number}"

    @property
    def keeps_state(self) -> bool:
        """Whether it remembers what it saw, which a runtime keeps for it."""
        keeping = Processing | Reducing | Aggregating | Windowing | Joining | Deduplicating | Connecting | Elided
        return isinstance(self.operator, keeping)

    @property
    def gives_again(self) -> bool:
        """Whether it gives a row of a group again in each epoch that changes it."""
        of = self.operator
        return isinstance(of, Aggregating | Reducing) or (isinstance(of, Windowing) and of.fires_again)

    @property
    def keeps_event_time(self) -> bool:
        """Whether it goes by a watermark."""
        has_timers = isinstance(self.operator, Processing) and self.operator.timers == "event"
        expires = any(ttl.clock == "event" for ttl in self.expires.values())
        has_windows = isinstance(self.operator, Windowing) and not self.operator.is_of_processing
        return has_timers or expires or has_windows or isinstance(self.operator, Joining)

    @property
    def expires(self) -> dict[str, Ttl]:
        """How long its states live, by their names; those that live for ever are left out."""
        match self.operator:
            case Processing(_, _, states) | Connecting(_, _, states):
                return {state.name: state.ttl for state in states if state.ttl is not None}
            case Reducing(_, _, Ttl() as ttl):
                return {"reduced": ttl}
            case Aggregating(_, _, Ttl() as ttl):
                return {"aggregates": ttl}
            case _:
                return {}

    def outputs(self) -> dict[str | None, pa.Schema]:
        """The schema of each output, by its name; None is the main one."""
        return {} if self.schema is None else {None: self.schema, **dict(self.sides)}


@dataclass(frozen=True, slots=True)
class Graph:
    """All of a flow. Nodes are in an order in which every node comes after its inputs; `nodes[n].number == n`.
    `endpoints` is what its store keeps of it for commands that do not import it; `evolution` says what becomes of the
    state of an earlier version; `alignments` which sources wait for each other."""

    flow: str
    nodes: tuple[Node, ...]
    max_parallelism: int = 128
    endpoints: str | None = None
    evolution: Evolution = NO_EVOLUTION
    alignments: tuple[Alignment, ...] = ()

    def outputs(self, node: Node) -> list[tuple[Node, Edge]]:
        """The nodes that read from it, and by which edge."""
        return [(other, edge) for other in self.nodes for edge in other.inputs if edge.source == node.number]

    def before_event_time(self) -> set[int]:
        """The numbers of the nodes that go by event time, and of all whose rows come to one."""
        found: set[int] = set()
        for node in reversed(self.nodes):
            if node.keeps_event_time or node.number in found:
                found |= {node.number, *(edge.source for edge in node.inputs)}
        return found

    def aligned_anyway(self, overtakes: bool) -> set[int]:
        """The numbers of the nodes before which barriers are aligned, whatever is asked for; `overtakes`: so that they
        overtake. What operators know of event time is the same in all subtasks, so all that leads to such an operator
        waits; barriers may overtake before the last one, whose subtasks each have their own rows. And where a sink
        tells by the epoch alone which row of a key is newer, no two epochs' rows may meet on the way to it, nor be
        given in one epoch by an operator that gives a row of a key again in each."""
        timed, overtaken, by_epoch = self.before_event_time(), set[int](), self.by_epoch()
        for node in reversed(self.nodes):
            leads_to = {other.number for other, _ in self.outputs(node)}
            if not node.keeps_state and leads_to & by_epoch:
                by_epoch.add(node.number)
            is_apart = node.gives_again and leads_to & by_epoch
            can_overtake = node.keeps_event_time and all(edge.can_overtake for edge in node.inputs) and not is_apart
            if overtakes and can_overtake and not leads_to & timed:
                overtaken.add(node.number)
        return (timed - overtaken) | by_epoch

    def by_epoch(self) -> set[int]:
        """The numbers of the nodes that write to sinks which tell by the epoch alone which row of a key is newer."""
        found = ((node.number, writing) for node, writing in self.writings())
        return {number for number, of in found if of.is_numbered or (of.keeps_last and self._comes_again(number))}

    def _comes_again(self, number: int) -> bool:
        """Whether rows that come to that node are of groups, and come again when these change."""
        sources = [self.nodes[edge.source] for edge in self.nodes[number].inputs]
        return any(each.gives_again or (not each.keeps_state and self._comes_again(each.number)) for each in sources)

    def schema(self, edge: Edge) -> pa.Schema:
        """Of the records on an edge."""
        return self.nodes[edge.source].outputs()[edge.output]

    def writings(self) -> Iterator[tuple[Node, Writing]]:
        """The nodes that write to sinks, those of dead letters last."""
        found = [(node, node.operator) for node in self.nodes if isinstance(node.operator, Writing)]
        yield from sorted(found, key=lambda each: each[1].is_letters)

    def letters(self) -> tuple[str, ...]:
        """The sinks of dead letters, by their names."""
        return tuple(writing.sink.name for _, writing in self.writings() if writing.is_letters)

    def letters_of(self, source: str) -> Sink | None:
        """The sink of the dead letters of the source of that name."""
        reading = next((node.number for node, reading in self.readings() if reading.source.name == source), None)
        found = [of.sink for node, of in self.writings() if of.is_letters and node.inputs[0].source == reading]
        return next(iter(found), None)

    def readings(self) -> Iterator[tuple[Node, Reading]]:
        """The nodes that read sources."""
        for node in self.nodes:
            if isinstance(node.operator, Reading):
                yield node, node.operator

    def clocks_of(self, node: Node) -> dict[str, Watermarks]:
        """The watermarks of the sources that feed a node, by the sources' uids."""
        return clocks_of(self.nodes, node.inputs)

    @property
    def keeps_state(self) -> bool:
        """Whether its operators remember what they saw, or a query of Spark's does."""
        found = self.querying()
        return (found is not None and found[1].output_mode == "update") or any(node.keeps_state for node in self.nodes)

    def querying(self) -> tuple[Node, Querying] | None:
        """The node whose rows Spark makes, if there is one."""
        found = [(node, node.operator) for node in self.nodes if isinstance(node.operator, Querying)]
        return next(iter(found), None)

    def resolved(self, node: Node, keep: Keep) -> Source:
        """The source of a node that reads, with the schema that the pipeline found first. Raises ConfigError where the
        flow was built with another."""
        operator = present(
            node.operator if isinstance(node.operator, Reading) else None, f"{node.name} reads no source"
        )
        source = operator.source.resolved(keep)
        found = operator.given(source.arrow_schema())
        if not found.equals(node.schema):
            raise ConfigError(
                "source-schema-changed",
                f"flow {self.flow!r} began with the columns {', '.join(map(str, found))} of the source {source.name!r},"
                f" and now finds {', '.join(map(str, node.schema or ()))}: give the source its schema, as the flow"
                " needs it",
            )
        return source

    def schemas(self) -> dict[str, pa.Schema]:
        """What each sink is opened with, by its name."""
        return {writing.sink.name: self.written(node) for node, writing in self.writings()}

    def written(self, node: Node) -> pa.Schema:
        """What the sink of a node that writes is opened with: its input's columns, and those that the runtime adds."""
        writing, given = node.operator, self.schema(node.inputs[0])
        if isinstance(writing, Writing) and writing.is_letters:
            return LETTER_COLUMNS
        is_numbered = isinstance(writing, Writing) and writing.is_numbered
        return given.append(pa.field(EPOCH_COLUMN, pa.int64())) if is_numbered else given


def clocks_of(nodes: Sequence[Node], edges: Iterable[Edge]) -> dict[str, Watermarks]:
    """The watermarks of the sources that feed some edges, by the sources' uids."""
    feeding = {edge.source for edge in edges}
    found: dict[str, Watermarks] = {}
    for node in (node for node in reversed(nodes) if node.number in feeding):
        feeding |= {edge.source for edge in node.inputs}  # which come before it
        if isinstance(node.operator, Reading):
            found[present(node.uid, "a source has a uid")] = node.operator.watermarks or UNTIMED
    return found


def check_timed(nodes: Sequence[Node], edges: Iterable[Edge]) -> None:
    """Raise ConfigError where a source that feeds some edges has no watermarks."""
    for uid, watermarks in clocks_of(nodes, edges).items():
        if watermarks is UNTIMED:
            raise ConfigError(
                "watermarks-missing",
                f"the rows come from the source {uid!r}, which says nothing of event time: give it"
                " watermarks=bounded('at', '5 seconds'), or another policy, in flow.source(...)",
            )

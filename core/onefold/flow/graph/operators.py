"""The operators of a flow, as a user described them: frozen values. How one runs is a runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.contract import Sink, Upserting
from onefold.core.source import Source
from onefold.flow.time.joins import AsOf, How, JoinSide, Within
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.watermarks import INGESTED_AT, Watermarks
from onefold.flow.time.windows import Aligned, Sessions, Whole

if TYPE_CHECKING:
    from onefold.core.aggregates import Aggregate
    from onefold.core.values.ids import Deduplication
    from onefold.flow.processing.declaring import StateDeclaration
    from onefold.flow.processing.processor import BroadcastProcessor, StatefulProcessor
    from onefold.flow.processing.rows import Side
    from onefold.flow.time.evictors import Evictor
    from onefold.flow.time.triggers import Trigger
    from onefold.flow.time.window_processor import WindowProcessor

WINDOW_START, WINDOW_END, WINDOW_NUMBER = "window_start", "window_end", "window_number"

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

"""What the nodes of a flow's graph do, as a user described it: frozen values. How they run is a runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from onefold.core import Sink
    from onefold.core.aggregates import Aggregate
    from onefold.core.source import Source
    from onefold.core.values.ids import Deduplication
    from onefold.flow.processing.declaring import StateDeclaration
    from onefold.flow.processing.processor import BroadcastProcessor, StatefulProcessor
    from onefold.flow.rows import Side

__all__ = [
    "Aggregating",
    "Connecting",
    "Deduplicating",
    "Elided",
    "Filtering",
    "FlatMapping",
    "MappingBatches",
    "Operator",
    "Processing",
    "Querying",
    "Reading",
    "Reducing",
    "Selecting",
    "Uniting",
    "Writing",
]

Dict = dict[str, Any]
Batches = Callable[[pa.RecordBatch], "pa.RecordBatch | Iterable[pa.RecordBatch | Side]"]


@dataclass(frozen=True)
class Reading:
    """Reads a source, as a user gave it: a runtime asks `Graph.resolved` for the one that it reads. With
    `on_error="dead_letter"` it has the side output `bad`: the records that could not be read, as `BAD_COLUMNS`."""

    source: Source


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
    """Runs a stateful processor on the rows of each key. `states` are those that its `init` asks for."""

    processor: StatefulProcessor
    key: tuple[str, ...]
    states: tuple[StateDeclaration, ...] = ()


@dataclass(frozen=True)
class Reducing:
    """Keeps one row a key: `function(kept, row)` of each further row. Emits the kept row of each key that changed,
    once an epoch."""

    function: Callable[[Dict, Dict], Dict]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Aggregating:
    """Keeps aggregates a key. Emits key and aggregates of each key that changed, once an epoch."""

    aggregates: tuple[tuple[str, Aggregate], ...]
    key: tuple[str, ...]


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
    | Deduplicating
    | Connecting
    | Elided
    | Querying
    | Writing
)

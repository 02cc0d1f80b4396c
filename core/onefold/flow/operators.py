"""What the nodes of a flow's graph do, as a user described it: frozen values. How they run is a runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from onefold.core import Sink
    from onefold.core.source import Source
    from onefold.flow.aggregates import Aggregate
    from onefold.flow.processor import StatefulProcessor

__all__ = [
    "Aggregating",
    "Connecting",
    "Filtering",
    "FlatMapping",
    "MappingBatches",
    "Operator",
    "Processing",
    "Reading",
    "Reducing",
    "Selecting",
    "Uniting",
    "Writing",
]

Batches = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Reading:
    """Reads a source. Its side output `bad` has the records that could not be read, as `BAD_COLUMNS`."""

    source: Source


@dataclass(frozen=True)
class Filtering:
    """Keeps the rows for which the expression is true."""

    condition: pc.Expression


@dataclass(frozen=True)
class Selecting:
    """Rows of these columns, by name, each from an expression."""

    columns: tuple[tuple[str, pc.Expression], ...]


@dataclass(frozen=True)
class MappingBatches:
    """`function` of a record batch gives one or more record batches, of the node's schema (`map_batches`)."""

    function: Batches


@dataclass(frozen=True)
class FlatMapping:
    """`function` of a row (a dict) gives any number of rows (dicts)."""

    function: Callable[[dict[str, object]], Iterable[dict[str, object]]]


@dataclass(frozen=True)
class Uniting:
    """The rows of all inputs, which have one schema."""


@dataclass(frozen=True)
class Processing:
    """Runs a stateful processor on the rows of each key."""

    processor: StatefulProcessor
    key: tuple[str, ...]


@dataclass(frozen=True)
class Reducing:
    """Keeps one row a key: `function(kept, row)` of each further row. Emits the changed row of each key of a batch."""

    function: Callable[[dict[str, object], dict[str, object]], dict[str, object]]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Aggregating:
    """Keeps aggregates a key. Emits key and aggregates of each key that changed, once an epoch."""

    aggregates: tuple[tuple[str, Aggregate], ...]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Connecting:
    """Two inputs: the first's rows by key, the second's broadcast to every subtask. `processor` sees both."""

    processor: StatefulProcessor
    key: tuple[str, ...]


@dataclass(frozen=True)
class Writing:
    """Writes to a sink."""

    sink: Sink


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
    | Connecting
    | Writing
)

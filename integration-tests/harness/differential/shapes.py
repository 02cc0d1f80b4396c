"""Random flows as values: `building` makes flows of them, `model` tables in plain Python, `drawing` draws them.

Streams are numbered: the first are the sources', and each step adds one, or two where it has a side output. All have
the same columns, so that any step can come after any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Aggregated",
    "Appended",
    "Busiest",
    "Call",
    "Computed",
    "Const",
    "End",
    "Expression",
    "Field",
    "Filtered",
    "FlatMapped",
    "Mapped",
    "Newest",
    "Processed",
    "Rebalanced",
    "Reduced",
    "Row",
    "Shape",
    "Step",
    "Timed",
    "United",
]

SCHEMA = "id long, account long, team string, n long, amount decimal(12,2), note string, at timestamp, ratio double"
COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(", "))

Row = dict[str, Any]


@dataclass(frozen=True)
class Field:
    name: str


@dataclass(frozen=True)
class Const:
    value: int | float | str | Decimal | None


@dataclass(frozen=True)
class Call:
    """`function` is a name that `building` and `model` each have a function for."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Field | Const | Call


@dataclass(frozen=True)
class Filtered:
    of: int
    condition: Expression


@dataclass(frozen=True)
class Computed:
    """Other values in some columns, by `with_columns` or by `select`."""

    of: int
    columns: tuple[tuple[str, Expression], ...]
    selects: bool


@dataclass(frozen=True)
class Mapped:
    """`map_batches`: the rows whose n is below `bound` get it added; all others are the side output."""

    of: int
    bound: int


@dataclass(frozen=True)
class FlatMapped:
    """`flat_map`: n % `most` copies of each row; a row of none is a row of the side output."""

    of: int
    most: int


@dataclass(frozen=True)
class United:
    of: tuple[int, ...]


@dataclass(frozen=True)
class Rebalanced:
    of: int


@dataclass(frozen=True)
class Processed:
    """`kind` is a name that `processors` and `model` each have a processor for. It has a side output."""

    of: int
    key: tuple[str, ...]
    kind: str


Step = Filtered | Computed | Mapped | FlatMapped | United | Rebalanced | Processed


@dataclass(frozen=True)
class Appended:
    of: int


@dataclass(frozen=True)
class Newest:
    """The row of the highest n, then id, of each account, by the sink's own order."""

    of: int


@dataclass(frozen=True)
class Aggregated:
    """`aggregates` are pairs of a function and a column."""

    of: int
    key: tuple[str, ...]
    aggregates: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Busiest:
    """How many rows the key has in each team that has most of them there: of all keys, those with nulls too. The
    highest of each team is by `reduce`, or by `max_`."""

    of: int
    key: tuple[str, ...]
    reduces: bool


@dataclass(frozen=True)
class Reduced:
    """`kind` is "largest", or "joined", for which rows need an order."""

    of: int
    key: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Timed:
    """The number and the sum of a key's rows, emitted by a timer at the end of each epoch that had some."""

    of: int
    key: tuple[str, ...]


End = Appended | Newest | Aggregated | Busiest | Reduced | Timed


@dataclass(frozen=True)
class Shape:
    """Each end writes a table of its own, and `staged` is the number of the one whose sink is staged, if any. There is
    a topic for each of the `sources`."""

    steps: tuple[Step, ...]
    ends: tuple[End, ...]
    staged: int
    max_parallelism: int
    sources: int = 1

"""Find the rows that Postgres refuses, so that all others can go on: split what failed until single rows are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from onefold.clients.postgres.sqlstates import wants_another_row

__all__ = ["PartRefused", "RowRange", "TooManyRefused", "isolate"]

# Rows that only want for another one are no sign that everything is bad: in a tree, most come before their parents.
WANTING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PartRefused:
    """Why a part was refused, and the index of the row that did it, where the server said."""

    reason: str
    sqlstate: str | None = None
    row: int | None = None


class TooManyRefused(Exception):
    """More rows than were to be put up with; `last` is the one that was too many."""

    def __init__(self, last: PartRefused) -> None:
        super().__init__(last.reason)
        self.last = last


class RowRange(Protocol):
    """Some rows, in order."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int) -> Self: ...


P = TypeVar("P", bound=RowRange)


def isolate(
    whole: P, attempt: Callable[[P], PartRefused | None], refused_max: int, join: Callable[[Sequence[P]], P]
) -> tuple[int, list[tuple[P, PartRefused]]]:
    """Have every row attempted, in as large parts as will go; returns how many were taken, and those that were not.

    `attempt` answers None when the part has taken effect, else it must have had none. A row that was refused for want
    of another one that came after it (a foreign key within the table) is attempted again, for as long as that helps.
    Raises TooManyRefused beyond `refused_max` rows.
    """
    taken, refused = _pass(whole, attempt, refused_max)
    more, backwards = len(refused), False
    while refused and more:
        backwards = not backwards  # a chain of rows, each of which wants for the next, goes in at once from its end
        more, refused = _pass(join([row for row, _ in refused]), attempt, refused_max, backwards)
        taken += more
    if len(refused) > refused_max:
        raise TooManyRefused(refused[-1][1])
    return taken, refused


def _pass(
    whole: P, attempt: Callable[[P], PartRefused | None], refused_max: int, backwards: bool = False
) -> tuple[int, list[tuple[P, PartRefused]]]:
    pending: list[P] = [whole]
    refused: list[tuple[P, PartRefused]] = []
    taken = hopeless = 0
    while pending:
        part = pending.pop()
        why = attempt(part)
        if why is None:
            taken += len(part)
        elif len(part) == 1:
            refused.append((part, why))
            hopeless += not wants_another_row(why.sqlstate)
            if hopeless > refused_max or len(refused) > max(refused_max, WANTING_MAX):
                raise TooManyRefused(why)
        else:
            pieces = _split(part, why.row)
            pending += pieces if backwards else reversed(pieces)
    return taken, refused[::-1] if backwards else refused


def _split(part: P, row: int | None) -> Sequence[P]:
    """At the row that the server named, else in halves. Either way every piece is smaller than `part`."""
    size = len(part)
    cuts = [size // 2] if row is None or not 0 <= row < size else [row, row + 1]
    ends = [*(cut for cut in cuts if 0 < cut < size), size]
    return [part.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

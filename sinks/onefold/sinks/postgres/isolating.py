"""Find the rows that Postgres refuses, so that all others can go on: split what failed until single rows are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

__all__ = ["Part", "Refused", "TooManyRefused", "isolate"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a part was refused, and the index of the row that did it, where the server said."""

    reason: str
    sqlstate: str | None = None
    row: int | None = None


class TooManyRefused(Exception):
    """More rows than were to be put up with; `last` is the one that was too many."""

    def __init__(self, last: Refused) -> None:
        super().__init__(last.reason)
        self.last = last


class Part(Protocol):
    """Some rows, in order."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int) -> Self: ...


P = TypeVar("P", bound=Part)


def isolate(whole: P, attempt: Callable[[P], Refused | None], refused_max: int) -> tuple[int, list[tuple[P, Refused]]]:
    """Have every row attempted, in as large parts as will go; returns how many were taken, and those that were not.

    `attempt` answers None when the part has taken effect, else it must have had none. A row that was refused for want
    of another one that came after it (a foreign key within the table) is attempted again at the end.
    Raises TooManyRefused beyond `refused_max` rows.
    """
    pending: list[P] = [whole]
    refused: list[tuple[P, Refused]] = []
    taken = 0
    while pending:
        part = pending.pop()
        why = attempt(part)
        if why is None:
            taken += len(part)
        elif len(part) == 1:
            refused.append((part, why))
            if len(refused) > refused_max:
                raise TooManyRefused(why)
        else:
            pending += reversed(_split(part, why.row))
    return _again(taken, refused, attempt)


def _again(
    taken: int, refused: list[tuple[P, Refused]], attempt: Callable[[P], Refused | None]
) -> tuple[int, list[tuple[P, Refused]]]:
    while refused:
        still = [(row, why) for row, _ in refused if (why := attempt(row)) is not None]
        taken += len(refused) - len(still)
        if len(still) == len(refused):
            break
        refused = still
    return taken, refused


def _split(part: P, row: int | None) -> Sequence[P]:
    """At the row that the server named, else in halves. Either way every piece is smaller than `part`."""
    size = len(part)
    cuts = [size // 2] if row is None or not 0 <= row < size else [row, row + 1]
    ends = [*(cut for cut in cuts if 0 < cut < size), size]
    return [part.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

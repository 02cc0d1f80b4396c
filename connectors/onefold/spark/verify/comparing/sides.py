"""What is compared: two sets of rows, what tells them apart, and where records are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

_PLACES_MAX = 3  # that are named of a row


class Versions(Protocol):
    """What makes some rows versions of one, of which the newest by `order` stays, or its deletion."""

    @property
    def order(self) -> tuple[str, ...]: ...

    @property
    def delete_when_true(self) -> str | None: ...

    @property
    def delete_when_null(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Places:
    """The records that some row comes from, or the first of them: topic, partition, offset."""

    at: Sequence[tuple[str, int, int]]
    is_cut: bool = False

    def __str__(self) -> str:
        more = "more" if self.is_cut else f"{len(self.at) - _PLACES_MAX} more"
        named = ", ".join(f"{topic}/{number} at offset {offset}" for topic, number, offset in self.at[:_PLACES_MAX])
        return f"from {named}" + (f" and {more}" if len(self.at) > _PLACES_MAX else "")


Sources = Callable[[DataFrame], Mapping[str, Places]]  # of a few rows, by their texts


@dataclass(frozen=True)
class Sides:
    """Rows that are to be there and rows that are, by `key`. `sources` says where the records of some are."""

    expected: DataFrame
    actual: DataFrame
    key: Sequence[str]
    changes: Versions | None = None
    sources: Sources | None = None

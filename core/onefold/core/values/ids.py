"""Which records are repeats: where their ids are, and how long ids are remembered."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core.errors import ConfigError
from onefold.core.values.durations import duration_us

HEADER = "header:"  # an id that names a header begins so


@dataclass(frozen=True)
class OrderedIds:
    """Ids whose numbers grow within their source: all that is remembered is each source's highest number.

    An id is the text SOURCE:NUMBER, such as `orders/3:1700`: all before the last colon names the source, the number
    has up to 18 digits. `id` says where it is: in the record's key (None), in a header ("header:NAME"), or in a column.
    Or two columns hold the parts: `source` (text or bytes) and `sequence` (a whole number from 0).

    In each partition of the topic a source's records must have been written in order, repeats aside: a number that
    follows a higher one was seen.
    """

    id: str | None = None
    source: str | None = None
    sequence: str | None = None

    def __post_init__(self) -> None:
        _check_id("OrderedIds", self.id)
        if (self.source is None) != (self.sequence is None):
            raise ConfigError("option-missing", "OrderedIds: source= and sequence= name two columns and go together")
        if self.source is not None and self.id is not None:
            raise ConfigError(
                "option-missing", "OrderedIds: give id=, of texts SOURCE:NUMBER, or the columns source= and sequence="
            )


@dataclass(frozen=True)
class IdsWithin:
    """Ids in any order: each is remembered for `span` ("2 hours") after the reader first saw it, by its own clock.

    So the span has to be longer than the reader's longest pause and the time between a record and its repeat, both
    together; and that clock must not go back by more. No record is ever dropped that was not seen, however late it
    comes. `id` as in `OrderedIds`, of any form.
    """

    span: str
    id: str | None = None

    def __post_init__(self) -> None:
        _check_id("IdsWithin", self.id)
        if self.span_ms == 0:
            raise ConfigError("option-value", "IdsWithin: the span is longer than nothing, such as '2 hours'")

    @property
    def span_ms(self) -> int:
        return duration_us(self.span, "IdsWithin: span") // 1_000


Deduplication = OrderedIds | IdsWithin


def called(ids: Deduplication) -> str:
    """What people call the id."""
    if isinstance(ids, OrderedIds) and ids.source is not None:
        return f"the id ({ids.source}, {ids.sequence})"
    return "the record's key" if ids.id is None else f"the id ({ids.id})"


def check_deduplication(value: object) -> None:
    """Raise `ConfigError` unless it says what makes two records the same."""
    if not isinstance(value, OrderedIds | IdsWithin):
        raise ConfigError(
            "option-value", f"deduplicate is OrderedIds(...) or IdsWithin('2 hours', ...), not {value!r:.100}"
        )


def _check_id(what: str, id: str | None) -> None:
    if id is not None and (not isinstance(id, str) or not id.removeprefix(HEADER)):
        raise ConfigError(
            "option-value",
            f"{what}: id is a column's name or 'header:NAME', or left out for the record's key; not {id!r}",
        )

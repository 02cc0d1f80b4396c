"""How far a partition of a source has come in event time, as its records say. Policies are values, which users make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.durations import duration_us
from onefold.core.values.names import check_columns

INGESTED_AT = pa.field("ingested_at", pa.timestamp("us", "UTC"), nullable=False)

WhenSilent: TypeAlias = Literal["hold", "advance"]

_US_OF = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_US = 86_400_000_000


class Watermarks(ABC):
    """A policy of one's own: subclass it, and give an instance to `flow.source(..., watermarks=)`.

    column       the records' time; None where no one column has it
    idle         after how long without a record a partition is silent, and is not waited for; None: it always is
    ahead        how far beyond the epoch's time a partition may come by an epoch: else what it says there moves nothing
    when_silent  where the watermark goes while all partitions are silent: nowhere ("hold"), or, where all sources that
                 feed an operator say so, on from the highest of them with the epochs' time ("advance")
    """

    column: str | None = None
    idle: str | None = "1 minute"
    ahead: str | None = None
    when_silent: WhenSilent = "hold"
    by_epochs = False  # of `ingestion()` alone: a record's time is that of the epoch that reads it

    @abstractmethod
    def of(self, batch: pa.RecordBatch) -> int | None:
        """Up to where the records of one partition have come, in microseconds since 1970: no later record of it is
        older. None where these do not say. Of batches one after the other the highest counts."""

    def __str__(self) -> str:
        return f"by {type(self).__name__}"

    @property
    def idle_ms(self) -> int | None:
        return None if self.idle is None else duration_us(self.idle, "idle") // 1_000

    @property
    def ahead_us(self) -> int | None:
        return None if self.ahead is None else duration_us(self.ahead, "ahead")

    @property
    def goes_on(self) -> bool:
        """Whether the watermark may move with the epochs' time where no record comes."""
        return self.by_epochs or self.when_silent == "advance"


@dataclass(frozen=True, kw_only=True)
class _BoundedDisorder(Watermarks):
    column: str
    delay_us: int
    idle: str | None
    ahead: str | None = None
    when_silent: WhenSilent = "hold"

    def __str__(self) -> str:
        on = "; goes on while all are silent" if self.goes_on else ""
        return f"by {self.column!r}, at most {self.delay_us / 1_000_000:g} s out of order{on}"

    def of(self, batch: pa.RecordBatch) -> int | None:
        highest = _highest_us(times_of(batch, self.column))
        return None if highest is None else highest - self.delay_us


@dataclass(frozen=True, kw_only=True)
class _Punctuated(Watermarks):
    column: str
    mark: str
    idle: str | None

    def __str__(self) -> str:
        return f"by {self.column!r}, as the marks in {self.mark!r} say"

    def of(self, batch: pa.RecordBatch) -> int | None:
        return _highest_us(batch.column(self.mark))


class _Untimed(Watermarks):
    """Records say nothing of time; or `by_epochs`, it is that of the epoch that reads them."""

    idle = None

    def __init__(self, by_epochs: bool = False) -> None:
        self.by_epochs, self.column = by_epochs, INGESTED_AT.name if by_epochs else None

    def __str__(self) -> str:
        return f"by {self.column!r}, the time of the epoch that reads a record"

    def of(self, batch: pa.RecordBatch) -> int | None:
        del batch
        return None


UNTIMED = _Untimed()


def bounded(
    column: str,
    delay: str,
    *,
    idle: str | None = "1 minute",
    ahead: str | None = None,
    when_silent: WhenSilent = "hold",
) -> Watermarks:
    """Records come at most `delay` later than a newer one of their partition: the watermark is the highest time less
    the delay.

    column       their time: a timestamp, or a date
    idle         after how long without a record a partition is not waited for; None: it always is
    ahead        such as "1 hour": an epoch that has a record further beyond its own time moves the partition not at
                 all, so that one wrong time does not make all others late; the records are kept as they are
    when_silent  "advance": while all partitions are silent, the watermark goes on from the highest of them with the
                 epochs' time, by as much as they have been silent; so the last windows end, and what comes later with
                 older times is late
    """
    delay_us = duration_us(delay, "delay")
    return _checked(_BoundedDisorder(column=column, delay_us=delay_us, idle=idle, ahead=ahead, when_silent=when_silent))


def ingestion() -> Watermarks:
    """By the source's own clock: a record gets the column `ingested_at`, the time of the epoch that reads it, and that
    is its time; so none is late, and windows end as time passes. What is read waits for its epoch. The engine alone."""
    return _Untimed(by_epochs=True)


def monotonic(column: str, *, idle: str | None = "1 minute") -> Watermarks:
    """Records of a partition come in the order of their times."""
    return _checked(_BoundedDisorder(column=column, delay_us=0, idle=idle))


def punctuated(column: str, *, mark: str, idle: str | None = "1 minute") -> Watermarks:
    """Some records say in the column `mark` that no older one follows in their partition; elsewhere it is null."""
    return _checked(_Punctuated(column=column, mark=mark, idle=idle))


def check_watermarks_of(watermarks: Any, schema: pa.Schema, label: str) -> None:
    """Raise ConfigError for what is no policy, and for one whose columns the source does not have, or not as times."""
    if not isinstance(watermarks, Watermarks):
        raise ConfigError(
            "option-value",
            f"{label} has watermarks={watermarks!r:.100}: give bounded(column, delay), monotonic(column),"
            " punctuated(column, mark=), ingestion(), or an instance of a subclass of Watermarks",
        )
    _checked(watermarks)
    marks = [watermarks.mark] if isinstance(watermarks, _Punctuated) else []
    columns = [*marks, *([] if watermarks.column is None else [watermarks.column])]
    check_columns(columns, schema, f"the watermarks of {label}")
    for name in columns:
        if not is_time(kind := schema.field(name).type):
            raise ConfigError(
                "watermark-column",
                f"the watermarks of {label} go by {name!r}, which is of type {kind}: name a column of timestamps or"
                " dates, as a source's schema or a cast in a view of it makes them",
            )


def is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def times_of(batch: pa.RecordBatch, column: str) -> pa.Array:
    """The records' times. Raises BadRecord where one has none."""
    times = batch.column(column)
    if times.null_count:
        at = times.is_null().index(True).as_py()
        pairs = zip(batch.schema.names, batch.slice(at, 1).columns, strict=True)
        record = ", ".join(f"{name}: {each.to_string(skip_new_lines=True)[1:-1]}" for name, each in pairs)
        raise BadRecord(
            "event-time-null",
            f"a record has no time in {column!r}, so that nothing can be said of when it was: {record:.300}. Let the"
            " source give every record one; or name another column in watermarks=",
        )
    return times


def _highest_us(times: pa.Array) -> int | None:
    """In microseconds since 1970; None where there are none."""
    highest: Any = pc.max(times)
    if not highest.is_valid:
        return None
    kind, value = times.type, int(highest.value)
    if pa.types.is_date32(kind):
        return value * _DAY_US
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return value // 1_000 if unit == "ns" else value * _US_OF[unit]


def _checked(watermarks: Watermarks) -> Watermarks:
    _ = watermarks.ahead_us
    if watermarks.idle_ms == 0:
        raise ConfigError("option-value", "idle is longer than nothing, or None: a partition is always waited for")
    when = watermarks.when_silent
    if when not in get_args(WhenSilent) or (when == "advance" and watermarks.idle is None):
        raise ConfigError(
            "option-value",
            f"when_silent={when!r:.100} is hold or advance; with idle=None no partition is ever silent: leave out one"
            " of the two",
        )
    return watermarks

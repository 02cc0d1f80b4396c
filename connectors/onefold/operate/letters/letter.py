"""A dead letter, where its record was, and what came of it when it was sent again. Needs the driver of no database."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onefold.core import ConfigError, Sink
from onefold.pipeline import Pipeline

CUT = "cut to "  # what the reason of a letter begins with that has not the whole record: docs/kafka-source.md


class NotSendable(ConfigError):
    """The letter can't be sent, or was sent already."""


class MarkState(enum.Enum):
    SENDING = "sending"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class Mark:
    """`from_offset` is where its partition ended before it was first sent: the record is there or behind it.
    `sent_offset` is where it is."""

    state: MarkState
    at: datetime
    from_offset: int
    sent_offset: int | None


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where the record is in the source."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. `place` is a record's; a row has `position`, the columns that `source_position` names. Of a
    long value only the beginning is here, and of so long headers the first; `value_bytes` is
    its whole size."""

    sink: str
    epoch: int
    at: datetime | None
    reason: str
    place: RecordPlace | None
    position: Mapping[str, Any] | None
    key: bytes | None
    value: bytes | None
    value_bytes: int | None
    headers: Sequence[tuple[str, bytes | None]]
    mark: Mark | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the letter has less than the record had: then it can't be sent again."""
        return self.reason.startswith(CUT)

    @property
    def is_sendable(self) -> bool:
        """Whether its record can be sent again, or it is not known yet whether it was."""
        return self.place is not None and not self.is_cut and (self.mark is None or self.mark.sent_offset is None)


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """`elsewhere` names the sinks of dead letters that are read with other tools: topics, tables of other databases."""

    letters: Sequence[Letter]
    elsewhere: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many letters of a sink have a reason that begins so, and the first and the last of their epochs."""

    sink: str
    reason: str
    letters: int
    first_epoch: int
    last_epoch: int


def takes_letters(pipeline: Pipeline) -> bool:
    """Whether there is something to look into, or to name where else to look."""
    return bool(pipeline.dead_letters) or any(map(puts_rows_aside, pipeline.sinks))


def puts_rows_aside(sink: Sink) -> bool:
    """Whether rows that it refuses become dead letters. Its driver need not be installed."""
    return getattr(getattr(sink, "settings", None), "on_error", None) == "dead_letter"

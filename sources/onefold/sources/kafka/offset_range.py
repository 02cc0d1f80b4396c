"""A range of offsets of one partition: the unit that is planned, fetched and parsed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OffsetRange"]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition: from `start` up to, not including, `end`. `topic_id`: of which topic of that name."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"

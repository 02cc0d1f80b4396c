"""Offsets: ranges of one partition, and of many partitions those of one time, with topics' ids and leader epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onefold.core.positions import LEADER_EPOCHS, TOPIC_ID, Positions


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


Partition = tuple[str, int]
Offsets = dict[Partition, int]


@dataclass(frozen=True)
class OffsetSnapshot:
    """Offsets by partition; `ids` of their topics, and the leader `epochs` they were found under, where known."""

    offsets: Mapping[Partition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[Partition, int] = field(default_factory=dict)

    @classmethod
    def of(cls, positions: Positions) -> OffsetSnapshot:
        offsets = {(topic, number): offset for topic, by in positions.topics().items() for number, offset in by.items()}
        epochs: Offsets = {}
        for name, mark in positions.marks:
            topic, _, kind = name.rpartition("/")
            if kind == LEADER_EPOCHS:
                pairs = (pair.split(":") for pair in mark.split())
                epochs |= {(topic, int(number)): int(epoch) for number, epoch in pairs}
        return cls(offsets, positions.topic_ids(), epochs)

    def positions(self) -> Positions:
        """As the protocol keeps them: `orders/0`."""
        marks = {f"{topic}/{TOPIC_ID}": name for topic, name in self.ids.items()}
        by_topic: dict[str, list[str]] = {}
        for (topic, number), epoch in sorted(self.epochs.items()):
            by_topic.setdefault(topic, []).append(f"{number}:{epoch}")
        marks |= {f"{topic}/{LEADER_EPOCHS}": " ".join(pairs) for topic, pairs in by_topic.items()}
        return Positions.of({f"{topic}/{number}": at for (topic, number), at in self.offsets.items()}, marks)

    def moved_to(self, offsets: Mapping[Partition, int], seen: OffsetSnapshot) -> OffsetSnapshot:
        """At `offsets`, found in what was `seen`. Where nothing moved, everything stays as it was, so that a change of
        leader is no new data."""
        moved = {p for p, offset in offsets.items() if self.offsets.get(p) != offset}
        topics = {topic for topic, _ in moved}
        return OffsetSnapshot(
            {**self.offsets, **offsets},
            {**{topic: name for topic, name in seen.ids.items() if topic in topics}, **self.ids},
            {p: epoch for p, epoch in self.epochs.items() if p not in moved}
            | {p: epoch for p, epoch in seen.epochs.items() if p in moved},
        )


def names_of(partitions: Mapping[Partition, object] | list[Partition] | set[Partition], most: int = 5) -> str:
    """For people: `orders/0, orders/1 and 7 more`."""
    names = [f"{topic}/{number}" for topic, number in sorted(partitions)]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

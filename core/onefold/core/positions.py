"""Where in its sources a pipeline stands: values that compare, and ranges between them."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Positions", "Range", "Relation"]

Offset = int | str


class Relation(enum.Enum):
    """How one set of positions lies to another."""

    SAME = "same"
    BEHIND = "behind"  # at least one partition is earlier: records would be read again
    AHEAD = "ahead"  # none earlier, at least one later: records would be passed over
    UNORDERED = "unordered"  # the source's offsets are not numbers, and differ


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset to read of each partition, sorted by partition: `(("orders/0", 17), ...)`.

    A partition that is not listed stands at its first record, offset 0, as a topic's new partitions do.
    Offsets that are not numbers (some Spark sources have such) only compare as equal or not.
    """

    items: tuple[tuple[str, Offset], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.items]
        assert names == sorted(set(names)), f"positions must be sorted and unique: {names}"

    @classmethod
    def of(cls, offsets: Mapping[str, Offset] | Iterable[tuple[str, Offset]]) -> Positions:
        return cls(tuple(sorted(dict(offsets).items())))

    @classmethod
    def from_json(cls, text: str) -> Positions:
        return cls.of(json.loads(text))

    def to_json(self) -> str:
        return json.dumps(dict(self.items), separators=(",", ":"))

    @classmethod
    def from_spark(cls, offsets: Iterable[str | None]) -> Positions:
        """The positions that Spark's offset log holds: one JSON text for each source, None where it has no data.

        `{"orders": {"0": 17}}`, the form of `onefold_kafka` and of Spark's own Kafka connector, becomes
        `orders/0`; any other JSON keeps its path behind the source's number: `#1/logOffset`.
        """
        flat: dict[str, Offset] = {}
        for number, text in enumerate(offsets):
            if text is None:
                continue
            value = json.loads(text)
            for name, offset in _leaves(value, "" if _is_kafka(value) else f"#{number}"):
                if name in flat:
                    from onefold.core.errors import ConfigError

                    raise ConfigError(
                        f"two sources of this query read {name!r}, so its positions are ambiguous: "
                        "read the topic once and use the DataFrame twice"
                    )
                flat[name] = offset
        return cls.of(flat)

    def topics(self) -> dict[str, dict[int, int]]:
        """The Kafka partitions among these positions: `{"orders": {0: 17}}`."""
        found: dict[str, dict[int, int]] = {}
        for name, offset in self.items:
            topic, _, partition = name.rpartition("/")
            if topic and not topic.startswith("#") and partition.isdigit() and isinstance(offset, int):
                found.setdefault(topic, {})[int(partition)] = offset
        return found

    def to_kafka_json(self) -> str:
        """The form that Kafka sources take as `startingOffsets`: `{"orders": {"0": 17}}`."""
        topics = {
            topic: {str(p): o for p, o in sorted(partitions.items())}
            for topic, partitions in sorted(self.topics().items())
        }
        return json.dumps(topics, separators=(",", ":"))

    def relation_to(self, other: Positions) -> Relation:
        """How these positions lie to `other`, partition by partition."""
        if self == other:
            return Relation.SAME
        mine, theirs = dict(self.items), dict(other.items)
        behind = ahead = False
        for name in mine.keys() | theirs.keys():
            a, b = mine.get(name, 0), theirs.get(name, 0)
            if isinstance(a, int) and isinstance(b, int):
                behind, ahead = behind or a < b, ahead or a > b
            elif a != b:
                return Relation.UNORDERED
        if behind:
            return Relation.BEHIND
        return Relation.AHEAD if ahead else Relation.SAME

    def differences(self, other: Positions, limit: int = 5) -> str:
        """The partitions where these differ from `other`, for people: `orders/0: 17, not 12`."""
        mine, theirs = dict(self.items), dict(other.items)
        lines = [
            f"{name}: {mine.get(name, 0)}, not {theirs.get(name, 0)}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name, 0) != theirs.get(name, 0)
        ]
        more = f" and {len(lines) - limit} more" if len(lines) > limit else ""
        return "; ".join(lines[:limit]) + more


@dataclass(frozen=True, slots=True)
class Range:
    """The source records of one epoch: from `start` up to, not including, `end`."""

    start: Positions
    end: Positions

    @property
    def is_empty(self) -> bool:
        return self.start.relation_to(self.end) is Relation.SAME


def _is_kafka(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(partitions, dict) and all(isinstance(o, int) for o in partitions.values())
            for partitions in value.values()
        )
    )


def _leaves(value: object, path: str) -> Iterable[tuple[str, Offset]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | str):
        yield path, value
    else:
        yield path, json.dumps(value, sort_keys=True)

"""Where in its sources a pipeline stands: values that compare, and ranges between them."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onefold.core.errors import InternalError

__all__ = ["Positions", "Range", "Relation"]

Offset = int | str

# What stands beside a topic's partitions, `orders/id` beside `orders/0`: no position, but what it is a position in.
TOPIC_ID = "id"  # which topic of that name (KIP-516): one that is deleted and made anew has another
LEADER_EPOCHS = "epochs"  # under which leaders the offsets were found (KIP-101), as `0:5 1:7`; for their source only
FROM = "from"  # where the stream that these offsets are of began, as `0:0 1:70`
MARKS = (TOPIC_ID, LEADER_EPOCHS, FROM)
# And beside the positions of a query that makes rows of time alone: the clocks that its last batch went by, named as in
# Spark's offset log. Their values are texts, which are only equal or not: a clock may go back.
WATERMARK, PROCESSING_TIME = CLOCKS = ("batchWatermarkMs", "batchTimestampMs")
TABLE = "@"  # what the position of a table begins with, `@table orders/0`: 0 before it was read, 1 after that
_SETTING = "#starting_offsets"  # and beside a pipeline's first positions: the setting that they were found by


class Relation(enum.Enum):
    """How one set of positions lies to another."""

    SAME = "same"
    BEHIND = "behind"  # at least one partition is earlier: records would be read again
    AHEAD = "ahead"  # none earlier, at least one later: records would be passed over
    UNORDERED = "unordered"  # they differ, and have no order: only the offsets of topics are known to grow


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset to read of each partition, sorted by partition: `(("orders/0", 17), ...)`.

    A partition that is not listed stands at its first record, offset 0, as a topic's new partitions do.
    Offsets of other sources (`#0/logOffset`) only compare as equal or not: what grows there is each source's own.
    `marks` say of which topic the offsets are, where that is known: `(("orders/id", "Sx2..."), ...)`. They are no part
    of equality, but positions in another topic of the same name have no order.
    """

    items: tuple[tuple[str, Offset], ...] = ()
    marks: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.items]
        if names != sorted(set(names)):
            raise InternalError("positions-invalid", f"positions must be sorted and unique: {names}")
        if any(map(_is_mark, names)):
            raise InternalError("positions-invalid", f"marks are no positions: {names}")

    @classmethod
    def of(
        cls,
        offsets: Mapping[str, Offset] | Iterable[tuple[str, Offset]],
        marks: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> Positions:
        return cls(tuple(sorted(dict(offsets).items())), tuple(sorted(dict(marks).items())))

    @classmethod
    def from_json(cls, text: str) -> Positions:
        """Raises ValueError for what no positions are."""
        return cls.from_flat(json.loads(text))

    def to_json(self) -> str:
        return json.dumps(dict(self.items) | dict(self.marks), separators=(",", ":"))

    @classmethod
    def from_flat(cls, values: Mapping[str, Offset]) -> Positions:
        """Raises ValueError for what no positions are: values come from files and tables of others, too."""
        if not isinstance(values, Mapping) or {*map(type, values.values())} - {int, bool, str}:
            raise ValueError("they are no positions")
        marks = {name: str(value) for name, value in values.items() if _is_mark(name)}
        return cls.of({name: value for name, value in values.items() if name not in marks}, marks)

    def topics(self) -> dict[str, dict[int, int]]:
        """The topics' partitions among these positions: `{"orders": {0: 17}}`."""
        found: dict[str, dict[int, int]] = {}
        for name, offset in self.items:
            topic, _, partition = name.rpartition("/")
            if topic and not topic.startswith(("#", TABLE)) and partition.isdigit() and isinstance(offset, int):
                found.setdefault(topic, {})[int(partition)] = offset
        return found

    def relation_to(self, other: Positions) -> Relation:
        """How these positions lie to `other`, partition by partition."""
        if self._of_other_topics(other):
            return Relation.UNORDERED
        if self == other:
            return Relation.SAME
        mine, theirs = dict(self.items), dict(other.items)
        behind = ahead = differs = False
        for name in mine.keys() | theirs.keys():
            a, b = mine.get(name, 0), theirs.get(name, 0)
            if isinstance(a, int) and isinstance(b, int) and not name.startswith("#"):
                behind, ahead = behind or a < b, ahead or a > b
            else:
                differs = differs or a != b or (name in mine) != (name in theirs)
        if behind:
            return Relation.BEHIND
        if differs:
            return Relation.UNORDERED
        return Relation.AHEAD if ahead else Relation.SAME

    def differences(self, other: Positions, limit: int = 5) -> str:
        """The partitions where these differ from `other`, for people: `orders/0: 17, not 12`."""
        mine, theirs = dict(self.items), dict(other.items)
        lines = [
            f"{name}: {mine.get(name, 0)}, not {theirs.get(name, 'on record' if name in CLOCKS else 0)}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name, 0) != theirs.get(name, 0)
        ]
        lines = [f"{topic} is the topic {a}, not {b}" for topic, a, b in self._of_other_topics(other)] + lines
        more = f" and {len(lines) - limit} more" if len(lines) > limit else ""
        return "; ".join(lines[:limit]) + more

    @property
    def setting(self) -> str | None:
        """The setting that they were found by, of a pipeline's first positions; None where that is not on record."""
        return dict(self.marks).get(_SETTING)

    def with_setting(self, setting: str | None) -> Positions:
        marks = {name: mark for name, mark in self.marks if name != _SETTING}
        return Positions.of(self.items, marks if setting is None else marks | {_SETTING: setting})

    def of_records(self) -> Positions:
        """The same positions, without the clocks beside them."""
        return Positions(tuple(item for item in self.items if item[0] not in CLOCKS), self.marks)

    def beside(self, others: Positions) -> Positions:
        """These positions, and those of the others that these do not have."""
        return Positions.of({**dict(others.items), **dict(self.items)}, {**dict(others.marks), **dict(self.marks)})

    def begun(self) -> Positions:
        """Where the stream began that these are positions of, in the topics that say so: a partition that is not
        listed stood at its first record."""
        begun: dict[str, Offset] = {}
        for name, mark in self.marks:
            topic, _, kind = name.rpartition("/")
            if kind == FROM:
                pairs = (pair.split(":") for pair in mark.split())
                begun |= {f"{topic}/{number}": int(offset) for number, offset in pairs}
        return Positions.of(begun, self.without_begun().marks)

    def tells_begin_of(self) -> set[str]:
        """The topics that say where the stream began."""
        return {name.removesuffix(f"/{FROM}") for name, _ in self.marks if name.endswith(f"/{FROM}")}

    def without_begun(self) -> Positions:
        """The same positions, without where the stream began."""
        return Positions(self.items, tuple(mark for mark in self.marks if not mark[0].endswith(f"/{FROM}")))

    def topic_ids(self) -> dict[str, str]:
        """Which topics the offsets are of, as far as it is known: by name."""
        suffix = f"/{TOPIC_ID}"
        return {name.removesuffix(suffix): mark for name, mark in self.marks if name.endswith(suffix)}

    def _of_other_topics(self, other: Positions) -> list[tuple[str, str, str]]:
        """Topics with one name and two ids: here, and in `other`."""
        mine, theirs = self.topic_ids(), other.topic_ids()
        return [(topic, mine[topic], theirs[topic]) for topic in mine if mine[topic] != theirs.get(topic, mine[topic])]


@dataclass(frozen=True, slots=True)
class Range:
    """The source records of one epoch: from `start` up to, not including, `end`."""

    start: Positions
    end: Positions

    def is_again(self, other: Range) -> bool:
        """The same positions, and in the same topics as far as that is known."""
        ends = (self.start, other.start), (self.end, other.end)
        return self == other and all(mine.relation_to(theirs) is Relation.SAME for mine, theirs in ends)

    @property
    def is_empty(self) -> bool:
        return self.start.relation_to(self.end) is Relation.SAME


def _is_mark(name: str) -> bool:
    """Names with a number sign are other sources' own, whatever they end in."""
    if name == _SETTING:
        return True
    topic, _, last = name.rpartition("/")
    return bool(topic) and last in MARKS and not topic.startswith("#")

"""Moves of a pipeline's positions: which records were processed, are passed over, or come again."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onefold.core.contract import EpochRecord
from onefold.core.positions import Positions, Range

Spans = dict[str, list[tuple[int, int]]]  # of each partition: from an offset up to, not including, another; ascending


class Repeats(enum.Enum):
    """What records that were written before make of a destination, if they come again."""

    DOUBLED = "doubled"  # they are there twice, or count twice
    ABSORBED = "absorbed"  # nothing, once all of them have come again: each is there once, as its newest version
    NEW = "new"  # the destination is empty, which proves that it was rewound: nothing is there to be doubled


@dataclass(frozen=True, slots=True)
class MoveNote:
    """Who moved the positions, and why; which sinks begin there, since they were empty or are new; which had another
    name before: `(new name, old name)`; and where the state is that a runtime with a checkpoint of its own is to begin
    with, a savepoint: its place and its digest. It stands in the epoch's fingerprint."""

    by: str
    why: str = ""
    new: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    state: tuple[str, str] | None = None

    def to_text(self) -> str:
        values = {"by": self.by, "why": self.why, "new": self.new, "renamed": self.renamed}
        return json.dumps(values if self.state is None else {**values, "state": self.state})

    @classmethod
    def of(cls, record: EpochRecord) -> MoveNote:
        value = json.loads(record.fingerprint)
        state = value.get("state")
        renamed = tuple((a, b) for a, b in value["renamed"])
        return cls(value["by"], value["why"], tuple(value["new"]), renamed, state and tuple(state))


def covered(initial: Positions, moves: Iterable[EpochRecord], end: Positions, sink: str | None = None) -> Spans:
    """The records that were processed between `initial` and `end`, each once. With `sink`, only those that it is to
    have: it may have begun at a move."""
    moves = [*moves]
    since = begins_by(moves, sink) or 0
    segments, begin = list[tuple[Positions, Positions]](), initial
    for each in moves:
        segments = [*segments, (begin, each.range.start)] if each.epoch > since else []
        begin = each.range.end
    spans: Spans = {}
    for first, last in [*segments, (begin, end)]:
        started = dict(first.items)
        for name, offset in last.of_records().items:
            spans.setdefault(name, []).append((int(started.get(name, 0)), int(offset)))
    return {name: _merged(found) for name, found in spans.items()}


def begins_by(moves: Sequence[EpochRecord], sink: str | None) -> int | None:
    """The move by which a sink began, under that name or an earlier one; None for one that was there from the start."""
    for each in reversed(moves):
        note = MoveNote.of(each)
        if sink in note.new:
            return each.epoch
        sink = dict(note.renamed).get(sink or "", sink)
    return None


def first_name(moves: Sequence[EpochRecord], sink: str) -> str:
    """What a sink was called before any move gave it another name."""
    for each in reversed(moves):
        sink = dict(MoveNote.of(each).renamed).get(sink, sink)
    return sink


def come_again(
    initial: Positions, moves: Iterable[EpochRecord], stands: Positions, to: Positions, sink: str | None = None
) -> Spans:
    """The records at and after `to` that were processed already, of a pipeline that stands at `stands`."""
    begins, spans = dict(to.items), covered(initial, moves, stands, sink)
    return {
        name: [(max(a, int(begins.get(name, 0))), b) for a, b in found if b > max(a, int(begins.get(name, 0)))]
        for name, found in spans.items()
    }


def passed_over(initial: Positions, moves: Iterable[EpochRecord], stands: Positions, to: Positions) -> Spans:
    """The records between `stands` and `to` that were not processed, and are not to come any more."""
    known, begins = covered(initial, moves, stands), dict(stands.items)
    return {name: _without((int(begins.get(name, 0)), int(at)), known.get(name, [])) for name, at in to.items}


def ranges(spans: Spans, like: Positions) -> tuple[Range, ...]:
    """The same records as ranges, each of every partition, in the topics that `like` says; at least one."""
    most = max((len(found) for found in spans.values()), default=0)
    padded = {name: [*found, *[(found[-1][1],) * 2] * (most - len(found))] for name, found in spans.items() if found}
    if not padded:
        return (Range(like, like),)
    return tuple(
        Range(
            Positions.of({name: found[at][0] for name, found in padded.items()}, like.marks),
            Positions.of({name: found[at][1] for name, found in padded.items()}, like.marks),
        )
        for at in range(most)
    )


def count(spans: Spans) -> int:
    return sum(b - a for found in spans.values() for a, b in found)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _without(span: tuple[int, int], known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    left, at = list[tuple[int, int]](), span[0]
    for begin, end in known:
        if begin >= span[1]:
            break
        if begin > at:
            left.append((at, begin))
        at = max(at, end)
    return [*left, (at, span[1])] if at < span[1] else left

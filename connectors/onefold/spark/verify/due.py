"""Which of the source's records each sink of a pipeline is to have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onefold.core import EpochRecord, Positions
from onefold.core.moves import begins_by, covered, first_name, ranges
from onefold.core.positions import TOPIC_ID, Range
from onefold.store.job.restores import Beginning

__all__ = ["Due"]


@dataclass(frozen=True, slots=True)
class Due:
    """`begin` is where the pipeline began; `savepoint` is with what, if with another one's; `moves` moved it since."""

    begin: Positions
    moves: Sequence[EpochRecord]
    savepoint: Beginning | None

    def ranges(self, end: Positions, sink: str) -> tuple[Range, ...]:
        """The records that a sink is to have, whose ledger is at `end`."""
        if not self.moves:
            return (Range(self._begin_of(sink), end),)
        ids = {f"{topic}/{TOPIC_ID}": name for topic, name in end.topic_ids().items()}
        spans = covered(self._begin_of(sink), self.moves, end, sink)
        return ranges(spans, Positions.of(end.items, ids))

    def notes(self, end: Positions, sink: str) -> Iterator[str]:
        """What is not expected of a sink, because somebody has moved the positions, or the sink began later."""
        named = ", ".join(f"epoch {record.epoch}" for record in self.moves if not record.range.is_empty)
        spans = covered(self._begin_of(sink), self.moves, end, sink)
        if passed := sum(after[0] - before[1] for found in spans.values() for before, after in pairwise(found)):
            says = "records were passed over on purpose, by a move of the positions, and are not expected"
            yield f"{passed:,} {says} ({named})"
        if (began := begins_by(self.moves, sink)) is not None:
            because = "when it was empty, or added to the pipeline"
        elif (savepoint := self._savepoint_of(sink)) is not None:
            began, because = savepoint.epoch, "of the savepoint that the pipeline began with, when it was empty"
        else:
            return
        yield f"the sink begins after epoch {began}, {because}: what earlier epochs wrote is not expected"

    def _begin_of(self, sink: str) -> Positions:
        savepoint = self._savepoint_of(sink)
        return self.begin if savepoint is None else savepoint.end

    def _savepoint_of(self, sink: str) -> Beginning | None:
        """The one that the sink begins with, since it was empty then."""
        found = self.savepoint
        return found if found is not None and first_name(self.moves, sink) in found.empty else None

"""Puts a savepoint in the place of what a pipeline has: of the same pipeline, or of one that begins with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.core import CheckpointMismatch, EpochRecord, Generation, Sink
from onefold.core.checks import present
from onefold.core.findings import Targeting
from onefold.core.moves import MoveNote, come_again, count
from onefold.core.positions import Relation
from onefold.core.protocol.beginning import SavepointOrigin
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.savepoints.savepoint import Savepoint, carried
from onefold.operate.stopped import StoppedPipeline, somebody
from onefold.store.job.move_session import MoveSession
from onefold.store.pins import pin
from onefold.store.savepoint_notes import RESTORED, Beginning, note_beginning, note_savepoint


@dataclass(frozen=True)
class Restore:
    """A base class. What is restored into `stopped`: `place` is the savepoint's folder."""

    savepoint: Savepoint
    place: str
    stopped: StoppedPipeline

    def check(self) -> None:
        """Raises ConfigError for what is known to be impossible, before anything is asked or changed."""

    def into_same(self) -> None:
        """In the place of what the pipeline has. Where it has written more since, its positions go back, and the
        records since come again.

        Raises ConfigError where a sink would have them twice, CheckpointMismatch for a savepoint of another history.
        """
        raise NotImplementedError

    def into_new(self) -> None:
        """Into a pipeline that has written nothing: it begins with the savepoint's epoch, positions and state.

        Raises ConfigError where it has written something, or there is a checkpoint in its place.
        """
        raise NotImplementedError

    @property
    def begins(self) -> bool:
        """Whether it is made of tables, and the pipeline that it is of has not begun, or has begun with it alone."""
        facts, of = self.stopped.find(), self.savepoint
        if of.is_of_tables and facts is not None and facts.last is None and facts.frozen is not None:
            return facts.frozen.relation_to(present(of.frozen, "it has a begin")) is Relation.SAME
        return of.is_of_tables and (facts is None or facts.last is None or self.origin().is_last_of(facts))

    def origin(self) -> SavepointOrigin:
        of = self.savepoint
        return SavepointOrigin(of.epoch, of.timestamp_ms, of.positions, of.frozen)

    def move_note(self) -> MoveNote:
        return MoveNote(somebody(), f"savepoint {self.savepoint.name}")

    def pin_carried(self, session: MoveSession) -> None:
        """Have the pipeline go by what the savepoint's had found for good, such as a schema."""
        for name, value in carried(self.savepoint.pins).items():
            pin(session.store, session.name, name, lambda value=value: value)  # type: ignore[misc]  # a default cannot be inferred

    def note(self, session: MoveSession) -> None:
        """For `onefold status`: it is restored."""
        note_savepoint(session.store, session.name, self.savepoint.name, self.savepoint.epoch, RESTORED)

    def note_beginning(self, session: MoveSession, generation: Generation) -> None:
        """For `onefold verify`: which sinks have none of the records before. With state, their groups come, too."""
        of, name = self.savepoint, self.stopped.name
        if not of.keeps_state:
            empty = tuple(sink.name for sink in self.stopped.pipeline.everyone if _is_empty(sink, name))
            note_beginning(session.store, generation, Beginning(of.epoch, of.positions, empty))

    def goes_back(self, facts: StoreFacts) -> bool:
        """Whether the pipeline has written more since. Raises CheckpointMismatch where the savepoint is not of what it
        has written before."""
        last, of, pipeline = facts.last, self.savepoint, self.stopped.name
        if facts.begun is not None:
            raise CheckpointMismatch(
                "savepoint-not-at-rest",
                f"epoch {facts.begun.epoch} of pipeline {pipeline!r} was begun in a sink that writes through, and must"
                " run to its end from the checkpoint that it has. Start the pipeline and stop it (SIGTERM) first",
            )
        relation = None if last is None else of.positions.relation_to(last.range.end)
        is_of_it = facts.frozen is None or of.frozen is None or facts.frozen.relation_to(of.frozen) is Relation.SAME
        if relation is Relation.SAME and is_of_it:
            return False
        if relation is not Relation.BEHIND or not is_of_it:
            stands = "has written nothing" if last is None else f"is at epoch {last.epoch}"
            differs = "" if last is None else f" ({last.range.end.differences(of.positions)})"
            raise CheckpointMismatch(
                "savepoint-elsewhere",
                f"pipeline {pipeline!r} {stands}, and savepoint {of.name!r}, of epoch {of.epoch}, is not of what it has"
                f" written before{differs}. Nothing was changed. Restore it into a pipeline of another name (--as),"
                " which begins there",
            )
        return True

    def again(self, facts: StoreFacts, moves: Sequence[EpochRecord]) -> int:
        stands = present(facts.last, "it has written more since").range.end
        return count(come_again(facts.frozen or stands, moves, stands, self.savepoint.positions))


def _is_empty(sink: Sink, pipeline: str) -> bool:
    """Whether nothing is where the sink writes, or the first start only makes that place."""
    return isinstance(sink, Targeting) and (not sink.target_now(pipeline).is_there or sink.is_empty(pipeline))

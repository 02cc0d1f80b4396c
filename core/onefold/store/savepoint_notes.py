"""Notes of the savepoint that was last made of a pipeline, and of the one that was last restored into it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from onefold.core.contract import Generation
from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["MADE", "RESTORED", "SavepointNote", "note_savepoint"]

MADE, RESTORED = "savepoint", "savepoint-restored"  # the pins that have them


@dataclass(frozen=True, slots=True)
class SavepointNote:
    """A savepoint's name and epoch, and when it was made or restored, in ms since 1970. It may be gone since."""

    name: str
    epoch: int
    at_ms: int


def note_savepoint(store: CheckpointStore, generation: Generation, name: str, epoch: int, pin: str) -> None:
    """Note that it was made or restored (`pin`) just now. Raises Fenced where a newer generation came first."""
    note = SavepointNote(name, epoch, time.time_ns() // 1_000_000)
    store.note(generation, pin, json.dumps(asdict(note)))

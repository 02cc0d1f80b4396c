"""Notes in the store of savepoints: the last one that was made of a pipeline, and the last that was restored into it.

Of one that is being restored, so that a start refuses what a restore that was cut short has left. And, for good, where
a pipeline began with one, and which of its sinks were empty then.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from onefold.core.contract import Generation
from onefold.core.errors import CheckpointMismatch
from onefold.core.positions import Positions
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import pinned

# The pins that have them.
MADE, RESTORED, RESTORING, BEGINNING = "savepoint", "savepoint-restored", "restore", "beginning"


@dataclass(frozen=True, slots=True)
class SavepointNote:
    """A savepoint's name and epoch, and when it was made or restored, in ms since 1970. It may be gone since."""

    name: str
    epoch: int
    at_ms: int


def note_savepoint(store: CheckpointStore, pipeline: str, name: str, epoch: int, pin: str) -> None:
    """Note that it was made or restored (`pin`) just now."""
    store.tell(pipeline, pin, json.dumps(asdict(SavepointNote(name, epoch, time.time_ns() // 1_000_000))))


@dataclass(frozen=True, slots=True)
class Restoring:
    """Which savepoint: its name, the place where it is, and its digest."""

    name: str
    place: str
    digest: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """The epoch that a pipeline began with, which another one had written, where that ended, and the sinks that were
    empty: they never get what is older."""

    epoch: int
    end: Positions
    empty: tuple[str, ...]


def note_beginning(store: CheckpointStore, generation: Generation, begins: Beginning) -> None:
    value = {"epoch": begins.epoch, "end": begins.end.to_json(), "empty": begins.empty}
    store.note(generation, BEGINNING, json.dumps(value))


def beginning(store: CheckpointStore, pipeline: str) -> Beginning | None:
    """None for a pipeline that began by itself."""
    text = pinned(store, pipeline, BEGINNING)
    if text is None:
        return None
    value = json.loads(text)
    return Beginning(value["epoch"], Positions.from_json(value["end"]), tuple(value["empty"]))


def restoring(store: CheckpointStore, pipeline: str) -> Restoring | None:
    """The savepoint whose restore into the pipeline has begun, and is not done."""
    text = pinned(store, pipeline, RESTORING)
    return Restoring(**json.loads(text)) if text else None


def note_restoring(store: CheckpointStore, generation: Generation, savepoint: Restoring) -> None:
    """From here on no start goes on. Raises Fenced where one came first."""
    store.note(generation, RESTORING, json.dumps(asdict(savepoint)))


def note_restored(store: CheckpointStore, generation: Generation) -> None:
    store.note(generation, RESTORING, "")


def check_restored(store: CheckpointStore, pipeline: str) -> None:
    """Raises CheckpointMismatch while a restore is not done. Checkpoint and ledger may be of different epochs then."""
    if (half := restoring(store, pipeline)) is not None:
        raise CheckpointMismatch(
            "restore-unfinished",
            f"the restore of savepoint {half.name!r} into pipeline {pipeline!r} has begun and is not done. If it was"
            f" cut short, run the same `onefold savepoint restore` again (the savepoint is in {half.place}); to begin"
            " anew instead, run `onefold reset`",
        )

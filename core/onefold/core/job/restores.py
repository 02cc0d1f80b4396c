"""A note in the store while a savepoint is restored: a start refuses what a restore that was cut short has left."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from onefold.core.contract import Generation
from onefold.core.errors import CheckpointMismatch
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.pins import pinned

__all__ = ["Restoring", "check_restored", "note_restored", "note_restoring", "restoring"]

PIN = "restore"


@dataclass(frozen=True, slots=True)
class Restoring:
    """Which savepoint: its name, the place where it is, and its digest."""

    name: str
    place: str
    digest: str


def restoring(store: CheckpointStore, pipeline: str) -> Restoring | None:
    """The savepoint whose restore into the pipeline has begun, and is not done."""
    text = pinned(store, pipeline, PIN)
    return Restoring(**json.loads(text)) if text else None


def note_restoring(store: CheckpointStore, generation: Generation, savepoint: Restoring) -> None:
    """From here on no start goes on. Raises Fenced where one came first."""
    store.note(generation, PIN, json.dumps(asdict(savepoint)))


def note_restored(store: CheckpointStore, generation: Generation) -> None:
    store.note(generation, PIN, "")


def check_restored(store: CheckpointStore, pipeline: str) -> None:
    """Raises CheckpointMismatch while a restore is not done. Checkpoint and ledger may be of different epochs then."""
    if (half := restoring(store, pipeline)) is not None:
        raise CheckpointMismatch(
            "restore-unfinished",
            f"the restore of savepoint {half.name!r} into pipeline {pipeline!r} has begun and is not done. If it was"
            f" cut short, run the same `onefold savepoint restore` again (the savepoint is in {half.place}); to begin"
            " anew instead, run `onefold reset`",
        )

"""Where a flow resumes: the end of its last decided epoch, and the snapshots that this epoch made its state. And the
note in its checkpoint by which a start notices that bookkeeping is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.core.checks import present
from onefold.core.contract import EpochRecord, LedgerEntry
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Started
from onefold.core.values.remedies import remedies
from onefold.engine.state import STATE, folder_of, handles_of, is_flight
from onefold.flow.processing.mechanisms import Mechanism, mechanism_of

if TYPE_CHECKING:
    from onefold.engine.state.storage import Storage

_WORKERS = "+"  # between a job's fingerprint and how many workers its epochs take to run again as they were
_NAME = "has_written.json"

Kept = Callable[[EpochRecord], tuple[str, ...]]
"""The snapshots that the state's own notes name for an epoch, by its time too; none where they know no such epoch."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The positions and the snapshots from which the next epoch goes on. `until` is where it must end, where one that
    writes through was begun; `epoch` is the last decided one, 0 before the first, and `timestamp_ms` its time."""

    at: Positions
    epoch: int = 0
    handles: tuple[str, ...] = ()
    until: Positions | None = None
    timestamp_ms: int = 0

    @classmethod
    def after(cls, record: EpochRecord) -> ResumePoint:
        return cls(record.range.end.of_records(), record.epoch, handles_of(record), timestamp_ms=record.timestamp_ms)

    @property
    def in_flight(self) -> bool:
        """Whether records before it are on their way to operators or sinks."""
        return any(map(is_flight, self.handles))


def resume_point(facts: StoreFacts, started: Started, kept: Kept | None, has_state: bool = True) -> ResumePoint:
    """Where the next epoch begins, and how. Raises CheckpointMismatch where operators keep state (`has_state`), and the
    last epoch has none of it: one that was adopted from the ledgers has no manifest, and the state's own notes tell.
    Where none does, flights alone are kept."""
    if facts.last is None:
        begin = present(started.start, "a start finds where a first epoch begins")
        return ResumePoint(begin, until=started.until)
    found = ResumePoint.after(facts.last)
    if kept is not None and not found.handles:
        found = replace(found, handles=kept(facts.last))
    if kept is not None and has_state and all(map(is_flight, found.handles)):
        raise CheckpointMismatch(
            "state-missing",
            f"this flow keeps state, and epoch {facts.last.epoch}, from whose end on it would go on, has none here: its"
            " positions were moved, it ran without state, or runs on Spark since. Nothing was written. State comes from"
            " there with a savepoint (onefold savepoint create, then restore); or, to begin anew,"
            f" {remedies().begin_anew(empties=True)}",
        )
    begun = facts.begun
    return found if begun is None else replace(found, until=begun.range.end)


def with_workers(fingerprint: str, workers: int) -> str:
    """The fingerprint of epochs that give the same rows again only with as many workers."""
    return f"{fingerprint}{_WORKERS}{workers}"


def check_same_mechanism(facts: StoreFacts, mechanism: Mechanism) -> None:
    """Raise ConfigError where the last epoch is of another mechanism."""
    last = facts.last
    if last is not None and (was := mechanism_of(last)) not in (None, mechanism):
        raise ConfigError(
            "mechanism-changed",
            f"flow {last.pipeline!r} has run with mechanism={was!r}, and would not go on as it was with {mechanism!r}:"
            f" each keeps its state and its positions in a form of its own. Nothing was written. Start it with"
            f" mechanism={was!r}; or restore a savepoint of it, where {was!r} has savepoints; or, to begin anew,"
            f" {remedies().begin_anew(empties=True)}",
        )


def check_workers(facts: StoreFacts, workers: int) -> None:
    """Raise ConfigError where an epoch was begun that has to run again with another number of workers."""
    begun = facts.begun
    job, _, _ = begun.fingerprint.partition("/") if begun is not None else ("", "", "")
    needed = job.rpartition(_WORKERS)[2] if _WORKERS in job else ""
    if begun is not None and needed.isdecimal() and int(needed) != workers:
        raise ConfigError(
            "worker-count",
            f"epoch {begun.epoch} of flow {begun.pipeline!r} was begun by {needed} workers, parts of it may show in"
            f" {', '.join(begun.write_through)}, and other rows would come of it with workers={workers}. Start the flow"
            f" with workers={needed} until that epoch is complete; then with any other number",
        )


class WrittenMarker:
    """Whether the flow has written, by a note in its checkpoint: it is left where the bookkeeping is gone, and the rows
    are not. Store and ledgers may be in one schema of the sink's database, and go with it.

    The note is made once, after the first decided epoch; a flow with state has its ledger there besides. `root` is the
    checkpoint, a folder or a URL.
    """

    def __init__(self, root: str, flow: str) -> None:
        self.root, self._flow = root, flow
        self.is_there = False

    def check(self, facts: StoreFacts, ledgers: Callable[[], dict[str, LedgerEntry | None]]) -> None:
        """Raise CheckpointMismatch where the flow has written, and neither store nor ledgers know of it. Where only the
        ledgers know, the protocol says what to do. Raises ConfigError where no note could be made later."""
        self.is_there = self._find()
        if not self.is_there:
            if facts.last is not None:
                self.keep(facts.store_id)
            else:
                with self._storage.locked():  # which makes the folder
                    pass
        elif facts.last is None and not any(_has_epoch(sink, entry) for sink, entry in ledgers().items()):
            raise CheckpointMismatch(
                "bookkeeping-gone",
                f"flow {self._flow!r} has written epochs, by {self._storage.path(_NAME)}, and neither its checkpoint"
                " store nor its destinations know of one: their bookkeeping was dropped, or is an older copy, and all"
                " would be written again. Nothing was written. Restore it, or name the store that the flow had; or"
                f" begin anew: empty its tables, and remove the folder {self._storage.path()}",
            )

    def keep(self, store_id: str) -> None:
        """From here on the flow has written."""
        with self._storage.locked():
            self._storage.replace(_NAME, json.dumps({"store_id": store_id}).encode())
        self.is_there = True

    def _find(self) -> bool:
        if "://" in self.root:
            return self._storage.find(_NAME) is not None
        try:
            return (Path(self.root) / folder_of(self._flow) / _NAME).exists()
        except OSError:  # a folder that this process may not enter: the storage says so in words of its own
            return self._storage.find(_NAME) is not None

    @cached_property
    def _storage(self) -> Storage:
        from onefold.engine.state.storage import Storage  # with file systems: for a local folder only once

        return Storage(self.root, self._flow)


def _has_epoch(sink: str, entry: LedgerEntry | None) -> bool:
    """The state's own ledger goes with the note, and says no more than it."""
    return (
        sink != STATE and entry is not None and (entry.epoch > 0 or bool(entry.members) or entry.announced is not None)
    )

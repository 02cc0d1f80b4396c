"""The participant `state`: the committer of snapshots, by the same contract as a sink's.

A subtask's snapshot is what a writer prepares: its handle names a file, and by that the earlier files that count. The
epoch's decision makes the snapshots that it names the flow's state; commit writes them down in `epochs/<epoch>.json`,
with all files that they name, from which the sweep sees what stays. Nothing depends on that note otherwise: a restore
takes the handles from the manifest of the last decided epoch in the checkpoint store.

What is deleted, and when:
- abort and the sweep: the files that came with an undecided snapshot. Only snapshots of the same life of the flow name
  them, of later epochs, and none of these is decided either.
- write_ledger, once the epoch is complete: of the epochs before the last `retain` ones the files that no kept epoch
  names. The next snapshots begin with files of the newest decided one, which is kept. The note goes first: what a crash
  leaves of its files is a leftover.

In a local folder the ledger row is a compare-and-set, under a lock. An object store has none through `pyarrow.fs`:
there a read and a write, so that of two drivers at the same moment both may think that they have the row. What is
decided does not depend on it: the checkpoint store's Decide compares the generation, and a file has its generation in
its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from onefold.core.contract import (
    Binding,
    Committable,
    CommittedPart,
    Committer,
    Decided,
    EpochRecord,
    Guarantee,
    LedgerEntry,
    SinkKind,
    SinkWriter,
    TaskId,
)
from onefold.core.errors import Damaged, DataLoss, InternalError, WorkLost
from onefold.core.positions import Positions
from onefold.core.protocol.binding import bound, check_forward
from onefold.core.values.checked import checked
from onefold.engine.state import RETAIN, STATE
from onefold.engine.state.snapshot import is_handle, owner_of, read_footer
from onefold.engine.state.storage import Storage

__all__ = ["StateCommitter", "StateSink", "committable", "noted"]

_LEDGER = "ledger.json"
_EPOCHS = "epochs"
T = TypeVar("T")


def committable(handle: str) -> Committable:
    """What a subtask acknowledges a barrier with. Entries of states are no rows of the epoch."""
    owner = owner_of(handle)
    if owner is None:
        raise InternalError("state-handle-unknown", f"{handle!r} is no snapshot's handle")
    name, generation, epoch = owner
    return Committable(STATE, SinkKind.TWO_PHASE, name, generation, epoch, rows=0)


def noted(root: str, pipeline: str, record: EpochRecord) -> tuple[str, ...]:
    """The snapshots that the commit of that very epoch wrote down; none where there is no such note."""
    note = StateCommitter(Storage(root, pipeline)).note(record.epoch)
    return note.handles if note is not None and note.timestamp_ms == record.timestamp_ms else ()


@dataclass(frozen=True, slots=True)
class StateSink:
    """The state of a flow, as the coordinator sees it. `root` is the folder or URL of the checkpoints; the last
    `retain` decided epochs stay, also when the flow has ended."""

    root: str = field(repr=False)  # a URL may have a password
    retain: int = RETAIN

    @property
    def name(self) -> str:
        return STATE

    def guarantee(self) -> Guarantee:
        return Guarantee(mode="snapshots", kind=SinkKind.TWO_PHASE, atomic_epoch=True)

    def store_url(self) -> str | None:
        return None

    def recover(self, pipeline: str) -> Committer:
        return StateCommitter(Storage(self.root, pipeline), self.retain)

    def open(self, pipeline: str, schema: pa.Schema) -> Committer:
        del schema
        return self.recover(pipeline)

    def writers_max(self) -> int | None:
        return None

    def writer(self, task: TaskId) -> SinkWriter:
        raise InternalError("state-has-no-writer", f"subtasks write their state by themselves, not as {task}")


@dataclass(frozen=True, slots=True)
class _Note:
    """The snapshots of a decided epoch, and all files that they name."""

    epoch: int
    generation: int
    timestamp_ms: int
    handles: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{_EPOCHS}/{self.epoch}.json"


@dataclass(frozen=True, slots=True)
class _Look:
    files: tuple[str, ...]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class StateCommitter:
    """Implements Committer."""

    storage: Storage
    retain: int = RETAIN

    def verify(self, committables: Sequence[Committable]) -> None:
        looks = {work.handle: self._look(work.handle) for work in committables}
        lost = {handle: look.missing for handle, look in looks.items() if look.missing}
        if lost:
            raise WorkLost(
                "state-work-gone",
                f"of the snapshots {', '.join(lost)} files are gone or cut: {_some(lost)}. The epoch runs again",
            )

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        record = decided.record
        with self.storage.locked():
            note = self.note(record.epoch)
            if note is None and self._is_retired(record.epoch):
                return
            note = note or _Note(record.epoch, record.generation, record.timestamp_ms)
            looks = {w.handle: self._look(w.handle) for w in committables if w.handle not in note.handles}
            lost = {handle: look.missing for handle, look in looks.items() if look.missing}
            handles = {*note.handles, *looks} - lost.keys()
            files = {*note.files, *(name for look in looks.values() if not look.missing for name in look.files)}
            self._write(replace(note, handles=tuple(sorted(handles)), files=tuple(sorted(files))))
        if lost:
            raise Damaged(
                "state-decided-gone",
                f"epoch {record.epoch} was decided, and of its snapshots {', '.join(lost)} files are gone or cut:"
                f" {_some(lost)}. Put the files back from a copy, or start from an earlier epoch or a savepoint",
            )

    def abort(self, committables: Sequence[Committable]) -> None:
        named = _named_by(self._notes())
        for work in committables:
            if work.handle in named:
                raise InternalError(
                    "state-abort-decided", f"a decided epoch names the snapshot {work.handle}: it stays"
                )
            self._remove_work(work.handle)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        files = self.storage.below("")  # before the notes: what is decided meanwhile is then no leftover
        named = _named_by(self._notes())
        owners = {owner for name in files if name not in named and (owner := owner_of(name)) is not None}
        mine = sorted(owner for owner in owners if owner[1] <= up_to_generation and owner[0] not in named)
        return [committable(handle) for handle, _, _ in mine]

    def ledger(self) -> LedgerEntry | None:
        row = self._row()
        parts = [CommittedPart(note.epoch, note.generation, note.timestamp_ms) for note in self._notes()]
        members = tuple(sorted((part for part in parts if row is None or part.epoch > row.epoch), key=_epoch))
        if row is None:
            return LedgerEntry(0, 0, 0, Positions(), "", members) if members else None
        return replace(row, members=members)

    def bind(self, binding: Binding) -> None:
        with self.storage.locked():
            self._write_row(bound(self._row(), binding, STATE))

    def write_ledger(self, entry: LedgerEntry) -> None:
        with self.storage.locked():
            check_forward(self._row(), entry, STATE)
            self._write_row(entry)
            self._retire(entry.epoch)

    def close(self) -> None:
        """Nothing is held between calls."""

    # files

    def _look(self, handle: str) -> _Look:
        """Which files the snapshot names, and which of them are gone or cut, by their sizes and one read."""
        try:
            footer, own = read_footer(self.storage, handle)
        except DataLoss:
            return _Look((), [handle])
        sizes = self.storage.sizes([piece.name for piece in footer.pieces])
        missing = [piece.name for piece in footer.pieces if sizes[piece.name] != piece.bytes]
        return _Look((own.name, *sizes), missing)

    def _remove_work(self, handle: str) -> None:
        folder, _, last = handle.rpartition("/")
        files = [name for name in self.storage.below(folder) if name.startswith(f"{handle}.")]
        # The file by which the sweep finds the others goes last.
        self.storage.remove([*files, f"{folder}/{last}"])

    def _retire(self, epoch: int) -> None:
        """Keep the last `retain` epochs up to this one, and those after it."""
        noted = sorted(self._notes(), key=_epoch)
        done = [note for note in noted if note.epoch <= epoch]
        old = done[: max(0, len(done) - self.retain)]
        named = _named_by(note for note in noted if note not in old)
        for note in old:
            self.storage.remove([note.name])
            self.storage.remove(name for name in note.files if name not in named)

    # notes and the row

    def _is_retired(self, epoch: int) -> bool:
        row = self._row()
        return row is not None and epoch <= row.epoch

    def _notes(self) -> list[_Note]:
        names = [name for name in self.storage.below(_EPOCHS) if name.endswith(".json")]
        found = [self._read(name, _note) for name in names]
        return [note for note in found if note is not None]

    def note(self, epoch: int) -> _Note | None:
        return self._read(f"{_EPOCHS}/{epoch}.json", _note)

    def _write(self, note: _Note) -> None:
        self.storage.replace(note.name, json.dumps(asdict(note)).encode())

    def _row(self) -> LedgerEntry | None:
        return self._read(_LEDGER, _row)

    def _write_row(self, row: LedgerEntry) -> None:
        values = {
            "epoch": row.epoch,
            "generation": row.generation,
            "timestamp_ms": row.timestamp_ms,
            "positions": row.positions.to_json(),
            "store_id": row.store_id,
        }
        self.storage.replace(_LEDGER, json.dumps(values).encode())

    def _read(self, name: str, make: Callable[[bytes], T]) -> T | None:
        content = self.storage.find(name)
        try:
            return None if content is None else make(content)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataLoss(
                "state-note-damaged",
                f"{self.storage.path(name)} cannot be read: it was cut or changed. Put it back from a copy",
            ) from error


def _named_by(notes: Iterable[_Note]) -> set[str]:
    return {name for note in notes for name in note.files}


def _note(content: bytes) -> _Note:
    """Its names are those of snapshots' files alone: what is retired is removed, whoever has written the note."""
    values = dict(json.loads(content))
    note = checked(_Note, values | {"handles": tuple(values["handles"]), "files": tuple(values["files"])})
    if not (all(map(is_handle, note.handles)) and all(map(owner_of, note.files))):
        raise ValueError("it names what no snapshot has")
    return note


def _row(content: bytes) -> LedgerEntry:
    values = dict(json.loads(content))
    return checked(LedgerEntry, values | {"positions": Positions.from_json(values["positions"])})


def _epoch(of: _Note | CommittedPart) -> int:
    return of.epoch


def _some(lost: dict[str, list[str]]) -> str:
    names = [name for missing in lost.values() for name in missing]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

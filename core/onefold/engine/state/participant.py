"""The participant `state`: the committer of snapshots, by the same contract as a sink's.

A subtask's snapshot is what a writer prepares: its handle names a file, and by that the earlier files that count. The
epoch's decision makes the snapshots that it names the flow's state. Commit writes the epoch's note,
`epochs/<epoch>.json`: where the epoch ends, its snapshots, and all files that they name. By these notes the sweep sees
what stays, and the newest one is the ledger row. `ledger.json` is the fence, which a start binds.

Snapshots are synced before the decision, and the fence when it is bound. **Notes are not synced**: the store has what
they say. A power cut may take the last ones, or cut them, and one that is cut counts as none. A start then makes those
of the last epochs again (`note_again`). Where nobody did, the row stands before that epoch, and recovery
refuses before anything is swept. Earlier epochs that were kept may go with their notes.

What is deleted, and when:
- abort and the sweep: the files that came with an undecided snapshot. Only snapshots of the same life of the flow name
  them, of later epochs, and none of these is decided either.
- write_ledger, once the epoch is complete: of the epochs before the last `retain` ones the files that no kept epoch
  names. One that a process reads for a savepoint is kept, too: `holds/` says so. The next snapshots begin with files of
  the newest decided one, which is kept. The note goes first: what a crash leaves of its files is a leftover.

In a local folder the fence is a compare-and-set, under a lock. An object store has none through `pyarrow.fs`: there a
read and a write, so that of two drivers at the same moment both may think that they have the row. What is decided does
not depend on it: the checkpoint store's Decide compares the generation, and a file has its generation in its name.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from onefold.core.contract import (
    Binding,
    Committable,
    Committer,
    Decided,
    EpochRecord,
    Guarantee,
    LedgerEntry,
    SinkKind,
    SinkWriter,
    TaskId,
)
from onefold.core.errors import Damaged, DataLoss, InternalError, Retriable, WorkLost
from onefold.core.positions import Positions
from onefold.core.protocol.binding import UNBOUND, bound, check_forward, is_foreign
from onefold.core.protocol.effects import StoreFacts
from onefold.core.values.checked import checked
from onefold.engine.state import LEDGER, RETAIN, STATE
from onefold.engine.state.snapshot import is_handle, owner_of, read_footer
from onefold.engine.state.storage import Storage

_EPOCHS = "epochs"
_OF_EPOCH = re.compile(rf"{_EPOCHS}/([1-9]\d{{0,17}})\.json(\.tmp)?", re.ASCII)


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


def note_again(root: str, pipeline: str, facts: StoreFacts) -> None:
    """Make the notes of the last complete epoch and of one that is decided beyond it again, where a power cut has taken
    them; before a start reads the ledger. With `retain=1` the latter's commit may have removed the former's files.
    Where files of both are gone, or the folder is another store's, recovery says so."""
    committer = StateCommitter(Storage(root, pipeline))
    for record in filter(None, (facts.complete, facts.last)):
        decided = Decided(record)
        if not (work := decided.of(STATE)) or committer.note(record.epoch) is not None:
            continue
        if not is_foreign(committer.ledger() or UNBOUND, facts.store_id):
            with suppress(WorkLost):
                committer.verify(work)
                committer.commit(decided, work)


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

    def absorbs_repeats(self) -> bool:
        """What a savepoint had is in the place of all that there was."""
        return True

    def writer(self, task: TaskId) -> SinkWriter:
        raise InternalError("state-has-no-writer", f"subtasks write their state by themselves, not as {task}")


@dataclass(frozen=True, slots=True)
class _Note:
    """A decided epoch: where it ends, its snapshots, and all files that they name. With these files it is a checkpoint
    that needs no store: snapshots say by themselves of which operator, backend and key groups they are."""

    epoch: int
    generation: int
    timestamp_ms: int
    positions: str
    store_id: str
    sinks: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{_EPOCHS}/{self.epoch}.json"


@dataclass(frozen=True, slots=True)
class _Fence:
    """The store and the generation to which the row is bound."""

    generation: int
    store_id: str


_UNBOUND = _Fence(0, "")


@dataclass(frozen=True, slots=True)
class _Look:
    files: tuple[str, ...]
    missing: list[str]


@dataclass(slots=True)
class StateCommitter:
    """Implements Committer."""

    storage: Storage
    retain: int = RETAIN
    _seen: int = 0  # the epoch of the newest note

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
            last = self._last()
            if (note := self.note(record.epoch)) is None and last is not None and last.epoch > record.epoch:
                return  # it was kept, and no longer is
            note = note or _Note(
                record.epoch,
                record.generation,
                record.timestamp_ms,
                record.range.end.to_json(),
                self._fence().store_id,
                record.sinks,
            )
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
        self._last()
        named = _named_by(self._notes())
        for work in committables:
            if work.handle in named:
                raise InternalError(
                    "state-abort-decided", f"a decided epoch names the snapshot {work.handle}: it stays"
                )
            self._remove_work(work.handle)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        files = self.storage.below("")  # before the notes: what is decided meanwhile is then no leftover
        self._last()
        named = _named_by(self._notes())
        owners = {owner for name in files if name not in named and (owner := owner_of(name)) is not None}
        mine = sorted(owner for owner in owners if owner[1] <= up_to_generation and owner[0] not in named)
        return [committable(handle) for handle, _, _ in mine]

    def ledger(self) -> LedgerEntry | None:
        return self._row(self._last())

    def bind(self, binding: Binding) -> None:
        with self.storage.locked():
            row = bound(self.ledger(), binding, STATE)
            fence = _Fence(row.generation, row.store_id)
            self.storage.replace(LEDGER, json.dumps(asdict(fence)).encode())

    def write_ledger(self, entry: LedgerEntry) -> None:
        with self.storage.locked():
            last = self._last()
            row = self._row(last)
            check_forward(row, entry, STATE)
            if row != entry:  # no commit was before it, or no bind
                values = entry.epoch, entry.generation, entry.timestamp_ms, entry.positions.to_json(), entry.store_id
                mine = last if last is not None and last.epoch == entry.epoch else _Note(*values)
                self._write(_Note(*values, mine.sinks, mine.handles, mine.files))
            self._retire()

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

    @contextmanager
    def held(self, epoch: int) -> Iterator[tuple[str, ...]]:
        """Within the block, the epoch's snapshots, which stay there. Raises Retriable where they are not kept any
        more."""
        with self.storage.holding(epoch):
            note = self.note(epoch)  # after its hold: also where nothing can be locked, one of both sees the other
            if note is None:
                raise Retriable(
                    "state-epoch-retired",
                    f"epoch {epoch} of {self.storage.pipeline!r} is not kept any more: the flow went on meanwhile",
                )
            yield note.handles

    def _retire(self) -> None:
        """Keep the last `retain` epochs, and those that somebody reads."""
        if len(self._names()) <= self.retain:
            return
        notes, held = self._notes(), self.storage.held()
        gone = [note for note in notes[: -self.retain] if note.epoch not in held]
        stay = {note.epoch for note in notes} - {note.epoch for note in gone}
        first = notes[-self.retain :][0].epoch  # fewer, where some are cut
        self.storage.remove(name for number, name in self._names() if number < first and number not in stay)
        held |= self.storage.held()  # where nothing can be locked, one came that has still seen its note
        named = _named_by(note for note in notes if note.epoch in stay | held)
        for note in gone:
            self.storage.remove(name for name in note.files if name not in named)

    # notes and the row

    def _names(self) -> list[tuple[int, str]]:
        """The notes' epochs and names, the oldest first, with what is left of one that was not written whole."""
        found = ((_OF_EPOCH.fullmatch(name), name) for name in self.storage.below(_EPOCHS))
        return sorted((int(match[1]), name) for match, name in found if match is not None)

    def _notes(self) -> list[_Note]:
        """The oldest first, without those that are cut."""
        found = [self.note(epoch) for epoch, name in self._names() if name.endswith(".json")]
        return [note for note in found if note is not None]

    def _last(self) -> _Note | None:
        """The newest note. Raises DataLoss where that is gone under this process: the sweep would take its snapshots
        for work that nobody decided."""
        found = (self.note(epoch) for epoch, name in reversed(self._names()) if name.endswith(".json"))
        last = next((note for note in found if note is not None), None)
        if (epoch := 0 if last is None else last.epoch) < self._seen:
            raise DataLoss(
                "state-note-missing",
                f"{self.storage.path(f'{_EPOCHS}/{self._seen}.json')} was removed or changed while this process ran."
                " Nothing was removed for that. Find out by whom, and start the flow again, which makes the note of its"
                " last epoch anew",
            )
        self._seen = epoch
        return last

    def epochs(self) -> list[int]:
        """Those that have a note, the oldest first; also one that is cut."""
        return [*dict.fromkeys(number for number, _ in self._names())]

    def note(self, epoch: int) -> _Note | None:
        name = f"{_EPOCHS}/{epoch}.json"
        content = self.storage.find(name)
        values = None if content is None else _whole(content)
        if values is None:
            return None
        try:
            tuples = {each: tuple(values[each]) for each in ("sinks", "handles", "files")}
            note = checked(_Note, values | tuples)
            Positions.from_json(note.positions)
            # Of snapshots' files alone: what is retired is removed, whoever has written the note.
            if note.epoch == epoch and all(map(is_handle, note.handles)) and all(map(owner_of, note.files)):
                return note
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(name) from error
        raise self._damaged(name)

    def _write(self, note: _Note) -> None:
        values = asdict(note)
        crc = zlib.crc32(json.dumps(values).encode())
        self.storage.replace(note.name, json.dumps(values | {"crc": crc}).encode(), synced=False)
        self._seen = max(self._seen, note.epoch)

    def _fence(self) -> _Fence:
        content = self.storage.find(LEDGER)
        try:
            return _UNBOUND if content is None else checked(_Fence, dict(json.loads(content)))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(LEDGER) from error

    def _row(self, last: _Note | None) -> LedgerEntry | None:
        """Where the newest note ends, bound to what was bound since."""
        fence = self._fence()
        if last is None:
            return None if fence == _UNBOUND else replace(UNBOUND, **asdict(fence))
        binding = fence if fence.generation >= last.generation else last
        at = Positions.from_json(last.positions)
        return LedgerEntry(last.epoch, binding.generation, last.timestamp_ms, at, binding.store_id)

    def _damaged(self, name: str) -> DataLoss:
        return DataLoss(
            "state-note-damaged",
            f"{self.storage.path(name)} cannot be read: it was cut or changed. Put it back from a copy",
        )


def _named_by(notes: Iterable[_Note]) -> set[str]:
    return {name for note in notes for name in note.files}


def _whole(content: bytes) -> dict[str, Any] | None:
    """What a note says; None for one that is cut."""
    try:
        values = dict(json.loads(content))
        crc = values.pop("crc")
        return values if zlib.crc32(json.dumps(values).encode()) == crc else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _some(lost: dict[str, list[str]]) -> str:
    names = [name for missing in lost.values() for name in missing]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

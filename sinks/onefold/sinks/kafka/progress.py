"""What the progress topic says, and who says it, folded from its log.

Every attempt's transaction begins with a record that says which epoch it is of, and ends with another one that says how
many rows it has, both under its transactional id. The ledger row of a sink has a key of its own. The log is read as it
is, with the markers that end transactions: what is committed shows at once, whoever else has a transaction open before
it, where a read_committed consumer would see nothing behind the oldest open one.

A tombstone forgets an id that the ledger row is long past. It may: what was committed under the id follows from the
row itself, and nothing that is committed later can stand before the tombstone, where compaction would take it for
older. For an id belongs to one process of one generation. Of the generation that writes the row, no later epoch runs
before the row is there; of an earlier one, nothing that begins now is ever decided; and compaction leaves open
transactions alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from onefold.core.contract import LedgerEntry, Member, TaskId
from onefold.sinks.kafka.naming import Handle, Names
from onefold.sinks.notes import entry_from

__all__ = ["Account", "Marker", "Progress", "Record"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What an attempt says of itself. `rows` is None until it has prepared."""

    epoch: int
    generation: int
    timestamp_ms: int
    attempt: str
    rows: int | None = None

    @classmethod
    def of(cls, task: TaskId, rows: int | None = None) -> Progress:
        return cls(task.epoch, task.generation, task.timestamp_ms, task.attempt.hex, rows)

    @classmethod
    def from_json(cls, text: bytes) -> Progress:
        return cls(**json.loads(text))

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the log, and the transaction that it is in."""

    producer_id: int
    producer_epoch: int
    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of whatever transaction this producer has open in the log."""

    producer_id: int
    is_commit: bool


@dataclass(slots=True)
class Account:
    """What the log says of one sink of one pipeline, as far as it was read."""

    names: Names
    entry: LedgerEntry | None = None  # the ledger row
    was_keyed: bool = False  # mode="keyed" has notes under these names
    begun: dict[tuple[int, int], Progress] = field(default_factory=dict)  # of open transactions
    _last: dict[str, int] = field(default_factory=dict)  # the last epoch that each id said it is of
    _open: dict[int, list[Record]] = field(default_factory=dict)
    _committed: dict[str, tuple[Handle, Progress]] = field(default_factory=dict)  # the last one of each id
    _aborted: dict[str, tuple[Handle, Progress]] = field(default_factory=dict)

    def add(self, items: Iterable[Record | Marker]) -> None:
        """The next part of the log, in its order."""
        for item in items:
            if isinstance(item, Marker):
                self._end(item)
            elif item.key.startswith(self.names.notes):
                self.was_keyed = True
            elif item.key.startswith(self.names.ids):
                self._open.setdefault(item.producer_id, []).append(item)
                if item.value is not None and item.key != self.names.ledger:
                    progress = Progress.from_json(item.value)
                    self.begun[item.producer_id, item.producer_epoch] = progress
                    self._last[item.key] = max(progress.epoch, self._last.get(item.key, 0))

    def is_committed(self, handle: Handle, epoch: int) -> bool:
        """Whether that transaction, of that epoch, was committed, as far as the log or the ledger row can prove it.

        An id is taken again only for a later epoch, so only once this one was complete.
        """
        if self.entry is not None and self.entry.epoch > epoch:
            return True
        committed = self._committed.get(handle.transactional_id)
        return committed is not None and (committed[0] == handle or committed[1].epoch > epoch)

    def is_open(self, handle: Handle) -> bool:
        return (handle.producer_id, handle.producer_epoch) in self.begun

    def is_aborted(self, handle: Handle) -> bool:
        aborted = self._aborted.get(handle.transactional_id)
        return aborted is not None and aborted[0] == handle

    def members(self) -> tuple[Member, ...]:
        """The epochs beyond the ledger row that have a committed part."""
        after = self.entry.epoch if self.entry is not None else 0
        found = {
            Member(progress.epoch, progress.generation, progress.timestamp_ms)
            for _, progress in self._committed.values()
            if progress.epoch > after
        }
        return tuple(sorted(found, key=lambda member: (member.epoch, member.generation)))

    def outlived(self, epoch: int) -> list[str]:
        """The ids that nobody has used since before that epoch, which the ledger row is at or beyond."""
        assert self.entry is not None and epoch <= self.entry.epoch, epoch
        return [name for name, last in self._last.items() if last < epoch]

    def _end(self, marker: Marker) -> None:
        for record in self._open.pop(marker.producer_id, ()):
            if record.value is None:
                if marker.is_commit:
                    self._forget(record.key)
            elif record.key == self.names.ledger:
                if marker.is_commit:
                    self.entry = entry_from(record.value)
            else:
                self.begun.pop((record.producer_id, record.producer_epoch), None)
                handle = Handle(record.key, record.producer_id, record.producer_epoch)
                ended = self._committed if marker.is_commit else self._aborted
                ended[record.key] = (handle, Progress.from_json(record.value))

    def _forget(self, name: str) -> None:
        """Unless a later epoch has taken the id between its tombstone and that one's marker."""
        if self.entry is not None and self._last.get(name, 0) < self.entry.epoch:
            for known in (self._last, self._committed, self._aborted):
                known.pop(name, None)

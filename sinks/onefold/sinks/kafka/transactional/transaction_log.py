"""Reads the ledger topic: which transactions were begun, committed and aborted, and which ledger row stands.

The transaction of an attempt begins with a record that names its epoch, and ends with one that counts its rows; both
have the transactional id as their key. The ledger row of a sink has a key of its own. The log is read with open and
aborted records and with the markers that end transactions, so a commit shows at once. A read_committed consumer would
see nothing after the oldest open transaction, whoever has it.

Others may have the right to write to the topic, under any key. They cannot begin or end a transaction of our
producers: a producer id belongs to one transactional id, and brokers let only the holders of that id do so. Hence a
commit counts for a handle only under the handle's own producer id, and a ledger row counts only if its writer is the
producer that Kafka knows as that of the row's transactional id (`writer`). But others can write into an open
transaction, by its producer's number: brokers check the right on the id that the request names. Hence the first record
of a transaction says what it is; the last record of an attempt repeats that, and only tombstones follow a ledger row.

A tombstone forgets an id of epochs long before the ledger row. This is safe: the row itself says that those epochs are
complete, and no later commit of the id can stand before the tombstone, where compaction would take it for older. For
an id belongs to one process of one generation. In the generation that writes the row, no later epoch runs before the
row is there. In an earlier generation, nothing that begins now is ever decided. And compaction keeps open
transactions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from onefold.core.checks import require
from onefold.core.contract import CommittedPart, LedgerEntry, TaskId
from onefold.sinks.epoch_log import Unreadable, checked, entry_from
from onefold.sinks.kafka.naming import Handle, Names


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The record in which an attempt names its epoch. `rows` is None until it has prepared."""

    epoch: int
    generation: int
    timestamp_ms: int
    attempt: str
    rows: int | None = None

    @classmethod
    def of(cls, task: TaskId, rows: int | None = None) -> AttemptRecord:
        return cls(task.epoch, task.generation, task.timestamp_ms, task.attempt.hex, rows)

    @classmethod
    def from_json(cls, text: bytes) -> AttemptRecord:
        """Raises Unreadable."""
        return cls(**checked(text, epoch=int, generation=int, timestamp_ms=int, attempt=str, rows=int | None))

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of the log, and the transaction that it is in."""

    producer_id: int
    producer_epoch: int
    key: str
    value: bytes | None
    is_transactional: bool = True


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of whatever transaction this producer has open in the log."""

    producer_id: int
    is_commit: bool


@dataclass(slots=True)
class TransactionLog:
    """The transactions and ledger rows of one sink of one pipeline, as far as the log was read.

    `writer` is the producer id of the ledger row's transactional id, as Kafka knows it now; None where it knows none,
    because it was never used, or not for so long that Kafka has forgotten it (transactional.id.expiration.ms, a week).
    """

    names: Names
    writer: int | None = None
    was_keyed: bool = False  # delivery="keyed" has notes under these names
    begun: dict[tuple[int, int], AttemptRecord] = field(default_factory=dict)  # of open transactions
    ignored: Counter[str] = field(default_factory=Counter)  # why, of records under our keys that no sink wrote
    _rows: dict[int, LedgerEntry] = field(default_factory=dict)  # the last ledger row of each producer, in their order
    _last: dict[str, int] = field(default_factory=dict)  # the last epoch that each id said it is of
    _open: dict[int, list[tuple[LogRecord, AttemptRecord | LedgerEntry | None]]] = field(default_factory=dict)
    # The last one of each id and producer: another principal's producer does not replace ours.
    _committed: dict[str, dict[int, tuple[Handle, AttemptRecord]]] = field(default_factory=dict)
    _aborted: dict[str, dict[int, tuple[Handle, AttemptRecord]]] = field(default_factory=dict)

    @property
    def is_proven(self) -> bool:
        """Whether Kafka knows the ledger row's writer as the one who may write it."""
        return self.writer in self._rows

    @property
    def entry(self) -> LedgerEntry | None:
        """The ledger row: the writer's, or the last one that is there where Kafka has forgotten who wrote it."""
        if self.writer is not None and self.writer in self._rows:
            return self._rows[self.writer]
        return next(reversed(self._rows.values()), None)

    @property
    def last_writer(self) -> int | None:
        """The producer whose ledger row is the last in the log, the writer or not."""
        return next(reversed(self._rows), None)

    def stands(self, entry: LedgerEntry, writer: int) -> None:
        """This process has written the ledger row, as that producer."""
        self.writer = writer
        self._rows.pop(writer, None)
        self._rows[writer] = entry

    def add(self, items: Iterable[LogRecord | Marker]) -> None:
        """The next part of the log, in its order."""
        for item in items:
            if isinstance(item, Marker):
                self._end(item)
            elif item.key.startswith(self.names.notes):
                self.was_keyed = True
            elif item.key.startswith(self.names.ids):
                self._take(item)

    def is_committed(self, handle: Handle, epoch: int) -> bool:
        """Whether that transaction, of that epoch, was committed, as far as the log or the ledger row can prove it.

        An id is taken again only for a later epoch, so only once this one was complete.
        """
        if self.is_proven and self.entry is not None and self.entry.epoch > epoch:
            return True
        committed = self._committed.get(handle.transactional_id, {}).get(handle.producer_id)
        return committed is not None and (committed[0] == handle or committed[1].epoch > epoch)

    def is_open(self, handle: Handle) -> bool:
        return (handle.producer_id, handle.producer_epoch) in self.begun

    def is_aborted(self, handle: Handle) -> bool:
        aborted = self._aborted.get(handle.transactional_id, {}).get(handle.producer_id)
        return aborted is not None and aborted[0] == handle

    def beyond(self) -> dict[Handle, CommittedPart]:
        """The committed transactions of epochs after the ledger row, whichever producer wrote them."""
        after = self.entry.epoch if self.entry is not None else 0
        return {
            handle: CommittedPart(progress.epoch, progress.generation, progress.timestamp_ms)
            for of_producers in self._committed.values()
            for handle, progress in of_producers.values()
            if progress.epoch > after
        }

    def idle_ids(self, epoch: int) -> list[str]:
        """The ids that no attempt has used since that epoch, which the ledger row has reached."""
        require(self.entry is not None and epoch <= self.entry.epoch, f"the ledger row is behind epoch {epoch}")
        return [name for name, last in self._last.items() if last < epoch]

    def _take(self, record: LogRecord) -> None:
        said: AttemptRecord | LedgerEntry | None = None
        try:
            if not record.is_transactional:
                raise Unreadable("it is in no transaction")
            if record.key != self.names.ledger and self.names.generation(record.key) is None:
                raise Unreadable("its key is no transactional id")
            if record.value is not None:
                said = (entry_from if record.key == self.names.ledger else AttemptRecord.from_json)(record.value)
        except Unreadable as error:
            self.ignored[str(error)] += 1
            return
        opened = self._open.setdefault(record.producer_id, [])
        if said is not None and any(first is not None for _, first in opened):
            return
        opened.append((record, said))
        if isinstance(said, AttemptRecord):
            self.begun[record.producer_id, record.producer_epoch] = said
            self._last[record.key] = max(said.epoch, self._last.get(record.key, 0))

    def _end(self, marker: Marker) -> None:
        for record, said in self._open.pop(marker.producer_id, ()):
            if said is None:
                if marker.is_commit:
                    self._forget(record.key)
            elif isinstance(said, LedgerEntry):
                if marker.is_commit:
                    self._rows.pop(record.producer_id, None)
                    self._rows[record.producer_id] = said
            else:
                self.begun.pop((record.producer_id, record.producer_epoch), None)
                handle = Handle(record.key, record.producer_id, record.producer_epoch)
                ended = self._committed if marker.is_commit else self._aborted
                ended.setdefault(record.key, {})[record.producer_id] = handle, said

    def _forget(self, name: str) -> None:
        """Unless a later epoch has taken the id between its tombstone and that one's marker."""
        if self.is_proven and self.entry is not None and self._last.get(name, 0) < self.entry.epoch:
            self._last.pop(name, None)
            self._committed.pop(name, None)
            self._aborted.pop(name, None)

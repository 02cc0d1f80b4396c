"""What the log of the ledger topic says, marker by marker."""

from __future__ import annotations

import uuid

from onefold.core import CommittedPart, LedgerEntry, Positions, TaskId
from onefold.sinks.epoch_log import entry_from, entry_to
from onefold.sinks.kafka.naming import Handle, Names
from onefold.sinks.kafka.transactional.transaction_log import AttemptRecord, LogRecord, Marker, TransactionLog

NAMES = Names("onefold", "p", "s")
PROCESS = uuid.uuid4()
FIRST, SECOND = (NAMES.transactional_id(1, PROCESS, number) for number in (0, 1))


def begun(producer_id: int, name: str, epoch: int, producer_epoch: int = 0) -> LogRecord:
    progress = AttemptRecord.of(TaskId("p", 1, epoch, 1000 + epoch, uuid.uuid4()))
    return LogRecord(producer_id, producer_epoch, name, progress.to_json())


def row(epoch: int) -> LedgerEntry:
    return LedgerEntry(epoch, 1, 1000 + epoch, Positions.of({"t/0": epoch}), "store")


def test_a_commit_shows_behind_an_open_transaction_and_an_abort_never() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([begun(1, FIRST, 5), begun(2, SECOND, 5), Marker(2, True)])
    assert [*log.beyond().values()] == [CommittedPart(5, 1, 1005)]
    assert log.is_open(Handle(FIRST, 1, 0)) and not log.is_committed(Handle(FIRST, 1, 0), 5)
    assert log.is_committed(Handle(SECOND, 2, 0), 5)
    log.add([Marker(1, False)])
    assert log.is_aborted(Handle(FIRST, 1, 0)) and not log.is_committed(Handle(FIRST, 1, 0), 5)
    assert log.begun == {}


def test_a_marker_carries_a_newer_epoch_than_what_it_ends() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([begun(1, FIRST, 5, producer_epoch=0), Marker(1, True), begun(1, FIRST, 6, producer_epoch=2)])
    assert log.is_committed(Handle(FIRST, 1, 0), 5)
    assert log.begun.keys() == {(1, 2)}
    assert not log.is_committed(Handle(FIRST, 1, 2), 6)


def test_of_a_transaction_the_first_record_says_what_it_is_since_others_may_break_in_behind_it() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([LogRecord(9, 0, NAMES.ledger, entry_to(row(1))), LogRecord(9, 0, NAMES.ledger, entry_to(row(99)))])
    log.add([begun(1, FIRST, 2), begun(1, FIRST, 98), begun(1, SECOND, 98), Marker(1, True), Marker(9, True)])
    assert log.entry == row(1)
    assert log.beyond() == {Handle(FIRST, 1, 0): CommittedPart(2, 1, 1002)}


def test_an_id_that_a_later_epoch_took_proves_the_earlier_one_and_an_aborted_one_proves_nothing() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([begun(1, FIRST, 5), Marker(1, True), begun(1, FIRST, 6, 2), Marker(1, False)])
    assert log.is_committed(Handle(FIRST, 1, 0), 5)
    log.add([begun(1, FIRST, 7, 4), Marker(1, True)])
    assert log.is_committed(Handle(FIRST, 1, 0), 5), "compaction may have removed its own record by now"
    assert not log.is_committed(Handle(SECOND, 2, 0), 5)


def test_members_are_what_lies_beyond_the_ledger_row() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([begun(1, FIRST, 5), Marker(1, True), begun(2, SECOND, 6), Marker(2, True)])
    log.add([LogRecord(9, 0, NAMES.ledger, entry_to(row(5)))])
    assert log.entry is None, "its transaction is open"
    log.add([Marker(9, True)])
    assert log.entry == row(5) and [*log.beyond().values()] == [CommittedPart(6, 1, 1006)]
    log.add([LogRecord(9, 0, NAMES.ledger, entry_to(row(6))), Marker(9, False)])
    assert log.entry == row(5)
    assert log.is_committed(Handle(FIRST, 3, 3), 4), "an epoch before the ledger row's is complete"


def test_other_sinks_records_and_tombstones_of_ids_that_are_gone_are_passed_over() -> None:
    log = TransactionLog(NAMES, writer=9)
    other = Names("onefold", "p", "s2").transactional_id(1, PROCESS, 0)
    log.add([begun(1, other, 5), LogRecord(2, 0, FIRST, None), Marker(1, True), Marker(2, True), Marker(3, True)])
    assert log == TransactionLog(NAMES, writer=9)


def test_an_id_that_the_ledger_row_is_past_is_forgotten_with_a_committed_tombstone_only() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([begun(1, FIRST, 5), Marker(1, True), begun(2, SECOND, 6), Marker(2, True)])
    log.add([LogRecord(9, 0, NAMES.ledger, entry_to(row(6))), Marker(9, True)])
    assert log.idle_ids(6) == [FIRST] and log.idle_ids(5) == []
    log.add([LogRecord(9, 0, NAMES.ledger, entry_to(row(7))), LogRecord(9, 0, FIRST, None), Marker(9, False)])
    assert log.idle_ids(6) == [FIRST], "the tombstone's transaction was aborted"
    log.add([LogRecord(9, 0, NAMES.ledger, entry_to(row(7))), LogRecord(9, 0, FIRST, None), Marker(9, True)])
    assert log.idle_ids(7) == [SECOND]
    assert log.is_committed(Handle(FIRST, 1, 0), 5), "the row proves it"


def test_an_id_that_is_taken_again_before_its_tombstone_is_committed_is_kept() -> None:
    log = TransactionLog(NAMES, writer=9)
    log.add([begun(1, FIRST, 5), Marker(1, True), LogRecord(9, 0, NAMES.ledger, entry_to(row(6))), Marker(9, True)])
    log.add([LogRecord(9, 0, FIRST, None), begun(1, FIRST, 7, 2), Marker(1, True), Marker(9, True)])
    assert log.is_committed(Handle(FIRST, 1, 2), 7) and [*log.beyond().values()] == [CommittedPart(7, 1, 1007)]
    assert log.idle_ids(6) == []


def test_a_ledger_row_comes_back_as_it_was() -> None:
    assert entry_from(entry_to(row(3))) == row(3)

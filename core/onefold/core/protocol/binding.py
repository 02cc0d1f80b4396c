"""The ledger row as a fence: it names the store and the generation from which a destination accepts work.

Every start binds its store and its generation in the ledger of each sink, before anything is prepared there. A row's
generation only grows, also where another store's driver takes the row over: so a generation belongs to one store, a
sweep finds all older work by its number, and a driver that lost the row finds out before it decides.
"""

from __future__ import annotations

from dataclasses import replace

from onefold.core.contract import Announcement, Binding, EpochRecord, Generation, LedgerEntry
from onefold.core.errors import CheckpointMismatch, DataLoss, Fenced
from onefold.core.positions import Positions
from onefold.core.values.remedies import remedies

UNBOUND = LedgerEntry(0, 0, 0, Positions(), "")


def is_foreign(ledger: LedgerEntry, store_id: str) -> bool:
    """Whether the row is bound to another store."""
    return ledger.store_id not in ("", store_id)


def of_another_store(sink: str, ledger: LedgerEntry, store_id: str) -> CheckpointMismatch:
    remedy = remedies()
    afresh = f"{remedy.recover(adopt_ledger=True)} and {remedy.again}: no epoch is complete"
    return CheckpointMismatch(
        "another-store",
        f"sink {sink!r} was written under checkpoint store {ledger.store_id}, but this store is {store_id}: another"
        " host runs this pipeline with a store of its own, or the pipeline had that store before. Point the pipeline to"
        " that store, or give one of them another name. To go on with this one instead,"
        f" {remedy.adopt if ledger.epoch else afresh}",
    )


def bound(there: LedgerEntry | None, binding: Binding, sink: str) -> LedgerEntry:
    """The row after the binding; its epoch and positions stay.

    Raises CheckpointMismatch where another store has it and is not to be taken over, Fenced where a newer generation
    has it.
    """
    row = there or UNBOUND
    foreign = is_foreign(row, binding.store_id)
    if foreign and not binding.takes_over:
        raise of_another_store(sink, row, binding.store_id)
    if row.generation > binding.generation or (foreign and row.generation == binding.generation):
        raise _fenced(sink, row, binding)
    return replace(row, generation=binding.generation, store_id=binding.store_id, members=(), announced=None)


def check_forward(there: LedgerEntry | Announcement | None, new: LedgerEntry | Announcement, sink: str) -> None:
    """Raises Fenced where the destination has a newer generation, or another store, or stands beyond the new epoch."""
    row = there or UNBOUND
    foreign = isinstance(row, LedgerEntry) and isinstance(new, LedgerEntry) and is_foreign(row, new.store_id)
    if foreign or row.generation > new.generation:
        raise _fenced(sink, row, new)
    if row.epoch > new.epoch:
        raise Fenced(
            "epoch-overtaken",
            f"sink {sink!r} stands at epoch {row.epoch} of generation {row.generation}, and epoch {new.epoch} is behind"
            " it. Another process runs this pipeline: stop this one and do not restart it",
        )


def check_bound(there: LedgerEntry | None, mine: Binding, sink: str) -> None:
    """Raise Fenced where another driver has bound the row since, DataLoss where the row is older than the binding."""
    row = there or UNBOUND
    if row.generation < mine.generation:
        raise DataLoss(
            "destination-older-copy",
            f"sink {sink!r} no longer knows that generation {mine.generation} was started (it has {row.generation}):"
            " the destination was emptied, or is an older copy (a restored backup, or a replica promoted before it had"
            " caught up). Restore the newer copy; or start the pipeline again: it compares what is left, and says what"
            " can be done",
        )
    if row.generation > mine.generation or is_foreign(row, mine.store_id):
        raise _fenced(sink, row, mine)


def not_mine(generation: Generation, now: int | None) -> Fenced | CheckpointMismatch:
    """The error for a store that has another generation of the pipeline than this one, or no such pipeline."""
    mine = f"generation {generation.number} of pipeline {generation.pipeline!r}"
    if now is None:
        return Fenced(
            "pipeline-retired",
            f"{mine} is not in the checkpoint store, which knows no such pipeline: somebody has retired it, or the"
            " store is an older copy. Stop this process; start it again only if the pipeline is to go on",
        )
    if now < generation.number:
        return CheckpointMismatch(
            "store-older-copy",
            f"{mine} was started, and the checkpoint store is at generation {now}: the store is an older copy (a"
            " restored backup, or a replica promoted before it had caught up). Nobody has taken over. Restore the newer"
            " store; or start the pipeline again: it compares what is left, and says what can be done",
        )
    return Fenced(
        "taken-over",
        f"{mine} was taken over (now: {now}). Another process runs this pipeline: stop this one and do not restart it",
    )


def went_back(record: EpochRecord, stored: EpochRecord | None) -> CheckpointMismatch:
    """The error for a store that has the epoch in an earlier state, though no newer generation exists."""
    return CheckpointMismatch(
        "store-older-copy",
        f"epoch {record.epoch} of pipeline {record.pipeline!r} is {record.state.value}, and the store has it as"
        f" {stored.state.value if stored else 'unknown'}: the store is an older copy (a restored backup, or a replica"
        " promoted before it had caught up). Restore the newer store, or start the pipeline again: it compares what is"
        " left, and says what can be done",
    )


def _fenced(sink: str, by: LedgerEntry | Announcement, mine: LedgerEntry | Announcement | Binding) -> Fenced:
    foreign = not isinstance(mine, Announcement) and isinstance(by, LedgerEntry) and is_foreign(by, mine.store_id)
    how = ", which adopted the pipeline's ledger on another host" if foreign else ""
    return Fenced(
        "taken-over",
        f"sink {sink!r} was taken over by generation {by.generation}{_whose(by)}{how}; this is generation"
        f" {mine.generation}{_whose(mine)}. Another process runs this pipeline: stop this one and do not restart it",
    )


def _whose(of: LedgerEntry | Announcement | Binding) -> str:
    return "" if isinstance(of, Announcement) or not of.store_id else f" of checkpoint store {of.store_id}"

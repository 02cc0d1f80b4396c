"""Recovery decisions: what to do with unfinished epochs, ranges and prepared work. Facts in, decision out, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from onefold.core.contract import Committable, Decided, EpochRecord, EpochState, Generation, LedgerEntry
from onefold.core.errors import CheckpointMismatch, ConfigError, Damaged, DataLoss
from onefold.core.positions import Positions, Relation
from onefold.core.protocol.binding import is_foreign, of_another_store
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.protocol.request_checks import (
    by_batch_number,
    check_has_order,
    check_is_from_this_start,
    other_setting,
)
from onefold.core.values.remedies import remedies

START_OVER = (
    "nothing is on record as written, so go on only with what is empty, too: start with a new, empty checkpoint"
    " directory and an empty table"
)

PAST_COMMIT_POINT = (EpochState.DECIDED, EpochState.COMPLETE, EpochState.DAMAGED)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What recovery does with unfinished epochs. An open one writes through, and runs again as it was."""

    finish: tuple[Decided, ...]
    accepted: tuple[EpochRecord, ...] = ()  # damaged, and accepted as they are on the user's word


def resolve(
    facts: StoreFacts,
    ledgers: Mapping[str, LedgerEntry | None],
    accept_damage: int | None = None,
    may_come_late: Collection[str] = (),
) -> Resolution:
    """Decide about every unfinished epoch from the store and the sinks' own ledgers.

    The ledgers must be read after the facts, and the facts after this process's generation was acquired: from then on
    no older process decides anything. Sinks that `may_come_late` miss nothing by having missed earlier epochs.
    """
    for record in facts.unfinished:
        missing = sorted({*record.sinks, *(c.sink for c in record.manifest)} - ledgers.keys())
        if missing:
            raise ConfigError(
                "sink-removed",
                f"epoch {record.epoch} of pipeline {record.pipeline!r} is {record.state.value} and names the sink"
                f" {', '.join(missing)}, which today's settings do not have: put it back under its old name until"
                " one start of the pipeline has finished that epoch, then remove it",
            )
        if record.state is EpochState.DAMAGED and record.epoch != accept_damage:
            raise Damaged(
                "epoch-damaged",
                f"epoch {record.epoch} of pipeline {record.pipeline!r} was decided, and a part of it can no longer be"
                " committed; the column `error` of its row in onefold_epochs says which. The rest is committed. Write"
                f" the missing rows by hand, from the source range {record.range.start.to_json()} to"
                f" {record.range.end.to_json()}, then {remedies().recover(accept_damage=record.epoch)}; or"
                " take the destination and the store back to one backup",
            )
    for sink, ledger in ledgers.items():
        check_ledger(facts, sink, ledger, sink in may_come_late)
    return Resolution(
        finish=tuple(Decided(r) for r in facts.unfinished if r.state is EpochState.DECIDED),
        accepted=tuple(r for r in facts.unfinished if r.state is EpochState.DAMAGED),
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """An epoch of which a destination has rows or a note: its T, and its end, if the destination knows it."""

    epoch: int
    timestamp_ms: int
    end: Positions | None = None

    def is_of(self, record: EpochRecord | None) -> bool:
        """Whether it is that epoch, and not another history's of the same number. T alone does not tell: where a clock
        went back, two histories count it up alike."""
        if record is None or record.timestamp_ms != self.timestamp_ms:
            return False
        return self.end is None or self.end.relation_to(record.range.end) is Relation.SAME


def _shown(ledger: LedgerEntry) -> list[Shown]:
    shown = [Shown(m.epoch, m.timestamp_ms) for m in ledger.members]
    if ledger.epoch > 0:
        shown.append(Shown(ledger.epoch, ledger.timestamp_ms, ledger.positions))
    begun = ledger.announced
    if begun is not None and begun.epoch > ledger.epoch:
        shown.append(Shown(begun.epoch, begun.timestamp_ms, begun.range.end))
    return sorted(shown, key=lambda each: each.epoch)


def _may_show(record: EpochRecord, sink: str) -> bool:
    return sink in record.sinks and (record.state in PAST_COMMIT_POINT or sink in record.write_through)


def check_ledger(facts: StoreFacts, sink: str, ledger: LedgerEntry | None, may_come_late: bool = False) -> None:
    """Compare one sink's ledger with the store. Raises unless one history explains both.

    Where the last complete epoch was written without a sink that may come late, the sink misses nothing, and what its
    ledger accounts for is from before it was left out.
    """
    complete, since = facts.complete, 0
    is_late = complete is not None and sink not in complete.sinks
    if complete is not None and is_late and not may_come_late:
        raise ConfigError(
            "sink-added",
            f"sink {sink!r} is new to pipeline {complete.pipeline!r}, which is at epoch {complete.epoch} already: it"
            " would miss the earlier records. Give the pipeline with the new sink its own name; or have the sink begin"
            " where the pipeline stands, with `onefold sinks --apply`",
        )
    if ledger is not None and is_foreign(ledger, facts.store_id):
        raise of_another_store(sink, ledger, facts.store_id)
    if complete is not None and is_late:
        if ledger is not None:
            _check_left_out(complete, sink, ledger)
        since, complete = complete.epoch, None
    if complete is not None and (ledger is None or ledger.epoch < complete.epoch):
        stands = f"stands at epoch {ledger.epoch}" if ledger else "has no ledger"
        raise DataLoss(
            "destination-older-copy",
            f"sink {sink!r} {stands}, but epoch {complete.epoch} was completed there: the destination was emptied, or"
            " is an older copy (a restored backup, or a replica promoted before it had caught up). Restore the newer"
            f" copy, or to begin anew, {remedies().begin_anew(empties=True)}",
        )
    if ledger is None:
        return
    known = _known(facts)
    for shown in _shown(ledger):
        if shown.epoch <= since:
            continue
        record = known.get(shown.epoch)
        if record is None or not _may_show(record, sink):
            raise CheckpointMismatch(
                "sink-ahead-of-store",
                f"sink {sink!r} holds epoch {shown.epoch}, which the checkpoint store never decided (it is at"
                f" {f'epoch {facts.last.epoch}' if facts.last else 'no epoch yet'}): the store is an older copy."
                f" Restore the newer store, or {remedies().adopt}",
            )
        if not shown.is_of(record):
            end = f", up to {shown.end.to_json()}" if shown.end is not None else ""
            raise CheckpointMismatch(
                "histories-differ",
                f"sink {sink!r} has an epoch {shown.epoch} of another time or end ({shown.timestamp_ms} ms{end}) than"
                f" the store's ({record.timestamp_ms} ms, up to {record.range.end.to_json()}): store and destination"
                f" have different histories. Point the pipeline to the store it had before, or {remedies().adopt}",
            )


def _check_left_out(complete: EpochRecord, sink: str, ledger: LedgerEntry) -> None:
    """Check a sink that was left out for some epochs: it must hold no partly written epoch and no records that are
    still to come. Otherwise another store's history wrote it, and some records would be there twice."""
    theirs = Positions.of((name, at) for name, at in ledger.positions.items if name in dict(complete.range.end.items))
    half = [s.epoch for s in _shown(ledger) if ledger.epoch < s.epoch <= complete.epoch]
    if half or (ledger.epoch <= complete.epoch and complete.range.end.relation_to(theirs) is Relation.BEHIND):
        raise CheckpointMismatch(
            "sink-missed-epochs",
            f"sink {sink!r} holds epoch {max([*half, ledger.epoch])}, which the checkpoint store decided without it, if"
            " at all: the store went on as an older copy while the sink was left out. Give the pipeline another sink in"
            " its place, under another name and with an empty table",
        )


def _known(facts: StoreFacts) -> dict[int, EpochRecord]:
    return {r.epoch: r for r in (facts.complete, facts.last, *facts.unfinished) if r}


def _explains(facts: StoreFacts, sink: str, ledger: LedgerEntry) -> bool:
    """Whether this store's own history explains all that the destination shows."""
    known, last = _known(facts), facts.last.epoch if facts.last else 0
    is_own = ledger.store_id == facts.store_id
    for shown in _shown(ledger):
        record = known.get(shown.epoch)
        if record is None and is_own and shown.epoch < last:
            continue
        if record is None or not _may_show(record, sink) or not shown.is_of(record):
            return False
    return True


def adoption(
    facts: StoreFacts, ledgers: Mapping[str, LedgerEntry | None], may_come_late: Collection[str] = ()
) -> LedgerEntry | None:
    """The ledger row to adopt where the user said that the destinations, not the store, are right.

    None if there is nothing to adopt. Raises CheckpointMismatch where the destinations themselves don't agree.
    """
    entries = {sink: entry for sink, entry in ledgers.items() if entry is not None and _shown(entry)}
    if all(_explains(facts, sink, entry) for sink, entry in entries.items()):
        return None
    accounts = {(e.epoch, e.timestamp_ms, e.positions) for e in entries.values()}
    if len(accounts) != 1 or len(entries) != len(ledgers):
        stand = ", ".join(f"{s} at epoch {entries[s].epoch if s in entries else 'none'}" for s in ledgers)
        new, way = ledgers.keys() - entries.keys(), remedies().back
        if new and new <= {*may_come_late} and len(accounts) == 1:
            way = f"leave {', '.join(sorted(new))} out of this one start, and put it back for the next; or {way}"
        raise CheckpointMismatch("sinks-disagree", f"the sinks do not agree on one epoch ({stand}): {way}")
    entry = next(iter(entries.values()))
    begun = [e.announced.epoch for e in entries.values() if e.announced and e.announced.epoch > e.epoch]
    beyond = sorted([m.epoch for e in entries.values() for m in e.members] + begun)
    later = [r.epoch for r in facts.unfinished if r.epoch > entry.epoch]
    if beyond or later:
        raise CheckpointMismatch(
            "epoch-half-written",
            f"epoch {(beyond or later)[0]} is half written beyond the ledgers' epoch {entry.epoch}, and only the"
            f" store that decided it knows the rest: {remedies().back}",
        )
    return entry


def ledger_end(facts: StoreFacts, pipeline: str) -> Positions:
    """Where the ledger stands. Raises ConfigError where there is none: that would read everything again."""
    if facts.last is None:
        raise ConfigError(
            "ledger-missing",
            f"starting_offsets='ledger', and pipeline {pipeline!r} has no ledger: neither its store nor its"
            " destinations know of an epoch. If it never wrote, give the starting_offsets at which it is to begin, such"
            " as 'earliest'; if it did, restore the store and the destinations' bookkeeping, or begin with an empty"
            " table",
        )
    return facts.last.range.end


def check_setting(facts: StoreFacts, frozen: Positions, setting: str | None) -> None:
    """Raise ConfigError where the start was settled by another setting, and nothing was written from there yet.

    Later a pipeline goes on from what was written, whatever the setting says.
    """
    if facts.last is None and None not in (frozen.setting, setting) and frozen.setting != setting:
        raise other_setting(frozen.setting, setting)


@dataclass(frozen=True, slots=True)
class Next:
    """The range continues the chain: a new epoch."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The range was decided before: the writers must not run again."""

    record: EpochRecord


NextOrReplay = Next | Replay


def place(facts: StoreFacts, found: EpochRecord | None, request: EpochRequest) -> NextOrReplay:
    """Where a range belongs in the chain of epochs. Ranges are matched by position, never by the runtime's batch id.

    An epoch from before the positions were last moved is no replay: the operator wants its records again.
    """
    asked, base = request.range, facts.last.range.end if facts.last else facts.frozen
    if asked.end.relation_to(asked.start) is Relation.BEHIND:
        raise DataLoss(
            "batch-ends-before-start",
            f"batch {request.batch_id} ends before it starts ({asked.end.differences(asked.start)}): the topic was"
            f" truncated or made anew. To go on with the new topic, {remedies().begin_anew()}",
        )
    if found is not None and found.epoch > facts.moved:
        return Replay(found)
    begun = facts.begun
    if begun is not None and not request.is_into_sinks_of(begun):
        raise CheckpointMismatch(
            "sinks-changed",
            f"epoch {begun.epoch} was begun with the sinks {', '.join(begun.sinks)}, and parts of it may show in"
            f" {', '.join(begun.write_through)}: it must run again exactly as it was, and the sinks are"
            f" {', '.join(request.sinks)} now. Start once with the sinks and the modes that it had, and change them"
            " when that epoch is complete",
        )
    if begun is not None and not request.is_again(begun):
        raise CheckpointMismatch(
            "replay-differs",
            f"epoch {begun.epoch} was begun, and parts of it may show in {', '.join(begun.write_through)}: it must run"
            f" again exactly as it was, to {begun.range.end.to_json()}, and batch {request.batch_id} of query"
            f" {request.query_id} is another range, or of other input, columns or settings"
            f" ({asked.end.differences(begun.range.end) or 'the range is the same'}). Go back to the checkpoint, the"
            f" columns and the settings that it had until that epoch is complete{remedies().other_checkpoint}",
        )
    is_at_base = base is not None and asked.start.relation_to(base) is Relation.SAME
    if facts.last is None and request.continues and not is_at_base:
        raise DataLoss(
            "batches-not-recorded",
            f"batch {request.batch_id} of query {request.query_id} goes on from batches that are not on record: the"
            " destination and its store were made anew, or are an older copy, or the query ran without this pipeline"
            f" before. Restore the newer copy; or, {START_OVER}",
        )
    if base is None:
        return Next()
    check_is_from_this_start(facts, request, base)
    check_has_order(request, base)
    if begins_at(request, base):
        return Next()
    raise CheckpointMismatch(
        "batch-overlaps",
        f"batch {request.batch_id} of query {request.query_id} covers records that are written already"
        f" ({asked.start.differences(base)}), in another cut: the checkpoint is new, an older copy, or another"
        f" pipeline's. Nothing was written; {remedies().other}",
    )


def begins_at(batch: EpochRequest | EpochRecord, base: Positions | None) -> bool:
    """Whether a batch begins at the end on record, `base`; the first one, which has none, may begin anywhere.

    Raises DataLoss where it begins beyond: what is between is in no store.
    """
    if base is None:
        return True
    match batch.range.start.relation_to(base):
        case Relation.AHEAD:
            raise DataLoss(
                "gap-in-positions",
                f"batch {batch.batch_id} of query {batch.query_id} starts beyond the recorded end"
                f" ({batch.range.start.differences(base)}): the records between were never written. The checkpoint"
                f" belongs to another pipeline, or the destination and its store are an older copy;"
                f" {remedies().other}",
            )
        case relation:
            return relation is Relation.SAME


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query's checkpoint holds as done."""

    query_id: str
    batch_id: int
    end: Positions


def check_committed(facts: StoreFacts, committed: Committed) -> None:
    """Raise DataLoss where the store has no record of a batch that the checkpoint holds as done."""
    last, end = facts.last, committed.end
    base = last.range.end.of_records() if last else facts.frozen or Positions()
    by_number = by_batch_number(last, committed.query_id, committed.batch_id, end)
    relation = by_number or end.relation_to(base)
    if relation in (Relation.AHEAD, Relation.UNORDERED) or (last is None and relation is not Relation.SAME):
        raise DataLoss(
            "checkpoint-ahead",
            f"the checkpoint's last committed batch ends beyond the recorded end ({end.differences(base)}): the"
            " destination and its store are an older copy, or were made anew, or the checkpoint is another pipeline's."
            f" Restore the newer copy; or, {START_OVER if last is None else remedies().other}",
        )


def orphans(facts: StoreFacts, generation: Generation, listed: Iterable[Committable]) -> tuple[Committable, ...]:
    """Which leftovers a sweep removes. `listed` must have been read before `facts`.

    Nothing if a newer generation has taken over. Otherwise all but what a manifest still needs and what this
    generation may still decide, which is above the last decided epoch.
    """
    if facts.generation != generation.number:
        return ()
    needed = {(c.sink, c.handle) for r in facts.unfinished for c in r.manifest}
    last = facts.last.epoch if facts.last else 0
    return tuple(
        c for c in listed if (c.sink, c.handle) not in needed and (c.generation != generation.number or c.epoch <= last)
    )

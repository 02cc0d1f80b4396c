"""The epoch protocol, written once: generators that yield effects and are sent the answers. No I/O.

    start   before every start of a query: take over the store and every sink, finish or give up what earlier lives
            left, freeze the positions
    epoch   one range of the source, exactly once: open, write, verify, decide, commit
    sweep   remove prepared work that no manifest names: at starts, at ends, and on a timer

That an epoch is complete, the store is told with the next decision, in the same transaction; or by `complete_last`,
where none follows soon. Until its decision an epoch is known to its driver alone, unless it writes through: then the
store has it before a row shows. So an epoch takes one transaction of the store, Decide, or two: OpenEpoch and Decide.

The safety rests on three things: Decide is a compare-and-set that only the newest generation can win; only what a
decided manifest names is ever committed; and a driver decides only while every sink is bound to its generation, since
two stores may be alive. A zombie may prepare work; it is never committed, and the sweep removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from onefold.core.contract import (
    Binding,
    Committable,
    Decided,
    EpochRecord,
    EpochState,
    Generation,
    LedgerEntry,
    SinkKind,
)
from onefold.core.errors import (
    CheckpointMismatch,
    Damaged,
    Fenced,
    InDoubt,
    OnefoldError,
    OutOfResources,
    Retriable,
    Terminal,
    WorkLost,
)
from onefold.core.positions import Positions, Relation
from onefold.core.protocol.binding import check_bound, is_foreign, not_mine
from onefold.core.protocol.effects import (
    Abort,
    AcceptDamage,
    AcquireGeneration,
    Adopt,
    Announce,
    Bind,
    Commit,
    Complete,
    Decide,
    EpochRequest,
    FindEpoch,
    Freeze,
    ListLeftovers,
    MarkDamaged,
    OpenEpoch,
    Pause,
    Protocol,
    ReadClock,
    ReadLedger,
    ReadStore,
    RunWriters,
    StoreFacts,
    Verify,
    WriteLedger,
)
from onefold.core.protocol.effects import retry as _retry
from onefold.core.protocol.recovery import (
    Next,
    Replay,
    Resolution,
    adoption,
    check_setting,
    ledger_end,
    orphans,
    place,
    resolve,
)


@dataclass(frozen=True, slots=True)
class Initial:
    """Where a pipeline that never ran starts, by its source's settings; with `from_ledger`, where its ledger stands."""

    positions: Positions
    from_ledger: bool = False
    setting: str | None = None  # what the positions were found by


@dataclass(frozen=True, slots=True)
class Started:
    """What a start found: the generation to work under and where a new checkpoint's first batch begins.

    `until` is where that batch must end: an epoch that writes through was begun, and runs again exactly as it was.
    """

    generation: Generation
    store_id: str
    start: Positions | None
    finished: int
    until: Positions | None = None


@dataclass(frozen=True, slots=True)
class StoreCache:
    """A driver's write-back cache of its pipeline's store: under its generation nobody else changes the store.

    `facts` are None where the store must be read. `committed` is the last epoch, where every sink has committed it and
    every ledger says so, and the store is still to be told that it is complete.
    """

    facts: StoreFacts | None = None
    committed: Decided | None = None

    def is_followed_by(self, request: EpochRequest) -> bool:
        """Whether the range is a new one right after the last epoch, so that the store need not be asked first. Only
        positions that grow do not come again."""
        if self.facts is None or self.facts.last is None:
            return False
        if request.range.end.relation_to(request.range.start) is not Relation.AHEAD:
            return False
        try:
            return isinstance(place(self.facts, None, request), Next)
        except OnefoldError:
            return False  # what the store says may be newer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a range: the epoch's record, whether it had been decided before this call, and the cache
    for the next one."""

    record: EpochRecord
    replayed: bool
    cache: StoreCache = field(default=StoreCache(), compare=False)


def start(
    sinks: tuple[str, ...],
    initial: Initial | None,
    adopt_ledger: bool = False,
    accept_damage: int | None = None,
    may_come_late: Collection[str] = (),
) -> Protocol[Started]:
    """Take over the pipeline. Waits for a sink that is down: no query starts beside an unfinished epoch.

    It sweeps nothing: a newer copy of this store may have decided what this one doesn't know. Compare the query's
    checkpoint first.

    Of `sinks`, those that `may_come_late` need not have been there from the first epoch on.
    """
    ledgers = yield from _read_ledgers(sinks)
    seen = [n for entry in ledgers.values() if entry for n in _generations(entry)]
    generation: Generation = yield from _retry(AcquireGeneration(above=max(seen, default=0)))
    facts: StoreFacts = yield from _retry(ReadStore())
    if adopt_ledger:
        facts = yield from _adopt(generation, facts, sinks, may_come_late)
    resolution = yield from _resolve(generation, facts, sinks, accept_damage, may_come_late)
    yield from _bind(Binding(facts.store_id, generation.number), sinks)
    for record in resolution.accepted:
        decided = yield from _retry(AcceptDamage(generation, record))
        yield from complete(generation, facts.store_id, decided)
    for decided in resolution.finish:
        yield from finish(generation, facts.store_id, decided)
    if resolution.finish or resolution.accepted:
        facts = yield from _retry(ReadStore())
        yield from _resolve(generation, facts, sinks, may_come_late=may_come_late)
    position, until = None, None
    if initial is not None:
        position, until = yield from _first_batch(generation, initial, facts)
    return Started(generation, facts.store_id, position, len(resolution.finish), until)


def epoch(
    generation: Generation,
    store_id: str,
    request: EpochRequest,
    runs_max: int = 3,
    cache: StoreCache = StoreCache(),
    opened: EpochRecord | None = None,
) -> Protocol[Outcome]:
    """Process one range exactly once. Writers that fail run again, at most `runs_max` times in all; where a server was
    merely out of something, after a pause, for as long as the driver has patience.

    `cache` is what the epoch before has left: without it, the store is asked where the range belongs. After this one
    run `complete_last`, unless its own `cache` goes to the next soon. `opened` is the epoch, where this generation has
    opened it before for writers elsewhere.
    Where it ends with InDoubt its decision may land later: the same process, too, starts anew before it asks again."""
    facts, committed = cache.facts, cache.committed
    if facts is None or not cache.is_followed_by(request):
        committed = (yield from complete_last(generation, cache)).committed
        facts = yield from _retry(ReadStore())
        found: EpochRecord | None = yield from _retry(FindEpoch(request))
        match place(facts, found, request):
            case Replay(record):
                if record.state is EpochState.DECIDED:  # maybe since the facts were read
                    yield from finish(generation, store_id, Decided(record))
                return Outcome(record, replayed=True)
        _check_mine(generation, facts)
    record = opened or (yield from open_epoch(generation, request, facts, committed))
    runs = waits = 0
    while True:
        for sink in record.write_through:
            yield from _retry(Announce(sink, record))
        try:
            manifest = yield from prepare(record)
            completes = None if record.write_through else committed  # which the opening has told
            decided = yield from decide(generation, store_id, record, manifest, completes)
            break
        except InDoubt:
            raise  # it may have been decided: no abort, no sweep, no rerun
        except OutOfResources as error:
            yield from _abort_run(generation, record)
            waits += 1
            yield Pause(waits, RunWriters(record), error)
        except Retriable:
            yield from _abort_run(generation, record)
            runs += 1
            if runs >= runs_max:
                raise
        except (Fenced, CheckpointMismatch):
            raise  # somebody else is at work here: what was prepared is for the next recovery to remove
        except OnefoldError:
            yield from _abort_run(generation, record)
            raise
        _check_mine(generation, (yield from _retry(ReadStore())))
    yield from _commit(generation, store_id, decided)
    facts = replace(facts, last=decided.record, unfinished=(decided.record,))
    return Outcome(decided.record, replayed=False, cache=StoreCache(facts, decided))


def open_epoch(
    generation: Generation, request: EpochRequest, facts: StoreFacts, committed: Decided | None = None
) -> Protocol[EpochRecord]:
    """The epoch after the last one, with its number and its T. Only what writes through is stored by now: its rows may
    show before the decision, and so it must run again as it was."""
    number, newest_ms = (facts.last.epoch, facts.last.timestamp_ms) if facts.last else (0, 0)
    if request.write_through:
        record: EpochRecord = yield from _retry(OpenEpoch(generation, request, number, committed))
        return record
    now_ms: int = yield ReadClock()
    return request.opened(generation, number + 1, max(newest_ms + 1, now_ms))


def complete_last(generation: Generation, cache: StoreCache) -> Protocol[StoreCache]:
    """Tell the store that the last epoch is complete, where no other epoch has told it. Returns the cache after it."""
    if cache.committed is not None:
        yield from _retry(Complete(generation, cache.committed))
    return StoreCache(cache.facts)


def sweep(generation: Generation, sinks: Iterable[str]) -> Protocol[int]:
    """Remove what no manifest names: list first, then read the store, then remove. Returns how many were removed."""
    removed = 0
    for sink in sinks:
        listed: tuple[Committable, ...] = tuple((yield from _retry(ListLeftovers(sink, generation.number))))
        if not listed:
            continue
        facts: StoreFacts = yield from _retry(ReadStore())
        condemned = orphans(facts, generation, listed)
        if condemned:
            yield from _retry(Abort(sink, condemned))
            removed += len(condemned)
    return removed


def _check_mine(generation: Generation, facts: StoreFacts) -> None:
    """Before writers run. Raises Fenced where another driver has taken over: it sweeps whatever these prepare."""
    if facts.generation != generation.number:
        raise not_mine(generation, facts.generation or None)


def _generations(entry: LedgerEntry) -> list[int]:
    """The generations that the ledger row of a destination names."""
    told = [entry.announced.generation] if entry.announced is not None else []
    return [entry.generation, *(member.generation for member in entry.members), *told]


def _first_batch(
    generation: Generation, initial: Initial, facts: StoreFacts
) -> Protocol[tuple[Positions, Positions | None]]:
    """Where a new checkpoint's first batch begins, and where it must end, if it must."""
    if facts.begun is not None:
        return facts.begun.range.start, facts.begun.range.end
    if initial.from_ledger:
        return ledger_end(facts, generation.pipeline), None
    frozen: Positions = yield from _retry(Freeze(generation, initial.positions.with_setting(initial.setting)))
    check_setting(facts, frozen, initial.setting)
    return (facts.origin or frozen).with_setting(None), None


def _resolve(
    generation: Generation,
    facts: StoreFacts,
    sinks: tuple[str, ...],
    accept_damage: int | None = None,
    may_come_late: Collection[str] = (),
) -> Protocol[Resolution]:
    """Compare store and ledgers. Where a newer generation has changed them meanwhile, raise Fenced, not a mismatch."""
    ledgers = yield from _read_ledgers(sinks)
    try:
        return resolve(facts, ledgers, accept_damage, may_come_late)
    except Terminal as error:
        now: StoreFacts = yield from _retry(ReadStore())
        if now.generation <= generation.number:
            raise  # below: the store went back under this start, which the error is about
        raise not_mine(generation, now.generation) from error


def prepare(record: EpochRecord) -> Protocol[tuple[Committable, ...]]:
    """What its writers have made of the epoch, verified."""
    manifest: tuple[Committable, ...] = yield RunWriters(record)
    yield from _verify(record, manifest)
    return manifest


def _verify(record: EpochRecord, manifest: tuple[Committable, ...]) -> Protocol[None]:
    for sink in _apart(record, manifest):
        yield Verify(sink, tuple(c for c in manifest if c.sink == sink))


def _apart(record: EpochRecord, manifest: tuple[Committable, ...]) -> list[str]:
    """The epoch's sinks but for a last resource that has work: Decide's own transaction asserts what it did, and that
    its ledger row is this driver's."""
    merged = {committable.sink for committable in manifest if committable.kind is SinkKind.LAST_RESOURCE}
    return [sink for sink in record.sinks if sink not in merged]


def decide(
    generation: Generation,
    store_id: str,
    record: EpochRecord,
    manifest: tuple[Committable, ...],
    completes: Decided | None = None,
) -> Protocol[Decided]:
    """Send the same Decide until it is answered. After one that went unanswered, only success or Fenced is an answer,
    since the lost one may still take effect, whatever the store says meanwhile. Before each Decide until then, verify
    the work again, which may expire during a wait for the store or a ledger, and look at the sinks' bindings again: a
    driver that bound a sink since then sweeps this work, or has swept already and never commits it."""
    attempt, in_doubt, deciding = 0, False, Decide(generation, record, manifest, completes)
    while True:
        if attempt and not in_doubt:
            yield from _verify(record, manifest)
        if not in_doubt:
            try:
                yield from _look(Binding(store_id, generation.number), _apart(record, manifest))
            except (Retriable, InDoubt) as error:  # a look leaves nothing in doubt
                attempt += 1
                yield Pause(attempt, deciding, error)
                continue
            except Fenced:  # whoever bound the sink may have swept already, and nobody was asked to decide this
                yield from _abort_run(generation, record)
                raise
        try:
            decided: Decided = yield deciding
            return decided
        except (Fenced, WorkLost) as error:
            if in_doubt and isinstance(error, WorkLost):
                raise _undecided(record, error) from error
            raise
        except (Retriable, InDoubt) as error:
            in_doubt = in_doubt or isinstance(error, InDoubt)
            attempt += 1
            yield Pause(attempt, deciding, _undecided(record, error) if in_doubt else error)
        except OnefoldError as error:
            if in_doubt:
                raise _undecided(record, error) from error
            raise


def _look(mine: Binding, sinks: Iterable[str]) -> Protocol[None]:
    """Check that every sink is still bound to this driver. Its prepared work is listed by now, so a driver that binds
    the sinks later finds it."""
    for sink in sinks:
        check_bound((yield ReadLedger(sink)), mine, sink)


def _undecided(record: EpochRecord, error: OnefoldError) -> InDoubt:
    return InDoubt(
        "decision-unanswered",
        f"the decision on epoch {record.epoch} of pipeline {record.pipeline!r} went unanswered, and it is not known"
        f" whether it was made ({error.message}). Start the pipeline again once the checkpoint store answers: it"
        " finds out",
    )


def finish(generation: Generation, store_id: str, decided: Decided) -> Protocol[None]:
    """After the commit point: commit in every sink, write the ledgers, complete."""
    yield from _commit(generation, store_id, decided)
    yield from _retry(Complete(generation, decided))


def _commit(generation: Generation, store_id: str, decided: Decided) -> Protocol[None]:
    """Commit in every sink, then write the ledgers: from then on only the store does not say that it is complete."""
    damage = yield from _commit_all(decided)
    if damage is not None:
        yield from _retry(MarkDamaged(generation, decided, str(damage)))
        raise damage
    yield from _write_ledgers(generation, store_id, decided.record)


def complete(generation: Generation, store_id: str, decided: Decided) -> Protocol[None]:
    """Write the ledgers of an epoch that has nothing left to commit, and complete it."""
    yield from _write_ledgers(generation, store_id, decided.record)
    yield from _retry(Complete(generation, decided))


def _write_ledgers(generation: Generation, store_id: str, record: EpochRecord) -> Protocol[None]:
    entry = LedgerEntry(
        epoch=record.epoch,
        generation=generation.number,
        timestamp_ms=record.timestamp_ms,
        positions=record.range.end,
        store_id=store_id,
    )
    for sink in record.sinks:
        yield from _retry(WriteLedger(sink, entry))


def _commit_all(decided: Decided) -> Protocol[Damaged | None]:
    """Commit each sink by itself: while one is down or damaged, the prepared work of the others must not expire. A move
    has nothing to commit but the state that came with it, and no other sink was told of it before its ledger row."""
    record, attempt, damage = decided.record, 0, None
    waiting = tuple(sink for sink in record.sinks if not record.is_move or decided.of(sink))
    while waiting:
        unanswered: dict[str, OnefoldError] = {}
        for sink in waiting:
            try:
                yield Commit(sink, decided)
            except Damaged as error:
                damage = damage or error
            except (Retriable, InDoubt) as error:
                unanswered[sink] = error
        waiting = tuple(unanswered)
        if waiting:
            attempt += 1
            yield Pause(attempt, Commit(waiting[0], decided), unanswered[waiting[0]])
    return damage


def _abort_run(generation: Generation, record: EpochRecord) -> Protocol[None]:
    """Remove what a failed run of the writers prepared. The sweep removes what they prepare later."""
    for sink in record.sinks:
        listed: tuple[Committable, ...] = tuple((yield from _retry(ListLeftovers(sink, generation.number))))
        mine = tuple(c for c in listed if (c.epoch, c.generation) == (record.epoch, generation.number))
        if mine:
            yield from _retry(Abort(sink, mine))


def _adopt(
    generation: Generation, facts: StoreFacts, sinks: tuple[str, ...], may_come_late: Collection[str]
) -> Protocol[StoreFacts]:
    """Take over from another store, or from a newer copy of this one, whose drivers may be alive.

    Bound here, they decide nothing that they had not prepared; swept here, that is gone. Only then do the ledgers say
    what there is to adopt. What shows beyond them before the sweep is not swept: their store can still finish it.
    """
    ledgers = yield from _read_ledgers(sinks)
    is_taken_over = any(entry is not None and is_foreign(entry, facts.store_id) for entry in ledgers.values())
    if adoption(facts, ledgers, may_come_late) is None and not is_taken_over:
        return facts
    yield from _bind(Binding(facts.store_id, generation.number, takes_over=True), sinks)
    yield from sweep(generation, sinks)
    now = yield from _read_ledgers(sinks)
    entry = adoption(facts, {sink: _written_under(ledgers[sink], now[sink]) for sink in sinks}, may_come_late)
    if entry is not None:
        yield from _retry(Adopt(generation, entry, sinks))
    adopted: StoreFacts = yield from _retry(ReadStore())
    return adopted


def _written_under(before: LedgerEntry | None, now: LedgerEntry | None) -> LedgerEntry | None:
    """The row as it is now, with the store that wrote its epoch: a takeover changes only the binding."""
    return now and replace(now, store_id=before.store_id if before else "")


def _bind(binding: Binding, sinks: Iterable[str]) -> Protocol[None]:
    for sink in sinks:
        yield from _retry(Bind(sink, binding))


def _read_ledgers(sinks: Iterable[str]) -> Protocol[dict[str, LedgerEntry | None]]:
    ledgers = {}
    for sink in sinks:
        ledgers[sink] = yield from _retry(ReadLedger(sink))
    return ledgers

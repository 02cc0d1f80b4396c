"""The checkpoint store's semantics in memory, and a record of what it was asked to decide."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from onefold.core.checks import present, require
from onefold.core.contract import MOVED, Committable, Decided, EpochRecord, EpochState, Generation, LedgerEntry
from onefold.core.errors import CheckpointMismatch
from onefold.core.invariants import ADOPTED, Decision, Transition
from onefold.core.positions import Positions, Range
from onefold.core.protocol.binding import not_mine, went_back
from onefold.core.protocol.coordinator import Merge
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.protocol.recovery import PAST_COMMIT_POINT, begins_at
from onefold.core.testing.simulator.models import ModelTransaction

DECIDED_STATES = (EpochState.DECIDED, EpochState.COMPLETE)
UNFINISHED = (EpochState.OPEN, EpochState.DECIDED, EpochState.DAMAGED)


class ModelStore:
    """One pipeline's checkpoint store. Time is a counter, tokens are numbers: the same run gives the same history."""

    def __init__(self, store_id: str = "model-store") -> None:
        self.store_id = store_id
        self.newest: Generation | None = None
        self.frozen: Positions | None = None
        self.origin: Positions | None = None
        self.moved = 0
        self.epochs: dict[int, EpochRecord] = {}
        self.transitions: list[Transition] = []
        self.decisions: list[Decision] = []
        self._tokens = self._clock = 0

    def id(self) -> str:
        return self.store_id

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation:
        if last is not None and self.newest is not None and self.newest != last and self.newest.number >= last.number:
            raise not_mine(last, self.newest.number)
        self._tokens += 1
        number = max(above, self.newest.number if self.newest else 0) + 1
        self.newest = Generation(pipeline, number, f"token-{self._tokens}")
        return self.newest

    def facts(self, pipeline: str) -> StoreFacts:
        require(self.newest is None or self.newest.pipeline == pipeline, "a model store has one pipeline")
        return StoreFacts(
            store_id=self.store_id,
            generation=self.newest.number if self.newest else 0,
            last=self._last(DECIDED_STATES),
            complete=self._last((EpochState.COMPLETE,)),
            unfinished=self._unfinished(),
            frozen=self.frozen,
            origin=self.origin,
            moved=self.moved,
        )

    def freeze(self, generation: Generation, initial: Positions) -> Positions:
        self._mine(generation)
        if self.frozen is None:
            self.frozen = initial
        return self.frozen

    def find(self, pipeline: str, request: EpochRequest) -> EpochRecord | None:
        require(self.newest is None or self.newest.pipeline == pipeline, "a model store has one pipeline")
        same_batch = (request.query_id, request.batch_id)
        for _, record in sorted(self.epochs.items(), reverse=True):
            if record.state in DECIDED_STATES and record.range == request.range and request.has_input_of(record):
                if request.range.is_empty and (record.query_id, record.batch_id) != same_batch:
                    continue
                return record
        return None

    def open_epoch(
        self,
        generation: Generation,
        request: EpochRequest,
        after: int,
        now_ms: int,
        completes: Decided | None = None,
    ) -> EpochRecord:
        require(now_ms > 0, "a call without its time")
        self._mine(generation)
        if completes is not None:
            self._check_state(completes.record, DECIDED_STATES)
        completed = completes.record.epoch if completes is not None else 0
        for record in self._unfinished():
            if record.epoch == completed:
                continue
            if record.state is EpochState.OPEN and request.is_again(record):
                mine = replace(record, generation=generation.number)
                self.epochs[record.epoch] = mine
                return mine
            raise CheckpointMismatch("epoch-in-progress", f"epoch {record.epoch} is still {record.state.value}")
        last = self._last(DECIDED_STATES)
        if not begins_at(request, self._base(last)):
            raise CheckpointMismatch("epoch-not-next", f"{request.range} is not at the end of the last epoch")
        if (last.epoch if last else 0) != after:
            raise CheckpointMismatch("epoch-not-next", f"epoch {after} is not the end of the last one any more")
        found = None if request.query_id == MOVED else self.find(generation.pipeline, request)
        if found is not None and found.epoch > self.moved:
            raise CheckpointMismatch("epoch-not-next", f"the range is epoch {found.epoch}'s already")
        if completes is not None:
            self.complete(generation, completes, now_ms)
        timestamp_ms = max(self.now(), *(r.timestamp_ms + 1 for r in self.epochs.values()), 0)
        return self._put(request.opened(generation, max(self.epochs, default=0) + 1, timestamp_ms))

    def decide(
        self,
        generation: Generation,
        record: EpochRecord,
        manifest: Sequence[Committable],
        now_ms: int,
        merge: Merge | None = None,
        completes: Decided | None = None,
    ) -> Decided:
        require(now_ms > 0, "a call without its time")
        self._mine(generation)
        if completes is not None:
            self._check_state(completes.record, DECIDED_STATES)
        completed = completes.record.epoch if completes is not None else 0
        stored = self.epochs.get(record.epoch)
        if stored is not None and stored.state in DECIDED_STATES:
            if stored.manifest == tuple(manifest):
                return Decided(stored)
            raise CheckpointMismatch("other-manifest", f"epoch {record.epoch} was decided with another manifest")
        last = self._last(DECIDED_STATES)
        follows = begins_at(record, self._base(last))
        is_next = (last.epoch if last else 0) == record.epoch - 1 and record.generation == generation.number
        is_resolved = last is None or last.state is EpochState.COMPLETE or last.epoch == completed
        if not (follows and is_next and is_resolved and stored in (None, record)):
            raise CheckpointMismatch("epoch-not-decidable", f"epoch {record.epoch} can't be decided after {last}")
        transaction = ModelTransaction()
        if merge is not None:
            try:
                merge(transaction)
            except BaseException:
                transaction.rollback()
                raise
        if completes is not None:
            self.complete(generation, completes, now_ms)
        newest = present(self.newest, "a decision without a generation")
        self.decisions.append(Decision(record.epoch, generation.number, newest.number))
        if record.is_move and not record.range.is_empty:
            self.origin, self.moved = record.range.end, record.epoch
        return Decided(self._put(replace(record, state=EpochState.DECIDED, manifest=tuple(manifest))))

    def complete(self, generation: Generation, decided: Decided, now_ms: int) -> None:
        require(now_ms > 0, "a call without its time")
        self._move(generation, decided.record, DECIDED_STATES, EpochState.COMPLETE)

    def damage(self, generation: Generation, decided: Decided, evidence: str) -> None:
        require(evidence, "damage without evidence")
        self._move(generation, decided.record, PAST_COMMIT_POINT, EpochState.DAMAGED)

    def accept_damage(self, generation: Generation, record: EpochRecord) -> Decided:
        self._move(generation, record, (EpochState.DAMAGED, EpochState.DECIDED), EpochState.DECIDED)
        return Decided(self.epochs[record.epoch])

    def adopt(self, generation: Generation, entry: LedgerEntry, sinks: tuple[str, ...], now_ms: int) -> None:
        require(now_ms > 0, "a call without its time")
        self._mine(generation)
        for number, record in sorted(self.epochs.items()):
            if number >= entry.epoch:
                del self.epochs[number]
            elif record.state in UNFINISHED:
                over = EpochState.GIVEN_UP if record.state is EpochState.OPEN else EpochState.COMPLETE
                self._put(replace(record, state=over))
        self._put(
            EpochRecord(
                pipeline=generation.pipeline,
                epoch=entry.epoch,
                generation=generation.number,
                state=EpochState.COMPLETE,
                range=Range(entry.positions, entry.positions),
                timestamp_ms=entry.timestamp_ms,
                query_id=ADOPTED,
                batch_id=-1,
                fingerprint="",
                sinks=sinks,
            )
        )
        left = [record for record in self.moves(generation.pipeline) if not record.range.is_empty]
        self.origin, self.moved = (left[-1].range.end, left[-1].epoch) if left else (None, 0)

    def moves(self, pipeline: str) -> tuple[EpochRecord, ...]:
        require(self.newest is None or self.newest.pipeline == pipeline, "a model store has one pipeline")
        return tuple(record for record in self.history() if record.is_move and record.state in DECIDED_STATES)

    def anchor(self, generation: Generation, origin: Positions) -> None:
        self._mine(generation)
        self.origin = origin

    def backup(self) -> dict[str, Any]:
        """All that a copy of the store's database holds."""
        kept = ("store_id", "newest", "frozen", "origin", "moved", "epochs", "transitions", "decisions")
        return {name: copy(getattr(self, name)) for name in kept}

    def restore(self, backup: dict[str, Any]) -> None:
        for name, value in backup.items():
            setattr(self, name, copy(value))

    def history(self) -> tuple[EpochRecord, ...]:
        """Every epoch, oldest first."""
        return tuple(record for _, record in sorted(self.epochs.items()))

    def jump(self, by: int) -> None:
        """The clock is set, as by an operator or by NTP."""
        self._clock += by

    def be_at(self, now_ms: int) -> None:
        """The next time that `now` tells, unless it has told a later one."""
        self._clock = max(self._clock, now_ms - 1)

    def now(self) -> int:
        """A clock that goes on, also where an older copy is restored, but for its jumps."""
        self._clock += 1
        return self._clock

    def _mine(self, generation: Generation) -> None:
        if generation != self.newest:
            raise not_mine(generation, self.newest.number if self.newest else None)

    def _move(
        self, generation: Generation, record: EpochRecord, allowed: tuple[EpochState, ...], to: EpochState
    ) -> None:
        self._mine(generation)
        stored = self._check_state(record, allowed)
        if stored.state is not to:
            self._put(replace(stored, state=to))

    def _check_state(self, record: EpochRecord, allowed: tuple[EpochState, ...]) -> EpochRecord:
        stored = self.epochs.get(record.epoch)
        if stored is None or stored.state not in allowed:
            raise went_back(record, stored)
        return stored

    def _base(self, last: EpochRecord | None) -> Positions | None:
        return last.range.end if last else self.frozen

    def _put(self, record: EpochRecord) -> EpochRecord:
        self.epochs[record.epoch] = record
        self.transitions.append(Transition(record.epoch, record.state))
        return record

    def _last(self, states: tuple[EpochState, ...]) -> EpochRecord | None:
        return max((r for r in self.epochs.values() if r.state in states), key=lambda r: r.epoch, default=None)

    def _unfinished(self) -> tuple[EpochRecord, ...]:
        return tuple(record for record in self.history() if record.state in UNFINISHED)

"""The simulator over the production store, on SQLite in memory: the model must not be better than the real one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from onefold.core import Decided, EpochRecord, EpochState, Generation
from onefold.core.invariants import Decision, Transition
from onefold.core.protocol.effects import EpochRequest
from onefold.core.testing import CONFIGURATIONS, DEFAULT, ONE_FAULT, Fault, explore, load
from onefold.core.testing.simulator.faults import BACKUPS
from onefold.store.checkpoint_store import CheckpointStore

# An older or another store is a file that somebody copies: the chain tests do that on real servers.
COPIES = {*BACKUPS, Fault.BACKUP, Fault.NEW_STORE, Fault.NEW_STORE_ADOPTED, Fault.STORE_BACK}


class RealStore(CheckpointStore):
    """It also tells what a simulated world wants to see of a store."""

    def __init__(self, _store_id: str = "") -> None:
        super().__init__("sqlite://")
        self.newest: Generation | None = None
        self.transitions: list[Transition] = []
        self.decisions: list[Decision] = []
        self._jumped_ms = 0

    @property
    def epochs(self) -> dict[int, EpochRecord]:
        return {record.epoch: record for record in self.history("model")}

    @property
    def moved(self) -> int:
        return self.facts("model").moved

    def history(self, pipeline: str = "model", limit: int = 1000) -> list[EpochRecord]:
        return super().history(pipeline, limit)

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation:
        self.newest = super().acquire(pipeline, above, last)
        return self.newest

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self._jumped_ms

    def jump(self, by: int) -> None:
        self._jumped_ms += by

    def open_epoch(
        self,
        generation: Generation,
        request: EpochRequest,
        after: int,
        now_ms: int,
        completes: Decided | None = None,
    ) -> EpochRecord:
        return super().open_epoch(generation, request, after, now_ms + self._jumped_ms, completes)

    def decide(self, generation: Generation, record: EpochRecord, *more: Any) -> Decided:
        before = self.epochs.get(record.epoch)
        decided = super().decide(generation, record, *more)
        if before is None or before.state is EpochState.OPEN:
            assert self.newest is not None
            self.decisions.append(Decision(record.epoch, generation.number, self.newest.number))
            self.transitions.append(Transition(record.epoch, EpochState.DECIDED))
        return decided

    def damage(self, generation: Generation, decided: Decided, evidence: str) -> None:
        super().damage(generation, decided, evidence)
        self.transitions.append(Transition(decided.record.epoch, EpochState.DAMAGED))

    def backup(self) -> dict[str, Any]:
        return {}

    def restore(self, backup: dict[str, Any]) -> None:
        assert backup == {}


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("name", ["two-phase", "write-through", "two-phase, another source"])
def test_no_fault_at_any_step_breaks_an_invariant_over_the_real_store(name: str) -> None:
    subject = replace(load(), store=RealStore)
    report = explore(CONFIGURATIONS[name], ONE_FAULT, subject, shard=(0, 20), only=set(Fault) - COPIES)
    assert report.failures == []
    assert report.schedules > 25


@pytest.mark.proof
@pytest.mark.soak
def test_late_decisions_and_zombies_break_nothing_over_the_real_store() -> None:
    subject = replace(load(), store=RealStore)
    start = CONFIGURATIONS["two-phase"]
    for fault, shard in ((Fault.LATE, (3, 11)), (Fault.SLEEP, (3, 22))):
        report = explore(start, DEFAULT, subject, shard=shard, only={fault})
        assert report.failures == []
        assert sum(count for (struck, _), count in report.struck.items() if struck is Fault.WAKE) > 50

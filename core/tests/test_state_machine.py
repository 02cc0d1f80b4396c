"""Long schedules: many crashes, several zombies, a topic that grows. A failure prints the command that replays it."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from onefold.core import SinkKind
from onefold.core.testing import CONFIGURATIONS, Fault, SimulationPlan, Subject, load
from onefold.core.testing.simulator.faults import MISHAPS, MOVES, RIVALS, applies
from onefold.core.testing.simulator.simulator import judge
from onefold.core.testing.simulator.world import World
from onefold.core.values.remedies import SPARK_FLOW, in_words_of

STEPS = int(os.environ.get("ONEFOLD_STATE_MACHINE_STEPS", "60"))
EXAMPLES = int(os.environ.get("ONEFOLD_STATE_MACHINE_EXAMPLES", "400"))
STARTS = sorted({plan.sinks for plan in CONFIGURATIONS.values()}, key=str)
WAKES = (Fault.WAKE, Fault.WAKE_ONE_STEP)
STRUCK: Counter[tuple[Fault, str]] = Counter()
STRIKES = tuple(fault for fault in Fault if fault not in {*MISHAPS, *MOVES, *RIVALS, *WAKES, Fault.BACKUP, Fault.GROW})


class LongSchedules(RuleBasedStateMachine):
    """Strikes fall on the next few points; what does not apply at such a point is passed over."""

    subject: Subject = load()

    @initialize(sinks=st.sampled_from(STARTS), patience=st.integers(0, 3))
    def start(self, sinks: tuple[SinkKind, ...], patience: int) -> None:
        self.world = World(sinks, {}, self.subject, patience)

    @rule(steps=st.integers(1, 15))
    def goes_on(self, steps: int) -> None:
        with in_words_of(SPARK_FLOW):
            for _ in range(steps):
                self.world.advance()

    @rule(data=st.data())
    def strike(self, data: st.DataObject) -> None:
        step = self.world.awake.next if self.world.awake else None
        name = type(step).__name__
        points = {1: f"before:{name}", 2: f"after:{name}"} if step else {}
        can = [(ahead, f) for ahead, point in points.items() for f in STRIKES if applies(f, point, self.world.kinds)]
        if can:
            ahead, fault = data.draw(st.sampled_from(can))
            self.world.plan.setdefault(len(self.world.steps) + ahead, fault)
        self.goes_on(1)

    @precondition(lambda self: self.world.asleep)
    @rule(fault=st.sampled_from(WAKES))
    def something_wakes(self, fault: Fault) -> None:
        self.world.plan.setdefault(len(self.world.steps) + 1, fault)
        self.goes_on(1)

    @rule(steps=st.integers(1, 15))
    def the_topic_grows(self, steps: int) -> None:
        self.world.plan.setdefault(len(self.world.steps) + 1, Fault.GROW)
        self.goes_on(steps)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        run = judge(self.world)
        plan = SimulationPlan(self.world.kinds, tuple(sorted(self.world.plan.items())), self.world.patience)
        if run.violations:
            note(f"again: onefold prove --replay '{plan.to_json()}'")
        assert run.violations == []
        STRUCK.update(run.struck)


TestLongSchedules: Any = pytest.mark.slow(LongSchedules.TestCase)
TestLongSchedules.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS)


def test_it_struck_with_everything_that_it_has() -> None:
    """After the machine above, in the same process: a strike that never falls would say nothing."""
    if STRUCK:
        assert {fault for fault, _ in STRUCK} >= {*STRIKES, *WAKES, Fault.GROW}

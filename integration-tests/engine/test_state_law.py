"""The law of state: one program gives the same answers on every backend and on Spark, killed or not."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from harness.state_law.programs import SHARED, Program, answers, programs
from harness.state_law.worlds import BACKENDS, Engine, Model, OnSpark
from hypothesis import HealthCheck, given, settings

RUN = settings(deadline=None, suppress_health_check=list(HealthCheck))


def check(program: Program) -> None:
    schemas, steps = program
    expected = answers(Model(), steps)
    for name, make in BACKENDS.items():
        with tempfile.TemporaryDirectory() as folder, closing(Engine(make, Path(folder), schemas)) as world:
            assert answers(world, steps) == expected, name
    keyed = [(step, answer) for step, answer in zip(steps, expected, strict=True) if step[0] not in SHARED]
    assert answers(OnSpark(schemas), [step for step, _ in keyed]) == [answer for _, answer in keyed]


@given(programs(16))
@settings(RUN, max_examples=25)
def test_a_program_has_the_same_answers_on_every_backend_and_on_spark(program: Program) -> None:
    check(program)


@pytest.mark.soak
@given(programs(60))
@settings(RUN, max_examples=1500)
def test_many_long_programs_have_the_same_answers(program: Program) -> None:
    check(program)

"""Calls in processes of their own: killed exactly where they should be, and nobody else is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onefold.core.testing.conformance import call_processes
from onefold.core.testing.conformance.call_processes import Point, Processes, When


@dataclass(frozen=True)
class Steps:
    """Leaves a line in a file at each of its steps."""

    path: Path

    def ready(self) -> Callable[[], int]:
        return self.act

    def act(self) -> int:
        with self.path.open("a", buffering=1) as file:
            file.write("first\n")
            file.write("second\n")
        return os.getpid()


@dataclass(frozen=True)
class Fails:
    def ready(self) -> Callable[[], None]:
        def fail() -> None:
            raise ValueError("as it should")

        return fail


@dataclass(frozen=True)
class Sleeps:
    def ready(self) -> Callable[[], None]:
        return lambda: time.sleep(60)


@pytest.fixture(scope="module")
def children() -> Iterator[Processes]:
    with Processes((__name__,)) as children:
        yield children


def test_a_call_runs_in_a_process_that_is_gone_afterwards(children: Processes, tmp_path: Path) -> None:
    outcome = children.run(Steps(tmp_path / "steps"))
    assert outcome.answer != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(outcome.answer, 0)
    assert (outcome.struck, outcome.steps > 3) == ("", True)


def test_every_step_is_a_place_to_die_and_no_further_step_is_taken(children: Processes, tmp_path: Path) -> None:
    steps = children.run(Steps(tmp_path / "calm")).steps
    done = []
    for step in range(1, steps + 1):
        path = tmp_path / str(step)
        outcome = children.run(Steps(path), Point(When.STEP, step))
        assert outcome.struck and outcome.answer is None
        done.append(path.read_text().count("\n") if path.exists() else 0)
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 2)
    assert 1 in done


def test_before_and_after_a_call_are_places_too(children: Processes, tmp_path: Path) -> None:
    path = tmp_path / "steps"
    assert children.run(Steps(path), Point(When.BEFORE)).struck == "before the call"
    assert not path.exists()
    after = children.run(Steps(path), Point(When.AFTER))
    assert (after.struck, after.answer is None) == ("", False)


def test_a_timer_strikes_inside_a_system_call(children: Processes) -> None:
    begun_s = time.monotonic()
    assert children.run(Sleeps(), Point(When.MOMENT, 0.05)).struck == "in the middle, by the timer"
    assert time.monotonic() - begun_s < 30


def test_an_error_comes_back_as_it_was(children: Processes) -> None:
    with pytest.raises(ValueError, match="as it should"):
        children.run(Fails()).result()


def test_a_call_that_does_not_end_is_killed_and_the_next_one_runs(
    children: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(call_processes, "CALL_SECONDS_MAX", 0.1)
    with pytest.raises(TimeoutError, match="Sleeps did not end"):
        children.run(Sleeps())
    monkeypatch.undo()
    assert children.run(Steps(tmp_path / "steps")).answer

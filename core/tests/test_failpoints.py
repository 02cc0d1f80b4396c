from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from onefold.core import failpoints
from onefold.core.failpoints import RELEASED, arm, failpoint


def test_a_process_is_held_at_the_pass_that_was_named_and_once_released_nobody_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_FAILPOINT_DIR", str(tmp_path))
    monkeypatch.setattr(failpoints, "_passes_left", {"before:prepare": 2})
    failpoint("before:prepare")
    failpoint("after:prepare")
    assert not list(tmp_path.iterdir())
    held = threading.Thread(target=failpoint, args=("before:prepare",), name="first", daemon=True)
    held.start()
    deadline_s = time.monotonic() + 10
    while not list(tmp_path.glob("before-prepare.*.first")):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert held.is_alive()
    (tmp_path / RELEASED).touch()
    held.join(10)
    assert not held.is_alive()
    monkeypatch.setattr(failpoints, "_passes_left", {"before:prepare": 1})  # as in a process that comes there later
    failpoint("before:prepare")
    assert [path.name for path in tmp_path.iterdir()] == [RELEASED]


def test_places_that_are_armed_in_mid_life_take_the_place_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []
    monkeypatch.setattr(failpoints, "_passes_left", {"before:prepare": 1})
    monkeypatch.setattr(failpoints, "_hold", held.append)
    arm("after:prepare#2,after:Decide")
    for name in ("before:prepare", "after:prepare", "after:Decide"):
        failpoint(name)
    assert held == ["after:prepare", "after:Decide"]
    arm("")
    failpoint("after:Decide")
    assert len(held) == 2

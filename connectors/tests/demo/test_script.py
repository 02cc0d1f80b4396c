"""What the demo does to the pipeline, before it does it."""

from __future__ import annotations

import pytest

from onefold.trials.demo.script import Kill, KillPostgres, KillSomewhere, Zombie, failpoints, script


@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
@pytest.mark.parametrize("kills", [1, 12, 40])
def test_every_named_place_is_struck_whatever_the_number_of_kills(delivery: str, kills: int) -> None:
    acts = script(kills, delivery, seed=1, exactly_once=True)
    struck = {act.failpoint for act in acts if isinstance(act, Kill)}
    assert {"before:RunWriters", "writers:prepared", "before:Decide#2", "after:Decide#2"} <= struck
    assert {"before:Commit#2", "before:Commit", "before:Complete", "before:RunWriters#2"} <= struck
    assert ("postgres.commit_prepared#1" in struck) == (delivery == "two_phase")
    assert sum(isinstance(act, Kill | KillSomewhere) for act in acts) >= kills
    assert any(isinstance(act, KillSomewhere) for act in acts)
    assert any(isinstance(act, KillPostgres) for act in acts)
    assert isinstance(acts[-1], Zombie)


def test_a_recovery_is_struck_right_after_the_kill_it_recovers_from() -> None:
    acts = script(20, "two_phase", seed=5, exactly_once=True)
    places = [act.failpoint for act in acts if isinstance(act, Kill)]
    decided = places.index("before:Commit#2")
    assert places[decided : decided + 3] == ["before:Commit#2", "before:Commit", "before:Complete"]


def test_the_same_seed_gives_the_same_script() -> None:
    assert script(20, "staged", seed=5, exactly_once=True) == script(20, "staged", seed=5, exactly_once=True)
    assert script(20, "staged", seed=5, exactly_once=True) != script(20, "staged", seed=6, exactly_once=True)


def test_without_protection_no_protocol_place_is_named() -> None:
    acts = script(4, "two_phase", seed=1, exactly_once=False)
    assert [act.failpoint for act in acts if isinstance(act, Kill)] == ["writers:prepared", "writers:prepared#2"]
    assert sum(isinstance(act, KillSomewhere) for act in acts) == 2


def test_each_process_is_started_for_the_place_it_is_struck_at() -> None:
    acts = [Kill("a", "before:Decide"), KillSomewhere(1.0), KillPostgres("b", "before:Commit"), Zombie("after:Decide")]
    assert failpoints(acts) == ["before:Decide", None, "before:Commit", "after:Decide", None]

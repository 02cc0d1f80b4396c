"""What happens to the pipeline, in which order: the named places, and the random moments between."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL when the process stands at a failpoint (`name#pass`)."""

    where: str
    failpoint: str


@dataclass(frozen=True, slots=True)
class KillSomewhere:
    """SIGKILL a while after the process has finished its first batch."""

    after_s: float


@dataclass(frozen=True, slots=True)
class KillPostgres:
    """SIGKILL for Postgres while the pipeline stands at a failpoint; Postgres comes back, the pipeline goes on."""

    where: str
    failpoint: str


@dataclass(frozen=True, slots=True)
class Zombie:
    """Pause a process, start its successor, wake it: it must find itself fenced."""

    failpoint: str


Act = Kill | KillSomewhere | KillPostgres | Zombie


def failpoints(acts: Iterable[Act]) -> list[str | None]:
    """Of each process that the acts start, in order: where it will hold still."""
    found: list[str | None] = []
    for act in acts:
        match act:
            case Kill(_, failpoint) | KillPostgres(_, failpoint):
                found.append(failpoint)
            case KillSomewhere():
                found.append(None)
            case Zombie(failpoint):
                found += [failpoint, None]
    return found


def script(kills: int, delivery: str, seed: int, exactly_once: bool) -> list[Act]:
    """At least `kills` kills; every named place first, random moments for the rest."""
    rng = random.Random(seed)
    if not exactly_once:
        named: list[Act] = [Kill("some tasks written", "writers:prepared"), Kill("again", "writers:prepared#2")]
        return named + [KillSomewhere(rng.uniform(0.1, 3.0)) for _ in range(kills - len(named))]
    halfway = (
        Kill("half committed", "postgres.commit_prepared#1")
        if delivery == "two_phase"
        else Kill("in the middle of the merge", "staged.merge#2")
    )
    prepared = {"two_phase": "prepared", "staged": "staged", "direct": "at the driver"}[delivery]
    acts: list[Act] = [
        Kill("in the very first batch, before any writer ran", "before:RunWriters"),
        Kill(f"in the very first batch, some tasks {prepared}", "writers:prepared"),
        Kill(f"all tasks {prepared}, nothing decided", "before:Decide#2"),
        Kill("decided, the answer lost", "after:Decide#2"),
        Kill("decided, nothing committed", "before:Commit#2"),
        Kill("in recovery from that, before it committed", "before:Commit"),
        Kill("in recovery again, committed, not completed", "before:Complete"),
        halfway,
        Kill("committed, not completed, and the next one begun", "before:RunWriters#2"),
        KillPostgres(f"all tasks {prepared}, nothing decided", "before:Decide#2"),
    ]
    named_kills = sum(isinstance(act, Kill) for act in acts)
    acts += [KillSomewhere(rng.uniform(0.1, 3.0)) for _ in range(max(kills - named_kills, 1))]
    rng_order = acts[7:]
    rng.shuffle(rng_order)  # what must happen in order is in front
    return [*acts[:7], *rng_order, Zombie("before:Decide")]

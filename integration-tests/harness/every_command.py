"""docs/commands-and-runtimes.md: every command, what comes of it on each runtime, and what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["OFFLINE", "RUN", "RUNNING", "STOPPED", "Typed", "page"]

WORKS = ""


@dataclass(frozen=True)
class Typed:
    """A command, and what comes of it: an error's code, "says" one that is a finding, or "" where it works. `unstarted`
    is before the pipeline's first start, and `away` while its source's server is down; None where that is nothing to
    ask. `waits_for` is what would have a runtime do it, too."""

    arguments: str
    engine: str = WORKS
    spark: str = WORKS
    unstarted: str | None = WORKS
    away: str | None = WORKS
    waits_for: str = ""

    def wanted(self, runtime: str, state: str) -> str | None:
        """What comes of it in that state of the pipeline: "unstarted", "started" or "away"."""
        now: str = self.engine if runtime == "engine" else self.spark
        other = {"unstarted": self.unstarted, "away": self.away}.get(state, now)
        if state == "away" or self.engine != self.spark:  # one that this runtime refuses, it refuses in any state
            return now or other
        return other


UNKNOWN, UNREACHABLE = "pipeline-unknown", "kafka-unreachable"
FLOWS = "savepoints of flows"

OFFLINE = (Typed("new another.toml"), Typed("schema"), Typed("validate orders.toml totals.toml"))

RUN = Typed("run orders.toml totals.toml", unstarted=WORKS, away=f"says {UNREACHABLE}")

RUNNING = (
    Typed("status", unstarted=None),
    Typed("epochs orders", unstarted=None),
    Typed("page", unstarted=None),
    Typed("pause orders totals", unstarted=None),
    Typed("resume orders totals", unstarted=None),
    Typed("restart orders totals --within 60", unstarted=None, away="pipeline-not-there-yet"),
    Typed("stop orders totals --within 60", unstarted=None),
)

STOPPED = (
    Typed("plan orders.toml", away=f"says {UNREACHABLE}"),
    Typed("doctor orders.toml", away=f"says {UNREACHABLE}"),
    Typed("preview orders.toml --limit 3", away=UNREACHABLE),
    Typed("preview totals.toml --limit 3", away=UNREACHABLE),
    Typed("positions orders.toml", unstarted=UNKNOWN),
    Typed("savepoint create orders.toml --name s", engine="savepoints-on-spark", unstarted=UNKNOWN, waits_for=FLOWS),
    Typed("savepoint list orders.toml", engine="savepoints-on-spark", waits_for=FLOWS),
    Typed(
        "savepoint restore orders.toml s --yes",
        engine="savepoints-on-spark",
        unstarted="savepoint-missing",
        waits_for=FLOWS,
    ),
    Typed("verify orders.toml --key id", unstarted=UNKNOWN, away=UNREACHABLE),
    Typed(
        "verify totals.toml",
        engine="verify-unsupported",
        spark="verify-unsupported",
        unstarted=UNKNOWN,
        waits_for="verify of flows with state",
    ),
    Typed("positions orders.toml --set latest --yes", unstarted=UNKNOWN, away=UNREACHABLE),
    Typed(
        "positions totals.toml --set latest --yes",
        engine="state-not-movable",
        spark="state-not-movable",
        unstarted=UNKNOWN,
        waits_for=FLOWS,
    ),
    Typed("sinks orders.toml", unstarted=UNKNOWN),
    Typed("sinks more.toml --apply --yes", unstarted=UNKNOWN),
    Typed("sinks orders.toml --apply --yes", unstarted=UNKNOWN),
    Typed("letters orders.toml"),
    Typed("letters orders.toml --by-reason"),
    Typed("letters orders.toml --send-all --yes", away="letter-unanswered"),
    Typed("txn list orders.toml"),
    Typed("txn resolve orders.toml --yes"),
    Typed("txn resolve orders.toml --take-over --yes", unstarted=UNKNOWN),
    Typed("txn prune orders.toml --yes"),
    Typed("recover orders.toml --yes", unstarted=UNKNOWN),
    Typed("recover totals.toml --yes", unstarted=UNKNOWN),
    Typed(
        "recover orders.toml --accept-damage 1 --yes",
        engine="epoch-not-damaged",
        spark="epoch-not-damaged",
        unstarted=UNKNOWN,
    ),
    Typed("recover orders.toml --accept-targets --yes", unstarted=UNKNOWN),
    Typed("recover orders.toml --adopt-ledger --yes"),
    Typed("reset orders.toml --rows --yes", unstarted="reset-target-missing"),
    Typed("reset totals.toml --yes"),
    Typed("positions orders.toml --from-spark query --yes", away=UNREACHABLE),
)


def page(commands: Iterable[Typed]) -> str:
    """The table: a line for each command."""
    lines = [
        "| Command | On the engine | On Spark | Before its first start | While Kafka is away | Waits for |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(_line, commands)])


def _line(command: Typed) -> str:
    started = [_cell(of) for of in (command.engine, command.spark)]
    return f"| `onefold {command.arguments}` | {' | '.join([*started, *_others(command)])} | {command.waits_for} |"


def _others(command: Typed) -> Iterator[str]:
    for state in ("unstarted", "away"):
        found = dict.fromkeys(command.wanted(runtime, state) for runtime in ("engine", "spark"))
        yield _cell(next(iter(found))) if len(found) == 1 else " / ".join(map(_cell, found))


def _cell(of: str | None) -> str:
    if of is None:
        return ""
    if of.startswith("says "):
        return f"works, and says `{of.removeprefix('says ')}`"
    return f"`{of}`" if of else "works"

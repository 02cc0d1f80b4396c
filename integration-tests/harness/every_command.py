"""docs/commands-and-runtimes.md: every command, what comes of it on each runtime, and what it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["OFFLINE", "RUN", "RUNNING", "RUNTIMES", "STOPPED", "Typed", "page"]

WORKS, SAME = "", "as started"
RUNTIMES = ("engine", "spark")

# An error's code, "says" that of a finding, or "" where the command works; None where that is nothing to ask. Two of
# them, in the order of RUNTIMES, where these differ.
Outcome: TypeAlias = str | None
Outcomes: TypeAlias = Outcome | tuple[Outcome, Outcome]


@dataclass(frozen=True)
class Typed:
    """A command, and what comes of it: once the pipeline was started, before its first start, and while its source's
    server is away. `waits_for` is what would have it work where it is refused."""

    arguments: str
    started: Outcomes = WORKS
    unstarted: Outcomes = WORKS
    away: Outcomes = SAME
    waits_for: str = ""

    def wanted(self, runtime: str, state: str) -> Outcome:
        """What comes of it in a state: "started", "unstarted" or "away"."""
        found: Outcomes = getattr(self, state)
        if isinstance(found, tuple):
            return found[RUNTIMES.index(runtime)]
        return self.wanted(runtime, "started") if found == SAME else found


UNKNOWN, UNREACHABLE = "pipeline-unknown", "kafka-unreachable"
NOT_ASKED = ("state-not-running", "state-on-spark")

OFFLINE = (Typed("new another.toml"), Typed("schema"), Typed("validate orders.toml totals.toml"))

RUN = Typed("run orders.toml totals.toml", unstarted=WORKS, away=f"says {UNREACHABLE}")

RUNNING = (
    Typed("status", unstarted=None),
    Typed("epochs orders", unstarted=None),
    Typed("page", unstarted=None),
    Typed("pause orders totals", unstarted=None),
    Typed("resume orders totals", unstarted=None),
    Typed("restart orders totals --within 60", unstarted=None, away=(WORKS, "pipeline-not-there-yet")),
    Typed("stop orders totals --within 120", unstarted=None),
)

STOPPED = (
    Typed("plan orders.toml", away=f"says {UNREACHABLE}"),
    Typed("doctor orders.toml", away=f"says {UNREACHABLE}"),
    Typed("preview orders.toml --limit 3", away=UNREACHABLE),
    Typed("preview totals.toml --limit 3", away=UNREACHABLE),
    Typed("positions orders.toml", unstarted=UNKNOWN),
    Typed(
        "savepoint create orders.toml --name s",
        started=WORKS,
        unstarted=UNKNOWN,
    ),
    Typed(
        "savepoint new totals.toml --name s --state totals/aggregates=none.parquet",
        started="option-value",
        unstarted="option-value",
        away="option-value",
    ),
    Typed("savepoint list orders.toml", started=WORKS, unstarted=WORKS),
    Typed("savepoint show orders.toml s", unstarted="savepoint-missing"),
    Typed("savepoint diff orders.toml s s", unstarted="savepoint-missing"),
    Typed(
        "savepoint restore orders.toml s --yes",
        started=WORKS,
        unstarted="savepoint-missing",
    ),
    Typed("savepoint delete orders.toml s --yes", unstarted="savepoint-missing"),
    Typed("state get totals.toml totals 1 --within 0", started=NOT_ASKED, unstarted=NOT_ASKED),
    Typed("state get totals.toml totals 1 --offline", unstarted="state-not-kept"),
    Typed("verify orders.toml --key id", unstarted=UNKNOWN, away=UNREACHABLE),
    Typed(
        "verify totals.toml",
        started="verify-unsupported",
        unstarted=UNKNOWN,
        waits_for="verify of flows with state",
    ),
    Typed("positions orders.toml --set latest --yes", unstarted=UNKNOWN, away=UNREACHABLE),
    Typed(
        "positions totals.toml --set latest --yes",
        started="state-not-movable",
        unstarted=UNKNOWN,
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
        started="epoch-not-damaged",
        unstarted=UNKNOWN,
    ),
    Typed("recover orders.toml --accept-targets --yes", unstarted=UNKNOWN),
    Typed("recover orders.toml --adopt-ledger --yes"),
    Typed("reset orders.toml --rows --yes", unstarted="reset-target-missing"),
    Typed("reset totals.toml --yes"),
    Typed("positions orders.toml --from-spark query --yes", away=UNREACHABLE),
    Typed("positions totals.toml --from-group old --yes", away=UNREACHABLE),
)


def page(commands: Iterable[Typed]) -> str:
    """The table: a line for each command."""
    lines = [
        "| Command | On the engine | On Spark | Before its first start | While Kafka is away | Waits for |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(_line, commands)])


def _line(command: Typed) -> str:
    engine, spark = (_cell(command.wanted(runtime, "started")) for runtime in RUNTIMES)
    others = [_both(command, state) for state in ("unstarted", "away")]
    return f"| {' | '.join([f'`onefold {command.arguments}`', engine, spark, *others, command.waits_for])} |"


def _both(command: Typed, state: str) -> str:
    engine, spark = (_cell(command.wanted(runtime, state)) for runtime in RUNTIMES)
    return engine if engine == spark else f"engine: {engine}; Spark: {spark}"


def _cell(of: Outcome) -> str:
    if of is None:
        return ""
    if of.startswith("says "):
        return f"works, and says `{of.removeprefix('says ')}`"
    return f"`{of}`" if of else "works"

"""`python -m bench.compare`: the mechanisms of fault tolerance on one flow, under the same kills. With `--page` the
figures go into docs/mechanisms.md. Exit status 1: one that promises exactly once has lost or doubled something; or ack
has doubled nothing through the kills, and so the kills prove nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.compare.page import Found, written
from bench.compare.rounds import Kills, fast, lived, slowed
from bench.narrator import Say, narrated
from bench.report import Load
from bench.world import open_world

EXACTLY, AT_LEAST = "exactly once", "at least once"
PAGE, IMAGES = Path("docs/mechanisms.md"), Path("docs/images")
CONTESTANTS: Mapping[str, tuple[str, dict[str, Any] | None]] = {
    "barriers": (EXACTLY, {}),
    "barriers, unaligned": (EXACTLY, {"alignment": "unaligned"}),
    "barriers, at least once": (AT_LEAST, {"alignment": "at_least_once"}),
    "microbatch": (EXACTLY, {"mechanism": "microbatch"}),
    "transaction": (EXACTLY, {"mechanism": "transaction"}),
    "ack": (AT_LEAST, {"mechanism": "ack"}),
    "Spark": (EXACTLY, None),
}
"""What each promises, and the settings of its run; none for the flow on Spark."""
ACK = "ack"
ROUNDS = ("fast", "steady", "kills", "slow")
KILLS = Kills(worker_every_s=7, driver_every_s=20)


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load, found = Load(), {name: Found(CONTESTANTS[name][0]) for name in arguments.only}

    with open_world(arguments.directory, say) as world:
        for name in arguments.only:
            settings, of = CONTESTANTS[name][1], found[name]
            if "fast" in arguments.rounds:
                of = replace(of, fast=fast(world, settings, arguments.rows))
                say(f"{name}: {of.fast}")
            if "steady" in arguments.rounds:
                steady = lived(world, settings, arguments.rate, arguments.seconds, None)
                of = replace(of, steady=steady)
                say(f"{name}: steady, p50 {steady.latency_ms(0.5):.0f} ms; {steady.audit}")
            if "kills" in arguments.rounds:
                killed = lived(world, settings, arguments.rate, arguments.seconds, KILLS)
                of = replace(of, killed=killed)
                say(f"{name}: {len(killed.killed_s)} kills; {killed.audit}")
            found[name] = of
        slow = slowed(world) if "slow" in arguments.rounds else {}

    about = (
        f"{date.today().isoformat()}, {load}: {arguments.rows:,} records as fast as they go; {arguments.rate:,} records"
        f" a second for {arguments.seconds} s, and the same with a worker killed every {KILLS.worker_every_s:g} s and"
        f" the driver every {KILLS.driver_every_s:g} s. Bytes are what the processes and Postgres' log write."
    )
    console.print(about, highlight=False)
    if arguments.page:
        for path in written(PAGE, IMAGES, about, found, slow):
            console.print(f"wrote {path}", highlight=False)
    wrong = [*broken(found)]
    for line in wrong:
        console.print(f"[red]{line}[/]", highlight=False)
    return 1 if wrong else 0


def broken(found: Mapping[str, Found]) -> list[str]:
    """What was promised and is not so, and what the kills did not show."""
    told = []
    for name, of in found.items():
        audits = {"fast": of.fast, "steady": of.steady, "kills": of.killed}
        for which, result in audits.items():
            if result is not None and of.guarantee == EXACTLY and not result.audit.is_exact:
                told.append(f"{name} promises {EXACTLY}, and of round {which!r} there is {result.audit}")
            elif result is not None and result.audit.lost:
                told.append(f"{name} has lost {result.audit.lost:,} records in round {which!r}")
    killed = found[ACK].killed if ACK in found else None
    if killed is not None and not killed.audit.doubled:
        told.append(f"{ACK} has doubled nothing through {len(killed.killed_s)} kills: they prove nothing")
    return told


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="records, as fast as they go (default: %(default)s)")
    add("--rate", type=int, default=5_000, help="records a second (default: %(default)s)")
    add("--seconds", type=int, default=60, help="at that rate (default: %(default)s)")
    add("--only", nargs="+", choices=CONTESTANTS, default=[*CONTESTANTS], metavar="NAME", help="default: all")
    add("--rounds", nargs="+", choices=ROUNDS, default=ROUNDS, metavar="ROUND", help=f"of {', '.join(ROUNDS)}")
    add("--page", action="store_true", help=f"put the figures into {PAGE}")
    add("--directory", type=Path, default=Path(".onefold/bench"), help="servers and scratch (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))

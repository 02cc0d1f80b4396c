"""`python -m bench`: throughput and time per batch beside other ways, in one run. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from rich.console import Console

from bench.arguments import parser_of
from bench.contestants import CONTESTANTS, Contestant, Run
from bench.jars import NotAvailable
from bench.micro import MICRO, BatchTimes, run_micro
from bench.narrator import Say, narrated
from bench.report import Load, print_micro, print_ratios, print_throughput, save
from bench.world import World, open_world
from onefold.sources.kafka.fetching.compiled_fetch import described

_NAMES = [contestant.name for contestant in CONTESTANTS]


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    chosen = [c for c in CONTESTANTS if c.name in arguments.only]
    runs: list[Run] = []
    times: list[BatchTimes] = []
    absent: dict[str, str] = {}
    load = Load()

    try:
        with open_world(arguments.directory, say) as world:
            say(described())
            if not arguments.micro_only:
                _throughput(world, chosen, arguments, runs, absent)
            if not arguments.no_micro:
                micro = ["noop", *(name for name in MICRO if name in arguments.only)]
                for _ in range(arguments.repeat):
                    times += run_micro(world, micro, arguments.micro_rows, arguments.micro_batches)
    except KeyboardInterrupt:
        console.print("interrupted: the servers are stopped")
        return 130
    except RuntimeError as error:
        console.print(f"[red]failed:[/] {error}")
        return 1
    if runs:
        print_throughput(console, runs, absent)
        print_ratios(console, runs)
    if times:
        print_micro(console, times, arguments.micro_rows)
    console.print(str(load))
    if arguments.json is not None:
        save(arguments.json, runs, times, absent, load)
    return 0


def _throughput(
    world: World, chosen: list[Contestant], arguments: argparse.Namespace, runs: list[Run], absent: dict[str, str]
) -> None:
    """A warm-up of each contestant, then all of them in turn, `--repeat` times; fills `runs` and `absent`."""
    topic, small = world.topic(arguments.rows), world.topic(arguments.warm_up_rows)
    for contestant in chosen:
        world.say(f"warming up {contestant.name}")
        try:
            contestant.run(world, small, arguments.warm_up_rows, arguments.warm_up_rows // 2)
        except NotAvailable as error:
            absent[contestant.name] = str(error)
    for turn in range(arguments.repeat):
        for rows_per_batch in dict.fromkeys((None, arguments.rows_per_batch or None)):
            for contestant in chosen:
                if contestant.name in absent:
                    continue
                run = contestant.run(world, topic, arguments.rows, rows_per_batch)
                runs.append(run)
                batching = "one batch" if rows_per_batch is None else f"batches of {rows_per_batch:,}"
                world.say(f"{turn + 1}/{arguments.repeat} {batching}: {contestant.name} {run.rows_per_s:,.0f} rows/s")


def _arguments() -> argparse.Namespace:
    parser = parser_of("bench", __doc__, rows=4_000_000, of="events in the topic")
    add = parser.add_argument
    add("--only", nargs="+", choices=_NAMES, default=_NAMES, metavar="NAME", help=f"of {', '.join(_NAMES)}")
    add("--rows-per-batch", type=int, default=500_000, help="of the runs in batches; 0: only in one (%(default)s)")
    add("--warm-up-rows", type=int, default=200_000, help="of each contestant's first run, which does not count")
    add("--micro-rows", type=int, default=1_000, help="rows of a micro-batch (default: %(default)s)")
    add("--micro-batches", type=int, default=40, help="micro-batches of each run (default: %(default)s)")
    add("--no-micro", action="store_true", help="throughput only")
    add("--micro-only", action="store_true", help="micro-batches only")
    add("--json", type=Path, metavar="FILE", help="write every run and ratio there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))

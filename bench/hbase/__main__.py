"""`python -m bench.hbase`: rows into HBase, beside bare happybase, in one run. See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bench.arguments import parser_of
from bench.hbase.contestants import CONTESTANTS
from bench.hbase.place import Place, Spent
from bench.hbase.report import print_all, said, save
from bench.narrator import Say, narrated
from bench.report import Load
from onefold.local import HBaseServer


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    load = Load()
    results: dict[str, list[Spent]] = {}

    arguments.directory.mkdir(parents=True, exist_ok=True)
    try:
        with HBaseServer(arguments.directory, thrift1=True, heap_mb=arguments.heap_mb) as server:
            _run(Place(arguments.directory, server, arguments.rows, arguments.one_by_one, say), arguments, results)
    except KeyboardInterrupt:
        console.print("interrupted: the servers are stopped")
        return 130
    print_all(console, results)
    console.print(str(load))
    if arguments.json is not None:
        save(arguments.json, results, load)
    return 0


def _run(place: Place, arguments: argparse.Namespace, results: dict[str, list[Spent]]) -> None:
    """A warm-up of each contestant, then all of them in turn, `--repeat` times; fills `results`."""
    chosen = [one for one in CONTESTANTS if not arguments.only or any(part in one.name for part in arguments.only)]
    for turn in range(arguments.repeat + 1):
        for contestant in chosen:
            spent = contestant.run(place)
            what = "warm-up" if turn == 0 else f"{turn}/{arguments.repeat}"
            place.say(f"{what}: {said(contestant.name, spent)}")
            if turn > 0:
                results.setdefault(contestant.name, []).append(spent)


def _arguments() -> argparse.Namespace:
    parser = parser_of("bench.hbase", __doc__, rows=200_000, of="rows or changes written", by_parts=True)
    add = parser.add_argument
    add(
        "--one-by-one",
        type=int,
        default=2_000,
        help="messages one by one; incremental gets ten times as many (default: %(default)s)",
    )
    add("--heap-mb", type=int, default=1024, help="of HBase; half of it, each Thrift server (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))

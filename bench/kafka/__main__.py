"""`python -m bench.kafka`: Kafka into columns and rows into Kafka, beside other ways, in one run. See
docs/benchmarks.md."""

from __future__ import annotations

import argparse
import logging
import sys

from rich.console import Console

from bench.arguments import parser_of
from bench.jars import NotAvailable
from bench.kafka.contestants import contestants
from bench.kafka.place import Place
from bench.kafka.report import Result, print_all, save
from bench.narrator import Say, narrated
from bench.report import Load
from onefold.local import KafkaServer


def main(console: Console, say: Say) -> int:
    arguments = _arguments()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    load = Load()
    results: list[Result] = []
    absent: dict[str, str] = {}

    arguments.directory.mkdir(parents=True, exist_ok=True)
    try:
        with KafkaServer(arguments.directory) as server:
            place = Place(arguments.directory, server, arguments.rows, say)
            try:
                _run(place, arguments, results, absent)
            finally:
                place.close()
    except KeyboardInterrupt:
        console.print("interrupted: the server is stopped")
        return 130
    print_all(console, results, arguments.rows)
    for name, reason in absent.items():
        console.print(f"{name}: not available: {reason}")
    console.print(str(load))
    if arguments.json is not None:
        save(arguments.json, results, arguments.rows, load)
    return 0


def _run(place: Place, arguments: argparse.Namespace, results: list[Result], absent: dict[str, str]) -> None:
    """A warm-up of each contestant, then all of them in turn, `--repeat` times; fills `results` and `absent`."""
    chosen = [
        one
        for one in contestants(arguments.rows_per_epoch)
        if (not arguments.only or any(part in one.name for part in arguments.only))
        and (not arguments.cases or one.case in arguments.cases)
    ]
    for turn in range(arguments.repeat + 1):
        for contestant in chosen:
            if contestant.name in absent:
                continue
            try:
                result = Result(contestant.name, contestant.case, place.rows, contestant.run(place))
            except NotAvailable as error:
                absent[contestant.name] = str(error)
                continue
            what = "warm-up" if turn == 0 else f"{turn}/{arguments.repeat}"
            place.say(f"{what}: {result}")
            if turn > 0:
                results.append(result)


def _arguments() -> argparse.Namespace:
    parser = parser_of("bench.kafka", __doc__, rows=1_000_000, of="records read, rows written", by_parts=True)
    add = parser.add_argument
    add("--rows-per-epoch", type=int, default=50_000, help="of the sink's runs in epochs (default: %(default)s)")
    add("--cases", nargs="+", metavar="CASE", help="raw, JSON, Avro, 'Avro, registry', 'one epoch', 'small epochs'")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(narrated(main))

"""`python -m bench.alignment`: how long an epoch takes behind a subtask that is slower than the others, with barriers
that are aligned and with barriers that overtake."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.engine_parts import DroppingSink
from onefold.core.protocol.epoch import Outcome
from onefold.engine.key_groups import group_of, subtask_of
from onefold.flow import Flow, StatefulProcessor
from onefold.local import KafkaServer
from onefold.sources import KafkaSource

__all__ = ["Behind", "fill", "measured"]

PARTITIONS, WORKERS, KEYS = 4, 2, 16
SLOW = {key for key in range(KEYS) if subtask_of(group_of((key,)), WORKERS)}  # of the second subtask


class Behind(StatefulProcessor):
    """Counts the records of each key; one takes `each_s`, and `times` as long in one subtask."""

    def __init__(self, each_s: float, times: float) -> None:
        self._each_s, self._times = each_s, times

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "records long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del timerValues
        (count,) = self._count.get() or (0,)
        for _ in rows:
            time.sleep(self._each_s * (self._times if key[0] in SLOW else 1))
            count += 1
        self._count.update((count,))
        yield key[0], count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.alignment", description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows-per-epoch", type=int, default=20_000)
    parser.add_argument("--each-us", type=float, default=60.0, help="that a record takes in the other subtask")
    parser.add_argument("--times", type=float, default=100.0)
    parser.add_argument("--timeout", type=float, help="seconds for which unaligned barriers are aligned at first")
    parser.add_argument("--only", nargs="+", choices=["aligned", "unaligned"], default=["aligned", "unaligned"])
    parser.add_argument("--directory", type=Path, default=Path(".onefold/bench"))
    of = parser.parse_args()
    of.directory.mkdir(parents=True, exist_ok=True)
    print(
        f"{of.epochs} epochs of {of.rows_per_epoch:,} records, {WORKERS} workers, one {of.times:g} times slower,"
        f" {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}"
    )
    with KafkaServer(of.directory) as server:
        topic = fill(server.bootstrap_servers, of.epochs * of.rows_per_epoch)
        source = KafkaSource(
            topic,
            bootstrap_servers=server.bootstrap_servers,
            format="json",
            schema="id long, key long",
            max_offsets_per_trigger=of.rows_per_epoch,
        )
        for alignment in of.only:
            took_s, flight = measured(
                source, of.directory, alignment, of.each_us / 1e6, of.times, of.epochs, of.timeout
            )
            print(
                f"{alignment:10} an epoch takes {statistics.median(took_s):6.2f} s ({min(took_s):.2f} to"
                f" {max(took_s):.2f}), {flight / 1e6:.2f} MB in flight at most"
            )
    print(f"load after {os.getloadavg()[0]:.1f}")


def measured(
    source: KafkaSource,
    directory: Path,
    alignment: str,
    each_s: float,
    times: float,
    epochs: int,
    timeout_s: float | None = None,
) -> tuple[list[float], int]:
    """Seconds that each epoch with records took, from its begin to its decision, and the most bytes in flight."""
    flow = Flow(f"behind-{alignment}")
    counted = flow.source(source.bounded(), uid="rows").key_by("key")
    counted.process(Behind(each_s, times), schema="key long, records long", uid="behind").sink(DroppingSink())
    took_s, flights, runs = list[float](), [0], list[Any]()

    def note(outcome: Outcome) -> None:
        took_s.append(time.time() - outcome.record.timestamp_ms / 1e3)
        flights.extend(each.flight_bytes for of in runs[0].operators for each in of.subtasks if each is not None)

    settings: Any = {} if alignment == "aligned" else {"alignment_timeout_s": timeout_s}
    checkpoint = directory / "checkpoints" / uuid.uuid4().hex
    flow.run(
        checkpoint=str(checkpoint),
        workers=WORKERS,
        alignment=alignment,
        on_outcome=note,
        on_opened=runs.append,
        **settings,
    )
    return took_s[:epochs], max(flights)  # what is still in flight then comes with the last one, which is aligned


def fill(servers: str, rows: int) -> str:
    """A new topic with so many records. Returns its name."""
    topic = f"behind-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50})
    for number in range(rows):
        value = json.dumps({"id": number, "key": number % KEYS}).encode()
        while True:
            try:
                producer.produce(topic, value, partition=number // KEYS % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


if __name__ == "__main__":
    main()

"""Who runs, in which order, and who is compared with whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.kafka import sink, source
from bench.kafka.place import Place, Spent

__all__ = ["GOALS", "Contestant", "contestants"]

HELPER = {"auto": "compiled fetch", "off": "messages"}


@dataclass(frozen=True)
class Contestant:
    """`run(place)` says what it took, of all rows of the place."""

    name: str
    case: str
    run: Callable[[Place], Spent]


# Ours, the peer, the case of both, and how many times its throughput ours has to reach.
GOALS = (
    *(
        (f"{where}, {helper}", "Spark's connector", form, 2.0 if (form, where) == ("JSON", "onefold_kafka") else None)
        for where in ("onefold_kafka", "task")
        for form in source.FORMATS
        for helper in HELPER.values()
    ),
    ("fetch, compiled fetch", "consume loop", "bytes", None),
    ("fetch, messages", "consume loop", "bytes", None),
    *(("writers, transactional", "writers, keyed", case, 0.9) for case in ("one epoch", "small epochs")),
    ("writers, transactional", "producer loop", "one epoch", None),
    ("writers, transactional", "producer, encoded", "one epoch", None),
    ("Spark, transactional", "Spark, keyed", "one epoch", 0.9),
    ("Spark, transactional", "Spark's sink", "one epoch", None),
)


def contestants(rows_per_epoch: int) -> list[Contestant]:
    found = [Contestant("consume loop", "bytes", source.consume)]
    found += [
        Contestant(f"fetch, {helper}", "bytes", partial(source.fetch_alone, compiled=compiled))
        for compiled, helper in HELPER.items()
    ]
    for form in source.FORMATS:
        for compiled, helper in HELPER.items():
            here, spark = partial(source.read_alone, compiled=compiled), partial(source.in_spark, compiled=compiled)
            found += [
                Contestant(f"task, {helper}", form, partial(here, form=form)),
                Contestant(f"onefold_kafka, {helper}", form, partial(spark, form=form)),
            ]
        found.append(Contestant("Spark's connector", form, partial(source.with_sparks_connector, form=form)))
    for case, rows in (("one epoch", None), ("small epochs", rows_per_epoch)):
        found += [
            Contestant(f"writers, {mode}", case, partial(sink.through_the_sink, mode=mode, rows_per_epoch=rows))
            for mode in ("transactional", "keyed")
        ]
    found.append(Contestant("producer loop", "one epoch", sink.produce))
    found.append(Contestant("producer, encoded", "one epoch", sink.produce_encoded))
    found += [
        Contestant(f"Spark, {mode}", "one epoch", partial(sink.through_the_pipeline, mode=mode))
        for mode in ("transactional", "keyed")
    ]
    found.append(Contestant("Spark's sink", "one epoch", sink.through_sparks_sink))
    return found

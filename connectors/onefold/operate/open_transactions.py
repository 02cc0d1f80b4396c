"""A pipeline's open Kafka transactions, held against the pipeline's checkpoint store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

from rich.table import Table

from onefold.cli.shown import shown
from onefold.cli.tables import COLOURS, table_console
from onefold.core import Committable, ConfigError
from onefold.core.findings import Held
from onefold.core.protocol.in_doubt import Fate, fates
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.pipeline import Pipeline
from onefold.sinks.kafka import KafkaSink

__all__ = ["ListedTransaction", "as_dict", "look", "open_of", "print_open", "transactional"]

_BECAUSE = {
    Fate.COMMIT: "its epoch was decided, and the manifest names it: start the pipeline, whose recovery commits it",
    Fate.ROLL_BACK: "its generation or its epoch is over, and no manifest names it.",
    Fate.LEAVE: "its epoch runs in the newest generation: its driver may decide it. If that is dead, start it",
    Fate.UNKNOWN: "its generation is above the store's: the pipeline names another store than the pipeline's own",
}


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """An open transaction, what should become of it, and why."""

    pipeline: str
    committable: Committable
    age_s: float
    fate: Fate
    because: str


def look(sink: KafkaSink, pipeline: str, store_url: str) -> list[ListedTransaction]:
    """Raises ConfigError where that store knows no such pipeline. Changes nothing."""
    listed: dict[Committable, Held] = {held.committable: held for held in sink.held(pipeline)}
    with closing(CheckpointStore(store_url, lock_timeout_s=10)) as store:
        if store.look() is None or (facts := store.facts(pipeline)).generation == 0:
            raise ConfigError(
                "pipeline-unknown",
                f"the checkpoint store at {store.database} knows no pipeline {pipeline!r}: correct the pipeline's"
                " store or name",
            )
    found = []
    for committable, fate in fates(facts, listed).items():
        held = listed[committable]
        because = f"{_BECAUSE[fate]} {held.costs}" if fate is Fate.ROLL_BACK else _BECAUSE[fate]
        found.append(ListedTransaction(pipeline, committable, held.age_s, fate, because))
    return found


def open_of(pipeline: Pipeline) -> list[ListedTransaction]:
    """Those of all Kafka sinks of a pipeline that have transactions."""
    return [one for sink in transactional(pipeline) for one in look(sink, pipeline.name, pipeline.store_url)]


def transactional(pipeline: Pipeline) -> list[KafkaSink]:
    """The Kafka sinks of a pipeline that have transactions."""
    return [s for s in pipeline.everyone if isinstance(s, KafkaSink) and s.settings.delivery == "transactional"]


def print_open(found: Sequence[ListedTransaction]) -> None:
    table = Table("should become", "sink", "generation", "epoch", "age", box=None, pad_edge=False)
    table.add_column("transaction", overflow="fold")
    table.add_column("because", overflow="fold")
    for one in found:
        c = one.committable
        numbers = (str(c.generation), str(c.epoch), str(timedelta(seconds=int(one.age_s))))
        fate = f"[{COLOURS[one.fate]}]{one.fate.value}[/]"
        table.add_row(fate, shown(c.sink), *numbers, shown(c.handle), shown(one.because))
    table_console().print(table if found else "no open transactions of Kafka sinks")


def as_dict(one: ListedTransaction) -> dict[str, object]:
    return {
        "transaction": one.committable.handle,
        "age_s": round(one.age_s, 3),
        "pipeline": one.pipeline,
        "sink": one.committable.sink,
        "generation": one.committable.generation,
        "epoch": one.committable.epoch,
        "should_become": one.fate.value,
        "because": one.because,
    }

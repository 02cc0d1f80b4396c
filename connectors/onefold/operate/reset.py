"""Lets a pipeline begin anew: removes what its sinks, its store and its checkpoint keep of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from onefold.core import ConfigError
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Pipeline

__all__ = ["LedgerPlace", "Removal", "places_of", "reset"]


class LedgerPlace(Protocol):
    """The ledgers of one server, and the targets that are named beside them."""

    @property
    def server(self) -> str:
        """Its address, for the lines of the plan."""
        ...

    def found(self) -> Iterable[str]:
        """What it keeps of the pipeline beside the targets, each for a line of the plan. Changes nothing."""
        ...

    def targets(self) -> Mapping[str, str | None]:
        """Each named target with its line of the plan; None where there is no such target. Raises ConfigError for one
        that cannot be emptied."""
        ...

    def generation(self) -> int | None:
        """The newest that its ledgers name, 0 where they name none; None where there is no ledger."""
        ...

    def remove(self) -> None:
        """All that `found` and `targets` name, a ledger after its rows. The same again removes what is left."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Removal:
    """What a reset removes, a line for each thing, and the servers whose rows stay."""

    lines: tuple[str, ...]
    rows_stay: tuple[str, ...]


def reset(
    stopped: StoppedPipeline, places: Sequence[LedgerPlace], take_over: bool, ask: Callable[[Removal], None]
) -> bool:
    """Shows what would go, asks, and removes it; False where there is nothing. Closes the places. Raises ConfigError
    where the pipeline may be running, or its store is another one.

    The order is what makes it safe to be cut short: the store goes first, and each ledger after the rows that it speaks
    of. So a start that comes between finds a ledger ahead of the store, and never begins anew beside old rows.
    """
    store = stopped.store
    with ExitStack() as stack:
        for place in places:
            stack.callback(place.close)
        named = [(place, place.targets()) for place in places]
        lines = [line for place, targets in named for line in _of_place(place, targets)]
        lines += [*_of_store(stopped), *(f"the checkpoint directory {path}" for path in stopped.checkpoint.removable())]
        if not lines:
            return False
        if not take_over:
            _check_idle(stopped, places)
        ask(Removal(tuple(lines), tuple(place.server for place, targets in named if not targets)))
        if not take_over:
            _check_idle(stopped, places)  # it may have been started meanwhile
        if stopped.find() is not None:
            above = max(place.generation() or 0 for place in places)
            generation = store.acquire(stopped.name, above)  # from here on no older driver opens or decides an epoch
            if not take_over:
                _check_idle(stopped, places)
            store.begin_anew(generation)
        for place in places:
            place.remove()
        stopped.checkpoint.remove()
        return True


def _of_place(place: LedgerPlace, targets: Mapping[str, str | None]) -> Iterator[str]:
    for line in place.found():
        yield f"{place.server}: {line}"
    for name, rows in targets.items():
        if rows is None:
            raise ConfigError(
                "reset-target-missing",
                f"{place.server} has no table or topic {name!r}. Nothing was removed: correct the pipeline, or leave"
                " --rows out",
            )
        yield f"{place.server}: {rows}, also those of other pipelines"


def _of_store(stopped: StoppedPipeline) -> Iterator[str]:
    facts = stopped.find()
    if facts is not None and (facts.last is not None or facts.unfinished or facts.frozen is not None):
        epochs = len(stopped.store.history(stopped.name))
        yield f"the checkpoint store at {stopped.store.database}: {epochs} epochs, and where the pipeline began"


def _check_idle(stopped: StoppedPipeline, places: Sequence[LedgerPlace]) -> None:
    """Raises ConfigError where the pipeline may be running, as far as its store tells."""
    if stopped.find() is None and any(place.generation() is not None for place in places):
        raise ConfigError(
            "ledger-of-another-store",
            f"pipeline {stopped.name!r} has a ledger, and the checkpoint store at {stopped.store.database} does not"
            " know it. Nothing was removed: correct the pipeline's store; or, where the store is lost and no driver"
            " lives, add --take-over",
        )
    stopped.refuse_running()


def places_of(pipeline: Pipeline, with_rows: bool) -> list[LedgerPlace]:
    """One for each ledger, however many sinks share it. `with_rows` names the sinks' tables and topics there, too.

    Raises ConfigError for a sink whose bookkeeping nobody knows how to remove.
    """
    shared: dict[Any, tuple[Make, list[Any], list[str]]] = {}
    for sink in pipeline.everyone:
        of = _PLACES.get(type(sink).__module__)
        if of is None:
            raise ConfigError(
                "reset-unsupported",
                f"sink {sink.name!r} is a {type(sink).__name__}, of which reset knows no ledger. Nothing was removed",
            )
        ledger, target, make = of(sink, pipeline.name)
        _, sinks, targets = shared.setdefault((of, ledger), (make, [], []))
        sinks.append(sink)
        targets += [target] if with_rows else []
    return [make(sinks, pipeline.name, targets) for make, sinks, targets in shared.values()]


# What is made of all sinks with one ledger, of a pipeline, with these targets.
Make = Callable[[Sequence[Any], str, Sequence[str]], LedgerPlace]
# Of a sink: what those with one ledger have in common, its own target, and what is made of them.
Of = tuple[object, str, Make]


def _postgres(sink: Any, _: str) -> Of:
    from onefold.sinks.postgres.admin import Operations
    from onefold.sinks.postgres.naming import TargetName
    from onefold.sinks.postgres.reset import PostgresReset

    options = sink.settings

    def place(sinks: Sequence[Any], pipeline: str, tables: Sequence[str]) -> LedgerPlace:
        rejects = dict.fromkeys(each.settings.rejects for each in sinks)
        at = Operations(options.url, options.ledger)
        return PostgresReset(at, pipeline, tuple(map(TargetName.parse, tables)), tuple(rejects))

    return (options.url, options.ledger), sink.table, place


def _sql(sink: Any, _: str) -> Of:
    from onefold.sinks.sql.databases import SqlDatabase
    from onefold.sinks.sql.naming import TableName
    from onefold.sinks.sql.reset import SqlReset

    def place(_: Sequence[Any], pipeline: str, tables: Sequence[str]) -> LedgerPlace:
        database = SqlDatabase(sink.url, 10, f"the sinks of pipeline {pipeline!r}")
        return SqlReset(database, pipeline, tuple(map(TableName.parse, tables)))

    return sink.url, sink.table, place


def _kafka(sink: Any, pipeline: str) -> Of:
    from onefold.sinks.kafka.reset import KafkaReset

    options = sink.settings

    def place(_: Sequence[Any], pipeline: str, topics: Sequence[str]) -> LedgerPlace:
        return KafkaReset(options, pipeline, tuple(topics))

    key = options.bootstrap_servers, options.ledger_topic(pipeline), options.transactional_id_prefix
    return key, options.topic, place


def _hbase(sink: Any, _: str) -> Of:
    from onefold.sinks.hbase.reset import HBaseReset

    settings = sink.settings

    def place(_: Sequence[Any], pipeline: str, tables: Sequence[str]) -> LedgerPlace:
        return HBaseReset(settings.hbase, pipeline, settings.ledger, tuple(tables))

    return (settings.hbase, settings.ledger), settings.declared.table, place


_PLACES: dict[str, Callable[[Any, str], Of]] = {
    "onefold.sinks.postgres.sink": _postgres,
    "onefold.sinks.sql.sink": _sql,
    "onefold.sinks.kafka.sink": _kafka,
    "onefold.sinks.hbase.sink": _hbase,
}

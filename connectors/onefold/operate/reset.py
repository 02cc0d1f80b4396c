"""Lets a pipeline begin anew: removes what its sinks, its store and its checkpoint keep of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from onefold.core import ConfigError
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Pipeline
from onefold.store.pins import ENDPOINTS, pinned


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
            remembered = pinned(store, stopped.name, ENDPOINTS)
            store.begin_anew(generation)
            if remembered is not None:  # for the same again, where this is cut short
                store.note(generation, ENDPOINTS, remembered)
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
    kinds = _by(lambda sink: type(sink).__module__, pipeline.everyone)
    for sink in (sinks[0] for kind, sinks in kinds.items() if kind not in _PLACES):
        raise ConfigError(
            "reset-unsupported",
            f"sink {sink.name!r} is a {type(sink).__name__}, of which reset knows no ledger. Nothing was removed",
        )
    return [place for kind, sinks in kinds.items() for place in _PLACES[kind](sinks, pipeline.name, with_rows)]


def _by(what: Callable[[Any], Any], sinks: Sequence[Any]) -> Mapping[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for sink in sinks:
        found.setdefault(what(sink), []).append(sink)
    return found


def _postgres(sinks: Sequence[Any], pipeline: str, rows: bool) -> Iterator[LedgerPlace]:
    from onefold.sinks.postgres.admin import Operations
    from onefold.sinks.postgres.naming import TargetName
    from onefold.sinks.postgres.sink_reset import PostgresReset

    for (url, ledger), each in _by(lambda sink: (sink.settings.url, sink.settings.ledger), sinks).items():
        tables = tuple(TargetName.parse(sink.table) for sink in each if rows)
        rejects = tuple(dict.fromkeys(sink.settings.rejects for sink in each))
        yield PostgresReset(Operations(url, ledger), pipeline, tables, rejects)


def _sql(sinks: Sequence[Any], pipeline: str, rows: bool) -> Iterator[LedgerPlace]:
    from onefold.sinks.name_parts import TableName
    from onefold.sinks.sql.databases import SqlDatabase
    from onefold.sinks.sql.sink_reset import SqlReset

    for url, each in _by(lambda sink: sink.url, sinks).items():
        database = SqlDatabase(url, 10, f"the sinks of pipeline {pipeline!r}")
        yield SqlReset(database, pipeline, tuple(TableName.parse(sink.table) for sink in each if rows))


def _kafka(sinks: Sequence[Any], pipeline: str, rows: bool) -> Iterator[LedgerPlace]:
    from onefold.sinks.kafka.sink_reset import KafkaReset

    def ledger(sink: Any) -> object:
        of = sink.settings
        return of.bootstrap_servers, of.ledger_topic(pipeline), of.transactional_id_prefix

    for each in _by(ledger, sinks).values():
        yield KafkaReset(each[0].settings, pipeline, tuple(sink.settings.topic for sink in each if rows))


def _hbase(sinks: Sequence[Any], pipeline: str, rows: bool) -> Iterator[LedgerPlace]:
    from onefold.sinks.hbase.sink_reset import HBaseReset

    for (hbase, ledger), each in _by(lambda sink: (sink.settings.hbase, sink.settings.ledger), sinks).items():
        yield HBaseReset(hbase, pipeline, ledger, tuple(sink.settings.declared.table for sink in each if rows))


_PLACES: dict[str, Callable[[Sequence[Any], str, bool], Iterator[LedgerPlace]]] = {
    "onefold.sinks.postgres.sink": _postgres,
    "onefold.sinks.sql.sink": _sql,
    "onefold.sinks.kafka.sink": _kafka,
    "onefold.sinks.hbase.sink": _hbase,
}

"""The places where a pipeline's sinks keep something of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onefold.core import ConfigError
from onefold.operate.ledger_place import LedgerPlace

if TYPE_CHECKING:
    from onefold.pipeline import Pipeline

__all__ = ["places_of"]


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

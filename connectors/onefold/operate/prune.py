"""Removes what databases keep for sinks that a pipeline no longer has, and for pipelines that never run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from onefold.core import ConfigError
from onefold.core.protocol.binding import is_foreign
from onefold.core.protocol.effects import StoreFacts
from onefold.operate.in_doubt import LedgerDatabase
from onefold.sinks.postgres.admin import Operations
from onefold.sinks.postgres.ledger.pruning import KeptOfSink
from onefold.store.checkpoint_store import CheckpointStore

Gone = Mapping[KeptOfSink, str]  # and why it may go


def check_retired(databases: Sequence[LedgerDatabase], retired: Sequence[str]) -> None:
    """Raise ConfigError for a pipeline of which none of the databases keeps anything."""
    kept = {one.pipeline for database in databases for one in database.operations().kept()[0]} if retired else set()
    if unknown := sorted(set(retired) - kept):
        raise ConfigError(
            "pipeline-unknown", f"nothing is kept here for a pipeline {', '.join(unknown)}: is the name right?"
        )


def prune_bookkeeping(
    database: LedgerDatabase, retired: Sequence[str], ask: Callable[[Gone, Sequence[str]], None]
) -> tuple[int, int]:
    """Shows what would go, also the stage tables that no sink has, asks, and removes it. Returns of how many sinks, and
    how many of these tables. Raises ConfigError where something of it is in use."""
    operations = database.operations()
    with closing(CheckpointStore(database.store or operations.store_url(), lock_timeout_s=10)) as store:
        kept, stages = operations.kept()
        if kept and store.look() is None:
            raise ConfigError(
                "store-missing",
                f"there is no checkpoint store at {store.database}: name the pipelines' own in a file of"
                " one, or with --store",
            )
        facts = {pipeline: store.facts(pipeline) for pipeline in {k.pipeline for k in kept}}
        theirs = {k.pipeline for k in kept if k.ledger and k.ledger.store_id == facts[k.pipeline].store_id}
        gone = {k: because for k in kept if (because := why(k, facts[k.pipeline], k.pipeline in theirs, retired))}
        _refuse_prepared(operations, gone)
        if gone or stages:
            ask(gone, stages)
        for pipeline in {k.pipeline for k in gone} & {*retired}:
            store.forget(pipeline)
        everything: list[KeptOfSink | str] = [*gone, *stages]
        for found in everything:
            operations.remove(found)
        return len(gone), len(stages)


def why(kept: KeptOfSink, facts: StoreFacts, is_their_store: bool, retired: Sequence[str]) -> str | None:
    """Why a sink's bookkeeping may go; None where it is needed, or nobody can know."""
    ledger = kept.ledger
    if ledger is not None and is_foreign(ledger, facts.store_id):
        if kept.pipeline in retired:
            raise ConfigError(
                "wrong-store",
                f"sink {kept.sink!r} of pipeline {kept.pipeline!r} was written under checkpoint store"
                f" {ledger.store_id}, and this store is {facts.store_id}: name the one that it had in the"
                " pipeline, or with --store",
            )
        return None
    if kept.pipeline in retired:
        return "retired"
    last = facts.complete
    if last is None or not is_their_store or any(kept.sink in record.sinks for record in (last, *facts.unfinished)):
        return None
    return f"the pipeline's last epoch, {last.epoch}, went to {', '.join(last.sinks)}"


def _refuse_prepared(operations: Operations, gone: dict[KeptOfSink, str]) -> None:
    going = {(k.pipeline, k.sink) for k in gone}
    for transaction in operations.prepared():
        if transaction.is_here and (transaction.pipeline, transaction.sink) in going:
            raise ConfigError(
                "transaction-still-prepared",
                f"{transaction.name!r} is still prepared for sink {transaction.sink!r} of pipeline"
                f" {transaction.pipeline!r}: `onefold txn resolve` it first. Nothing was removed",
            )

"""What is in doubt of a pipeline: transactions that its Postgres sinks prepared, and open ones of its Kafka sinks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from onefold.core import Committable, ConfigError
from onefold.core.findings import Held
from onefold.core.protocol.in_doubt import Fate, fates
from onefold.operate.stopped import StoppedPipeline
from onefold.operate.transactions import Transactions, Verdict
from onefold.pipeline import Pipeline, read
from onefold.sinks.postgres.admin import Operations, PreparedTransaction
from onefold.sinks.postgres.naming import BOOKKEEPING
from onefold.sinks.postgres.sink import PostgresSink

if TYPE_CHECKING:
    from onefold.sinks.kafka import KafkaSink

_BECAUSE = {
    Fate.COMMIT: "its epoch was decided, and the manifest names it: start the pipeline, whose recovery commits it",
    Fate.ROLL_BACK: "its generation or its epoch is over, and no manifest names it.",
    Fate.LEAVE: "its epoch runs in the newest generation: its driver may decide it. If that is dead, start it",
    Fate.UNKNOWN: "its generation is above the store's: the pipeline names another store than the pipeline's own",
}


@dataclass(frozen=True, slots=True)
class LedgerDatabase:
    """`schema` has the sinks' ledger. `store` is None where it is in this database, and `pipeline` for all of them."""

    postgres: str
    schema: str
    store: str | None
    pipeline: str | None

    def operations(self) -> Operations:
        return Operations(self.postgres, self.schema)

    def transactions(self) -> closing[Transactions]:
        return closing(Transactions(self.operations(), self.store))


def databases_of(
    named: str | None, postgres: str | None, schema: str | None, store: str | None, pipeline: str | None
) -> tuple[list[LedgerDatabase], Pipeline | None]:
    """What the command line names, and the pipeline where it names one. Raises ConfigError where it is neither."""
    if (named is None) == (postgres is None):
        raise ConfigError(
            "option-missing", "name a pipeline, orders.toml or jobs/orders.py:pipeline, or a database, --postgres URL"
        )
    if postgres is not None:
        return [LedgerDatabase(postgres, schema or BOOKKEEPING, store, pipeline)], None
    if any(option is not None for option in (schema, store, pipeline)):
        raise ConfigError(
            "options-conflict",
            "--store, --ledger and --pipeline go with --postgres: a pipeline itself says what they say",
        )
    described = read(str(named), is_stopped=True)
    sinks = [sink for sink in described.everyone if isinstance(sink, PostgresSink)]
    found = [LedgerDatabase(s.url, s.settings.ledger, described.store_url, described.name) for s in sinks]
    return list(dict.fromkeys(found)), described


def prepared_in(
    databases: Sequence[LedgerDatabase],
) -> tuple[list[tuple[LedgerDatabase, Verdict]], list[PreparedTransaction]]:
    """Each transaction once, the oldest first: every database of a server lists it, and its own one knows it."""
    ours: dict[str, tuple[LedgerDatabase, Verdict]] = {}
    others: dict[tuple[str, datetime], PreparedTransaction] = {}
    for database in databases:
        with database.transactions() as transactions:
            verdicts, foreign = transactions.look(database.pipeline)
        for verdict in verdicts:
            if verdict.fate is not Fate.UNKNOWN or verdict.transaction.name not in ours:
                ours[verdict.transaction.name] = database, verdict
        others |= {(each.name, each.prepared_at): each for each in foreign}
    return (
        sorted(ours.values(), key=lambda each: each[1].transaction.prepared_at),
        sorted(others.values(), key=lambda each: each.prepared_at),
    )


def the_one(
    gid: str, ours: Sequence[tuple[LedgerDatabase, Verdict]], others: Sequence[PreparedTransaction]
) -> tuple[LedgerDatabase, Verdict]:
    if any(t.name == gid for t in others):
        raise ConfigError(
            "transaction-not-ours",
            f"{gid!r} was not prepared by onefold: what should become of it is for its owner to say",
        )
    found = next((each for each in ours if each[1].transaction.name == gid), None)
    if found is None:
        raise ConfigError(
            "transaction-missing",
            f"there is no prepared transaction {gid!r}: it was finished meanwhile, or never was one",
        )
    if found[1].fate is Fate.UNKNOWN:
        raise ConfigError("transaction-undecidable", f"{gid!r} was left as it is: {found[1].because}")
    return found


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """An open transaction, what should become of it, and why."""

    pipeline: str
    committable: Committable
    age_s: float
    fate: Fate
    because: str


def open_of(pipeline: Pipeline) -> list[ListedTransaction]:
    """Those of all Kafka sinks of a pipeline that have transactions. Raises ConfigError where there are some, and its
    store does not know it. Changes nothing."""
    found = []
    for sink in transactional(pipeline):
        listed: dict[Committable, Held] = {held.committable: held for held in sink.held(pipeline.name)}
        if not listed:
            continue
        with closing(StoppedPipeline(pipeline, "Nothing was changed")) as known:
            facts = known.facts()  # after the list, as a sweep
        for committable, fate in fates(facts, listed).items():
            held = listed[committable]
            because = f"{_BECAUSE[fate]} {held.costs}" if fate is Fate.ROLL_BACK else _BECAUSE[fate]
            found.append(ListedTransaction(pipeline.name, committable, held.age_s, fate, because))
    return found


def transactional(pipeline: Pipeline) -> list[KafkaSink]:
    # Kafka's client need not be installed.
    sinks = [cast("KafkaSink", sink) for sink in pipeline.everyone if type(sink).__name__ == "KafkaSink"]
    return [sink for sink in sinks if sink.settings.delivery == "transactional"]

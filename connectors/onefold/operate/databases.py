"""Where `onefold txn` looks: the databases of a pipeline's Postgres sinks, or the one that a URL names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onefold.core import ConfigError
from onefold.operate.transactions import Transactions
from onefold.pipeline import Pipeline, read
from onefold.sinks.postgres.admin import Operations
from onefold.sinks.postgres.naming import BOOKKEEPING
from onefold.sinks.postgres.sink import PostgresSink

__all__ = ["LedgerDatabase", "databases_of"]


@dataclass(frozen=True, slots=True)
class LedgerDatabase:
    """`schema` has the sinks' ledger. `store` is None where it is in this database, and `pipeline` for all of them."""

    postgres: str
    schema: str
    store: str | None
    pipeline: str | None

    def operations(self) -> Operations:
        return Operations(self.postgres, self.schema)

    @contextmanager
    def transactions(self) -> Iterator[Transactions]:
        found = Transactions(self.operations(), self.store)
        try:
            yield found
        finally:
            found.close()


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
    described = read(str(named))
    sinks = [sink for sink in described.everyone if isinstance(sink, PostgresSink)]
    found = [LedgerDatabase(s.url, s.settings.ledger, described.store_url, described.name) for s in sinks]
    return list(dict.fromkeys(found)), described

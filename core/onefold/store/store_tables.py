"""The checkpoint store's tables, and how a store is made and found."""

from __future__ import annotations

import uuid

from onefold.clients.sql.database import Transaction
from onefold.clients.sql.database_backend import Backend
from onefold.core.errors import ConfigError

VERSION = 1  # of the tables; a store says by which it was made
# Each with its columns, and its key. `origin` is where a new checkpoint begins, if somebody has moved that, and `moved`
# the last epoch that moved the positions.
_TABLES = {
    "onefold_store": ("store_id VARCHAR(36) NOT NULL, version INTEGER NOT NULL", "store_id"),
    "onefold_pipelines": (
        "pipeline VARCHAR(200) NOT NULL, generation BIGINT NOT NULL, token VARCHAR(32) NOT NULL, "
        "frozen TEXT, origin TEXT, moved BIGINT NOT NULL DEFAULT 0",
        "pipeline",
    ),
    "onefold_epochs": (
        "pipeline VARCHAR(200) NOT NULL, epoch BIGINT NOT NULL, generation BIGINT NOT NULL, "
        "state VARCHAR(10) NOT NULL, range_start TEXT NOT NULL, range_end TEXT NOT NULL, timestamp_ms BIGINT NOT NULL, "
        "query_id TEXT NOT NULL, batch_id BIGINT NOT NULL, fingerprint TEXT NOT NULL, sinks TEXT NOT NULL, "
        'write_through TEXT NOT NULL, manifest TEXT NOT NULL, "rows" BIGINT NOT NULL, bytes BIGINT NOT NULL, '
        "opened_at_ms BIGINT, decided_at_ms BIGINT, completed_at_ms BIGINT, error TEXT",
        "pipeline, epoch",
    ),
    "onefold_runs": (
        "pipeline VARCHAR(200) NOT NULL, run VARCHAR(200) NOT NULL, epoch BIGINT NOT NULL, "
        '"rows" BIGINT NOT NULL, decided_at_ms BIGINT NOT NULL',
        "pipeline, run",
    ),
    "onefold_pins": (
        "pipeline VARCHAR(200) NOT NULL, name VARCHAR(100) NOT NULL, value TEXT NOT NULL",
        "pipeline, name",
    ),
    "onefold_journals": (
        "pipeline VARCHAR(200) NOT NULL, source VARCHAR(200) NOT NULL, name VARCHAR(100) NOT NULL, value TEXT NOT NULL",
        "pipeline, source, name",
    ),
}
_INDEX = "CREATE INDEX onefold_epochs_by_state ON onefold_epochs (pipeline, state)"
# By their names, the names of their columns.
TABLES = {
    name: [column.split()[0].strip('"') for column in columns.split(", ")] for name, (columns, _) in _TABLES.items()
}


def _creating(there: set[str]) -> list[str]:
    missing = [(name, *parts) for name, parts in _TABLES.items() if name not in there]
    made = [f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}))" for name, columns, key in missing]
    return made if "onefold_epochs" in there else [*made, _INDEX]


def making_store(backend: Backend, there: set[str]) -> list[str]:
    """The statements by which `prepared_store` would make what is missing."""
    return [backend.text(statement).replace("%%", "%") for statement in _creating(there)]


def prepared_store(transaction: Transaction) -> str:
    """The id of the store, which is made, or the tables that it lacks, in the caller's transaction. That keeps others
    out that do the same. Raises ConfigError."""
    there = transaction.database.backend.tables(transaction.connection)
    transaction.run(*((statement, {}) for statement in _creating(there)))
    store_id = existing_store(transaction)
    if store_id is None:
        store_id = str(uuid.uuid4())
        values = {"store_id": store_id, "version": VERSION}
        transaction.run(("INSERT INTO onefold_store VALUES (%(store_id)s, %(version)s)", values))
    return store_id


def existing_store(transaction: Transaction, *, to_look: bool = False) -> str | None:
    """The id of a store that is there with all its tables, else None; changes nothing. `to_look` asks for no right to
    write. Raises ConfigError for tables that others could change, and for a store of another version."""
    backend = transaction.database.backend
    there = backend.checked_tables(transaction.connection, [*TABLES], to_look=to_look)
    if "onefold_store" not in there:
        return None
    row = next(iter(transaction.rows("SELECT store_id, version FROM onefold_store")), None)
    if row is not None and row.version != VERSION:
        raise ConfigError(
            "store-too-new",
            f"the checkpoint store at {transaction.database} has version {row.version}, this onefold knows version"
            f" {VERSION}: use the newer onefold that made it, or another store",
        )
    return str(row.store_id) if row is not None and there.issuperset(TABLES) else None

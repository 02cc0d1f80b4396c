"""The checkpoint store's tables, and how a store is made and found."""

from __future__ import annotations

import uuid

from onefold.core.errors import ConfigError
from onefold.core.sql.backend import Backend, Table
from onefold.core.sql.database import Transaction

__all__ = ["TABLES", "existing_store", "making_store", "prepared_store"]

VERSION = 1  # of the tables; a store says by which it was made
_PIPELINE, _NUMBER, _TEXT = "VARCHAR(200) NOT NULL", "BIGINT NOT NULL", "TEXT NOT NULL"
TABLES = (
    Table("onefold_store", {"store_id": "VARCHAR(36) NOT NULL", "version": "INTEGER NOT NULL"}, ("store_id",)),
    Table(
        "onefold_pipelines",
        {
            "pipeline": _PIPELINE,
            "generation": _NUMBER,
            "token": "VARCHAR(32) NOT NULL",
            "frozen": "TEXT",  # positions, JSON
            "origin": "TEXT",  # the same: where a new checkpoint begins, if somebody has moved that
            "moved": "BIGINT NOT NULL DEFAULT 0",  # the last epoch that moved the positions
        },
        ("pipeline",),
    ),
    Table(
        "onefold_epochs",
        {
            "pipeline": _PIPELINE,
            "epoch": _NUMBER,
            "generation": _NUMBER,
            "state": "VARCHAR(10) NOT NULL",
            "range_start": _TEXT,
            "range_end": _TEXT,
            "timestamp_ms": _NUMBER,
            "query_id": _TEXT,
            "batch_id": _NUMBER,
            "fingerprint": _TEXT,
            "sinks": _TEXT,
            "write_through": _TEXT,
            "manifest": _TEXT,
            '"rows"': _NUMBER,
            "bytes": _NUMBER,
            "opened_at_ms": "BIGINT",
            "decided_at_ms": "BIGINT",
            "completed_at_ms": "BIGINT",
            "error": "TEXT",
        },
        ("pipeline", "epoch"),
    ),
    Table(
        "onefold_runs",
        {"pipeline": _PIPELINE, "run": _PIPELINE, "epoch": _NUMBER, '"rows"': _NUMBER, "decided_at_ms": _NUMBER},
        ("pipeline", "run"),
    ),
    Table(
        "onefold_pins",
        {"pipeline": _PIPELINE, "name": "VARCHAR(100) NOT NULL", "value": _TEXT},
        ("pipeline", "name"),
    ),
    Table(
        "onefold_journals",
        {"pipeline": _PIPELINE, "source": _PIPELINE, "name": "VARCHAR(100) NOT NULL", "value": _TEXT},
        ("pipeline", "source", "name"),
    ),
)
_INDEX = "CREATE INDEX onefold_epochs_by_state ON onefold_epochs (pipeline, state)"
_NAMES = [table.name for table in TABLES]


def _creating(there: set[str]) -> list[str]:
    missing = [table for table in TABLES if table.name not in there]
    return [*(table.creating for table in missing), *(_INDEX for table in missing if table.name == "onefold_epochs")]


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
    backend.check_ours(transaction.connection, _NAMES, to_look=to_look)
    there = backend.tables(transaction.connection)
    if "onefold_store" not in there:
        return None
    row = next(iter(transaction.rows("SELECT store_id, version FROM onefold_store")), None)
    if row is not None and row.version != VERSION:
        raise ConfigError(
            "store-too-new",
            f"the checkpoint store at {transaction.database} has version {row.version}, this onefold knows version"
            f" {VERSION}: use the newer onefold that made it, or another store",
        )
    return str(row.store_id) if row is not None and there.issuperset(_NAMES) else None

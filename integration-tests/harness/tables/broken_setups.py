"""Set-ups that are broken in one way each, and the code of the error that a start ends with: the tests hold `onefold
doctor` against them, and docs/doctor.md shows them.

In statements and options `{r}` is a role of the set-up's own, whose schema is `{r}`; with `role` the sink works as it.
"""

# ruff: noqa: E501 - one line for each set-up where that is possible
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

__all__ = ["HBASE", "KAFKA", "MARIADB", "POSTGRES", "ROWS", "SOURCE", "SQLITE", "Broken", "page"]

ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("name", pa.string())])
GONE = ROWS.append(pa.field("gone", pa.bool_()))


@dataclass(frozen=True)
class Broken:
    """`code` is the error's with which a start ends; None where it starts all the same, and the guarantee is broken.

    `setup` are statements; after these `first`, where it is given, are the options of a sink that starts once, and
    `then` are statements after that. `sink` are the options of the sink that is examined, and started. `store` is a
    SQLite file beside the sink, in the place of the sink's own database. With `by_rows` doctor finds it only where it
    knows the rows, and without them says that it has not checked all.
    """

    name: str
    code: str | None
    setup: str = ""
    sink: Mapping[str, Any] = field(default_factory=dict)
    rows: pa.Schema = ROWS
    role: bool = False
    first: Mapping[str, Any] | None = None
    then: str = ""
    store: bool = False
    by_rows: bool = False


_TABLE = "CREATE TABLE shop.t (id bigint, v bigint, name text)"
_KEYED = "CREATE TABLE shop.t (id bigint PRIMARY KEY, v bigint, name text)"
_ALL = "; GRANT SELECT, INSERT, UPDATE, DELETE ON shop.t TO {r}"
_UPSERT = {"mode": "upsert", "key": "id", "order": "v"}
_DELETES = {**_UPSERT, "delete_when_true": "gone"}
_LETTERS = {"on_error": "dead_letter", "rejects_table": "shop.bad"}
_TWO_PHASE = {"delivery": "two_phase"}
_BAD = "CREATE TABLE shop.bad (pipeline text, sink text, epoch bigint, generation bigint, reason text, sqlstate text, position jsonb, row jsonb, at timestamptz)"

POSTGRES = [
    Broken("no server at the address", "postgres-unreachable", sink={"url": "postgresql://127.0.0.1:1/shop?connect_timeout=2"}),
    Broken("no such database", "postgres-connection-refused", sink={"dbname": "nowhere"}),
    Broken("no such role", "postgres-connection-refused", sink={"user": "nobody"}),
    Broken("the role's transactions are read only", "postgres-read-only", _TABLE + _ALL + "; ALTER ROLE {r} SET default_transaction_read_only = on", role=True),
    Broken("a role without INSERT", "table-permission", _TABLE + "; GRANT SELECT ON shop.t TO {r}", role=True),
    Broken("a role with INSERT on some columns only", "table-permission", _TABLE + "; GRANT INSERT (id, v) ON shop.t TO {r}", role=True, by_rows=True),
    Broken("upserts by a role without SELECT", "table-permission", _KEYED + "; GRANT INSERT, UPDATE ON shop.t TO {r}", _UPSERT, role=True),
    Broken("upserts by a role without UPDATE", "table-permission", _KEYED + "; GRANT SELECT, INSERT ON shop.t TO {r}", _UPSERT, role=True),
    Broken("deletions by a role without DELETE", "table-permission", _KEYED + "; GRANT SELECT, INSERT, UPDATE ON shop.t TO {r}", _DELETES, GONE, role=True),
    Broken("a role without USAGE on the table's schema", "postgres-refuses", _TABLE + _ALL + "; REVOKE USAGE ON SCHEMA shop FROM {r}", role=True),
    Broken("a missing table, a role without CREATE", "create-permission", role=True),
    Broken("a missing table in a missing schema", "database-schema-missing", sink={"table": "nowhere.t"}),
    Broken("upserts, no unique index", "unique-index-missing", _TABLE, _UPSERT),
    Broken("upserts, a unique index with a condition", "unique-index-missing", _TABLE + "; CREATE UNIQUE INDEX ON shop.t (id) WHERE v > 0", _UPSERT),
    Broken("upserts, a unique index on an expression", "unique-index-missing", _TABLE + "; CREATE UNIQUE INDEX ON shop.t (abs(id))", _UPSERT),
    Broken("upserts, a unique index on more columns", "unique-index-missing", _TABLE + "; CREATE UNIQUE INDEX ON shop.t (id, name)", _UPSERT),
    Broken("upserts, published, and without a replica identity", "replica-identity-missing", "CREATE TABLE shop.t (id bigint UNIQUE, v bigint, name text); CREATE PUBLICATION shop FOR TABLE shop.t", _UPSERT),
    Broken("upserts, a deferrable constraint", "unique-index-missing", "CREATE TABLE shop.t (id bigint UNIQUE DEFERRABLE, v bigint, name text)", _UPSERT),
    Broken("upserts into a view", "target-is-view", "CREATE TABLE shop.b (id bigint PRIMARY KEY, v bigint, name text); CREATE VIEW shop.t AS SELECT * FROM shop.b", _UPSERT),
    Broken("a materialized view", "table-kind", "CREATE MATERIALIZED VIEW shop.t AS SELECT 1::bigint AS id, 1::bigint AS v, ''::text AS name"),
    Broken("an UNLOGGED table", "table-unlogged", "CREATE UNLOGGED TABLE shop.t (id bigint, v bigint, name text)"),
    Broken("an UNLOGGED partition", "partition-not-durable", _TABLE + " PARTITION BY HASH (id); CREATE UNLOGGED TABLE shop.p PARTITION OF shop.t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"),
    Broken("a column that the table lacks", "table-mismatch", "CREATE TABLE shop.t (id bigint, v bigint)", by_rows=True),
    Broken("a column of a narrower type", "table-mismatch", "CREATE TABLE shop.t (id integer, v bigint, name text)", by_rows=True),
    Broken("a column that the rows lack, NOT NULL", "table-mismatch", "CREATE TABLE shop.t (id bigint, v bigint, name text, must text NOT NULL)", by_rows=True),
    Broken("a column that the table generates", "table-mismatch", "CREATE TABLE shop.t (id bigint, v bigint, name text GENERATED ALWAYS AS ('x') STORED)", by_rows=True),
    Broken("rows that Postgres has no type for, a missing table", "table-not-creatable", rows=pa.schema([("id", pa.int64()), ("odd", pa.decimal256(50, 2))]), by_rows=True),
    Broken("upserts, a key that the rows lack", "column-missing", _KEYED, {**_UPSERT, "key": "other"}, by_rows=True),
    Broken("a mark of deletions that is no boolean", "column-type", _KEYED, {**_DELETES, "delete_when_true": "name"}, by_rows=True),
    Broken("a source position that the rows lack", "column-type", _TABLE, {"on_error": "dead_letter", "source_position": "at"}, by_rows=True),
    Broken("`two_phase` beside a unique index", "two-phase-unsuitable", _TABLE + "; CREATE UNIQUE INDEX ON shop.t (name)", _TWO_PHASE),
    Broken("`two_phase` with a key that only Postgres compares", "two-phase-unsuitable", "CREATE TABLE shop.t (id double precision PRIMARY KEY, v bigint, name text)", {**_UPSERT, **_TWO_PHASE}, pa.schema([("id", pa.float64()), ("v", pa.int64()), ("name", pa.string())])),
    Broken("`evolve` of another role's table", "table-not-owned", "CREATE TABLE shop.t (id bigint, v bigint)" + _ALL, {"evolve": True}, role=True, by_rows=True),
    Broken("a column with the name of one of the stage's", "column-name-taken", sink={"delivery": "staged"}, rows=ROWS.append(pa.field("onefold_attempt", pa.int64())), by_rows=True),
    Broken("a table for dead letters of another shape", "rejects-table-columns", _TABLE + "; CREATE TABLE shop.bad (x int)", _LETTERS),
    Broken("a table for dead letters that a role may not write", "table-permission", _TABLE + _ALL + f"; {_BAD}", _LETTERS, role=True),
    Broken("a table for dead letters that a role may write in part", "table-permission", _TABLE + _ALL + f"; {_BAD}; GRANT INSERT (pipeline) ON shop.bad TO {{r}}", _LETTERS, role=True),
    Broken("a missing table for dead letters, a role without CREATE", "create-permission", _TABLE + _ALL, _LETTERS, role=True),
    Broken("no ledger yet, a role without CREATE on the database", "ledger-permission", _TABLE + _ALL, {"ledger": "books"}, role=True),
    Broken("no ledger yet, a role without CREATE on its schema", "ledger-permission", _TABLE + _ALL + "; CREATE SCHEMA books; GRANT USAGE ON SCHEMA books TO {r}", {"ledger": "books"}, role=True),
    Broken("a ledger in another role's schema", "schema-of-another-role", _TABLE + _ALL + "; CREATE ROLE {r}_other; CREATE SCHEMA books AUTHORIZATION {r}_other; GRANT ALL ON SCHEMA books TO {r}", {"ledger": "books"}, role=True),
    Broken("a ledger that the role may only read", "own-tables-permission", _TABLE + _ALL, {"ledger": "books"}, role=True, first={"ledger": "books", "user": None}, then="GRANT ALL ON SCHEMA books TO {r}; GRANT SELECT ON ALL TABLES IN SCHEMA books TO {r}"),
    Broken("a ledger that the role may only add to", "own-tables-permission", _TABLE + _ALL, {"ledger": "books"}, role=True, first={"ledger": "books", "user": None}, then="GRANT ALL ON SCHEMA books TO {r}; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA books TO {r}"),
    Broken("a ledger of a newer onefold", "ledger-too-new", first={}, then="UPDATE onefold_sinks.onefold_version SET version = 99"),
    Broken("a ledger that lacks one of its tables", "ledger-incomplete", first={}, then="DROP TABLE onefold_sinks.onefold_ledger"),
    Broken("a ledger of another checkpoint store", "another-store", sink=_TWO_PHASE, first=_TWO_PHASE, store=True),
    Broken("a ledger that is ahead of the store", "sink-ahead-of-store", first={}, then="UPDATE onefold_sinks.onefold_ledger SET epoch = 5, timestamp_ms = 5"),
    Broken("`staged`, a checkpoint store elsewhere", "store-elsewhere", sink={"delivery": "staged"}, store=True),
    Broken("a second ledger, in another schema", "ledger-elsewhere", first={"ledger": "books"}),
    Broken("deletions remembered in another schema", "tombstones-elsewhere", _KEYED, _DELETES, GONE, first={**_DELETES, "ledger": "books", "name": "other"}),
    Broken("deletions remembered by another order", "tombstones-of-another-key", _KEYED, {**_DELETES, "order": "name"}, GONE, first=_DELETES),
    Broken("a checkpoint store of a newer onefold", "store-too-new", first={}, then="UPDATE onefold_sinks.onefold_store SET version = 99"),
]  # fmt: skip

SQLITE = [
    Broken("a folder that is not there", "database-access-denied", sink={"folder": "missing"}),
    Broken("a folder that everybody can write to", "folder-not-trusted", sink={"folder": "open"}),
    Broken("a file that is no database", "database-access-denied", sink={"folder": "junk"}),
    Broken("a view", "target-is-view", "CREATE TABLE b (id bigint, v bigint, name text); CREATE VIEW t AS SELECT * FROM b"),
    Broken("a column that the table lacks", "table-mismatch", "CREATE TABLE t (id bigint, v bigint)", by_rows=True),
    Broken("a column of another type", "table-mismatch", "CREATE TABLE t (id bigint, v real, name text)", by_rows=True),
    Broken("a column that the rows lack, NOT NULL", "table-mismatch", "CREATE TABLE t (id bigint, v bigint, name text, must text NOT NULL)", by_rows=True),
    Broken("upserts, no unique index", "unique-index-missing", "CREATE TABLE t (id bigint, v bigint, name text)", _UPSERT),
    Broken("upserts, a unique index with a condition", "unique-index-missing", "CREATE TABLE t (id bigint, v bigint, name text); CREATE UNIQUE INDEX u ON t (id) WHERE v > 0", _UPSERT),
    Broken("upserts, an order by texts", "order-not-comparable", "CREATE TABLE t (id bigint PRIMARY KEY, v bigint, name text)", {**_UPSERT, "order": "name"}, by_rows=True),
    Broken("a column with the name of one of the stage's", "column-name-taken", rows=ROWS.append(pa.field("onefold_row", pa.int64())), by_rows=True),
    Broken("columns that differ only in case", "column-name-invalid", rows=ROWS.append(pa.field("ID", pa.int64())), by_rows=True),
    Broken("rows that have no type there, a missing table", "table-not-creatable", rows=pa.schema([("id", pa.int64()), ("odd", pa.list_(pa.int64()))]), by_rows=True),
    Broken("a ledger of a newer onefold", "ledger-too-new", first={}, then="UPDATE onefold_sql_version SET version = 99"),
    Broken("a ledger of another checkpoint store", "another-store", first={}, then="UPDATE onefold_sql_ledger SET store_id = 'x'"),
    Broken("a checkpoint store of a newer onefold", "store-too-new", first={}, then="UPDATE onefold_store SET version = 99"),
]  # fmt: skip

MARIADB = [
    Broken("a MyISAM table", "table-without-transactions", "CREATE TABLE t (id bigint, v bigint, name longtext) ENGINE = MyISAM"),
    Broken("a column of another type", "table-mismatch", "CREATE TABLE t (id bigint unsigned, v bigint, name longtext)", by_rows=True),
    Broken("upserts, a unique index on a text's beginning", "unique-index-missing", "CREATE TABLE t (id bigint, v bigint, name varchar(90)); CREATE UNIQUE INDEX u ON t (name(9))", {**_UPSERT, "key": "name"}),
    Broken("columns that differ only in case", "column-name-invalid", rows=ROWS.append(pa.field("ID", pa.int64())), by_rows=True),
    Broken("a column with a backtick in its name", "column-name-invalid", rows=ROWS.append(pa.field("a`b", pa.int64())), by_rows=True),
    Broken("a user without INSERT", "database-access-denied", "CREATE TABLE {r}.t (id bigint, v bigint, name longtext); GRANT SELECT ON {r}.t TO {r}", role=True),
    Broken("upserts by a user without UPDATE", "database-access-denied", "CREATE TABLE {r}.t (id bigint PRIMARY KEY, v bigint, name longtext); GRANT SELECT, INSERT ON {r}.t TO {r}", _UPSERT, role=True),
    Broken("a view in the place of one of onefold's tables", "own-table-foreign", "CREATE TABLE b (x int); CREATE VIEW onefold_store AS SELECT * FROM b"),
]  # fmt: skip

_KEYED_BY_ID = {"delivery": "keyed", "id": "id"}

KAFKA = [
    Broken("no broker at the address", "kafka-unreachable", sink={"bootstrap_servers": "127.0.0.1:1", "timeout_s": 0.5}),
    Broken("no such topic", "topic-missing", sink={"topic": "nowhere", "timeout_s": 1.0}),
    Broken("a topic that wants more replicas in sync than it has", "topic-unwritable", sink={"config": {"min.insync.replicas": "2"}}),
    Broken("a topic with unclean leader election", None, sink={"config": {"unclean.leader.election.enable": "true"}}),
    Broken("a ledger topic that deletes", "ledger-topic-unsuitable", sink={"ledger_config": {"cleanup.policy": "delete"}}),
    Broken("a ledger topic with unclean leader election", "ledger-topic-unsuitable", sink={"ledger_config": {"cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "true"}}),
    Broken("a ledger topic that wants more replicas in sync than it has", "ledger-topic-unsuitable", sink={"ledger_config": {"cleanup.policy": "compact", "compression.type": "uncompressed", "min.insync.replicas": "2"}}),
    Broken("a transaction timeout above the brokers'", "transaction-timeout-too-long", sink={"transaction_timeout_s": 901}),
    Broken("a key that the rows lack", "column-missing", sink={"key": "other"}, by_rows=True),
    Broken("a column that JSON has no form for", "column-type", rows=ROWS.append(pa.field("odd", pa.duration("us"))), by_rows=True),
    Broken("`keyed`, an id that the rows lack", "column-missing", sink={"delivery": "keyed", "id": "other"}, by_rows=True),
    Broken("`keyed`, an id that is a fraction", "column-type", sink={"delivery": "keyed", "id": "x"}, rows=ROWS.append(pa.field("x", pa.float64())), by_rows=True),
    Broken("`transactional`, a ledger of a `keyed` sink", "delivery-changed", first=_KEYED_BY_ID),
    Broken("a ledger of another checkpoint store", "another-store", first={}, store=True),
]  # fmt: skip

HBASE = [
    Broken("no server at the address", "hbase-unreachable", sink={"servers": "127.0.0.1:1"}),
    Broken("a table without the column family", "hbase-table-unsuitable", sink={"family": "other"}),
    Broken("a table that is disabled", "hbase-table-unsuitable", setup="disable"),
    Broken("a table that acknowledges what it has not written", "hbase-table-unsuitable", setup="async"),
    Broken("a missing table in a missing namespace", "hbase-namespace-missing", sink={"table": "nowhere:t"}),
    Broken("a ledger's table without its column family", "hbase-table-unsuitable", setup="ledger", sink={"ledger_family": "f"}),
    Broken("a ledger's table that forgets", "ledger-expires", setup="ledger", sink={"ledger_family": "l"}),
    Broken("rows without a column of the row key", "column-missing", rows=pa.schema([("name", pa.string())]), by_rows=True),
    Broken("a ledger of another mode", "sink-mode-changed", sink={"mode": "rolling", "merge": "replace"}, first={}),
    Broken("a ledger of another checkpoint store", "another-store", first={}, store=True),
]  # fmt: skip

SOURCE = [
    Broken("no such topic", "topic-missing", sink={"topics": "nowhere", "timeout_s": 1.0}),
    Broken("a start beyond the topic's end", "starting-offset-beyond-end", sink={"starting_offsets": {"0": 99, "1": 0}}),
    Broken("a start that leaves a partition out", "partition-left-out", sink={"starting_offsets": {"0": 0}}),
    Broken("a start at a partition that is not there", "partition-unknown", sink={"starting_offsets": {"0": 0, "1": 0, "7": 0}}),
]  # fmt: skip

_OF = {
    "a Postgres sink": POSTGRES,
    "a SQL sink, SQLite": SQLITE,
    "a SQL sink, MariaDB": MARIADB,
    "a Kafka sink": KAFKA,
    "an HBase sink": HBASE,
    "a Kafka source": SOURCE,
}


def page() -> Sequence[str]:
    """The lines of the table in the docs."""
    lines = ["| Of | What is broken | A start ends with, and doctor says |", "| --- | --- | --- |"]
    for of, broken in _OF.items():
        for one in broken:
            says = f"`{one.code}`" if one.code is not None else "it starts; doctor says that `no-loss` does not hold"
            says += ", where it knows the rows" * one.by_rows
            lines.append(f"| {of} | {one.name} | {says} |")
    return lines

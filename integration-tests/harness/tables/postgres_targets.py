"""Kinds of targets and of columns, and what the Postgres sink makes of each: the tests hold them, the docs show them.

`{s}` in a statement is the schema that the target `t` lies in; its name is odd in every way that a name can be.
"""

# ruff: noqa: E501 - one line for each kind where that is possible
from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

__all__ = ["KINDS", "TYPES", "TYPES_SETUP", "ColumnType", "Kind", "tables"]

D = decimal.Decimal

IDS = pa.array([1, 2, 3, 4])
NAMES = pa.array(["a", "b", None, "d"])
ROWS = {"id": IDS, "name": NAMES}
READ = [(1, "a"), (2, "b"), (3, None), (4, "d")]
TABLE = "CREATE TABLE {s}.t (id bigint, name text)"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of target. Two tasks write half of `rows` each, in each delivery; `select` then gives `read`.

    `refused` is what `open` says of it in every delivery, `not_two_phase` in that one, `stops` the first epoch.
    """

    name: str
    setup: str
    auto: str = "two_phase"
    because: str = "nothing makes sibling tasks wait"
    rows: dict[str, pa.Array] = field(default_factory=lambda: ROWS)
    read: list[tuple[Any, ...]] = field(default_factory=lambda: READ)
    select: str = "SELECT * FROM {s}.t ORDER BY 1"
    refused: str | None = None
    not_two_phase: str | None = None
    stops: str | None = None
    plain_role: bool = False  # written by a role that owns nothing and bypasses nothing
    since: int = 0  # the first Postgres that has it


def _staged(name: str, setup: str, because: str, **more: Any) -> Kind:
    return Kind(name, setup, "staged", because, not_two_phase=because, **more)


_ECHO = "CREATE FUNCTION {s}.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s END $$; "

KINDS = [
    Kind("a table that is missing: it is made", "SELECT 1"),
    Kind("a table", TABLE),
    Kind("columns named by reserved words, in mixed case, with `%`, quotes, dots, colons, 63 bytes",
         'CREATE TABLE {s}.t ("Order" bigint, "select" bigint, "per%cent %s" bigint, "q""uo\'te" bigint, "a.b:c" bigint, "' + "ü" * 31 + 'x" bigint)',
         rows=dict.fromkeys(["Order", "select", "per%cent %s", 'q"uo\'te', "a.b:c", "ü" * 31 + "x"], IDS), read=[(n,) * 6 for n in (1, 2, 3, 4)]),
    Kind("a column's name of more than 63 bytes", TABLE, rows={**ROWS, "ü" * 32: IDS}, refused="64 bytes, and Postgres cuts names after 63"),
    Kind("partitioned by range, with a default partition",
         "CREATE TABLE {s}.t (id bigint, name text) PARTITION BY RANGE (id); CREATE TABLE {s}.t1 PARTITION OF {s}.t FOR VALUES FROM (1) TO (3); CREATE TABLE {s}.t2 PARTITION OF {s}.t DEFAULT",
         select="SELECT *, tableoid = '{s}.t1'::regclass FROM {s}.t ORDER BY 1", read=[(*row, row[0] < 3) for row in READ]),
    Kind("partitioned by list, into partitions by hash",
         "CREATE TABLE {s}.t (id bigint, name text) PARTITION BY LIST (name); CREATE TABLE {s}.t1 PARTITION OF {s}.t FOR VALUES IN (NULL, 'a'); CREATE TABLE {s}.t2 PARTITION OF {s}.t DEFAULT PARTITION BY HASH (id);"
         "CREATE TABLE {s}.t20 PARTITION OF {s}.t2 FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE {s}.t21 PARTITION OF {s}.t2 FOR VALUES WITH (MODULUS 2, REMAINDER 1)"),
    Kind("a partition by itself", "CREATE TABLE {s}.whole (id bigint, name text) PARTITION BY RANGE (id); CREATE TABLE {s}.t PARTITION OF {s}.whole DEFAULT"),
    _staged("partitioned, a partition with a unique index",
            "CREATE TABLE {s}.t (id bigint, name text) PARTITION BY HASH (id); CREATE TABLE {s}.t1 PARTITION OF {s}.t FOR VALUES WITH (MODULUS 1, REMAINDER 0); CREATE UNIQUE INDEX one ON {s}.t1 (name)",
            "unique index"),
    Kind("partitioned, a partition is UNLOGGED", "CREATE TABLE {s}.t (id bigint, name text) PARTITION BY HASH (id); CREATE UNLOGGED TABLE {s}.t1 PARTITION OF {s}.t FOR VALUES WITH (MODULUS 1, REMAINDER 0)", refused="SET LOGGED"),
    Kind("partitioned, a partition is a foreign table",
         "CREATE FOREIGN DATA WRAPPER {s}; CREATE SERVER {s} FOREIGN DATA WRAPPER {s}; CREATE TABLE {s}.t (id bigint, name text) PARTITION BY LIST (id); CREATE FOREIGN TABLE {s}.t1 PARTITION OF {s}.t DEFAULT SERVER {s}",
         refused="is a foreign table, which does not commit with its parent"),
    Kind("inherits from a table", "CREATE TABLE {s}.base (id bigint); CREATE TABLE {s}.t (name text) INHERITS ({s}.base)", select="SELECT b.id, name FROM {s}.base b JOIN {s}.t USING (id) ORDER BY 1"),
    Kind("has a table that inherits from it", TABLE + "; CREATE TABLE {s}.child (more text) INHERITS ({s}.t)", select="SELECT * FROM ONLY {s}.t ORDER BY 1"),
    Kind("of a composite type", "CREATE TYPE {s}.row AS (id bigint, name text); CREATE TABLE {s}.t OF {s}.row"),
    Kind("in a tablespace", "CREATE TABLE {s}.t (id bigint, name text) TABLESPACE {tablespace}"),
    Kind("UNLOGGED", "CREATE UNLOGGED TABLE {s}.t (id bigint, name text)", refused="SET LOGGED"),
    Kind("a foreign table", "CREATE FOREIGN DATA WRAPPER {s}; CREATE SERVER {s} FOREIGN DATA WRAPPER {s}; CREATE FOREIGN TABLE {s}.t (id bigint, name text) SERVER {s}", refused="is no table that rows can be inserted into"),
    Kind("a materialized view", "CREATE MATERIALIZED VIEW {s}.t AS SELECT 1::bigint AS id, ''::text AS name", refused="is no table that rows can be inserted into"),
    _staged("a view of one table", "CREATE TABLE {s}.base (id bigint, name text, more text DEFAULT 'x'); CREATE VIEW {s}.t AS SELECT id, name FROM {s}.base", "it is a view",
            select="SELECT * FROM {s}.base ORDER BY 1", read=[(*row, "x") for row in READ]),
    _staged("a view with an INSTEAD OF trigger",
            "CREATE TABLE {s}.base (id text, name text); CREATE VIEW {s}.t AS SELECT id::bigint, name FROM {s}.base; "
            + _ECHO % "INSERT INTO {s}.base VALUES ('0' || NEW.id, NEW.name); RETURN NEW;"
            + "CREATE TRIGGER tr INSTEAD OF INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.f()",
            "trigger tr", select="SELECT id, name FROM {s}.base ORDER BY 1", read=[("01", "a"), ("02", "b"), ("03", None), ("04", "d")]),
    _staged("a primary key", "CREATE TABLE {s}.t (id bigint PRIMARY KEY, name text)", "unique index"),
    _staged("a unique constraint, deferred", "CREATE TABLE {s}.t (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, name text)", "unique index"),
    Kind("an index that is not unique", TABLE + "; CREATE INDEX ON {s}.t (name)"),
    _staged("an exclusion constraint", "CREATE TABLE {s}.t (id bigint, name text, EXCLUDE USING btree (id WITH =))", "exclusion constraint"),
    Kind("CHECK constraints", "CREATE TABLE {s}.t (id bigint CHECK (id > 0), name text CHECK (name <> 'c'))"),
    Kind("a foreign key", "CREATE TABLE {s}.o (id bigint PRIMARY KEY); INSERT INTO {s}.o SELECT generate_series(1, 9); CREATE TABLE {s}.t (id bigint REFERENCES {s}.o, name text)", "staged", "foreign key t_id_fkey"),
    Kind("a foreign key, deferred", "CREATE TABLE {s}.o (id bigint PRIMARY KEY); INSERT INTO {s}.o SELECT generate_series(1, 9); CREATE TABLE {s}.t (id bigint REFERENCES {s}.o DEFERRABLE INITIALLY DEFERRED, name text)", "staged", "foreign key t_id_fkey"),
    Kind("a foreign key of another table to it", TABLE + "; ALTER TABLE {s}.t ADD COLUMN key bigint DEFAULT 0, ADD PRIMARY KEY (id); CREATE TABLE {s}.o (id bigint REFERENCES {s}.t)", "staged", "unique index",
         not_two_phase="unique index", read=[(*row, 0) for row in READ]),
    _staged("a BEFORE trigger that changes rows", TABLE + "; " + _ECHO % "NEW.name := upper(NEW.name); RETURN NEW;" + "CREATE TRIGGER tr BEFORE INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.f()",
            "trigger tr", read=[(1, "A"), (2, "B"), (3, None), (4, "D")]),
    _staged("a BEFORE trigger that drops rows", TABLE + "; " + _ECHO % "IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW;" + "CREATE TRIGGER tr BEFORE INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.f()",
            "trigger tr", stops="the merge moved 3 rows, and the manifest says 4"),
    _staged("an AFTER trigger that writes elsewhere", TABLE + "; CREATE TABLE {s}.log (id bigint); " + _ECHO % "INSERT INTO {s}.log VALUES (NEW.id); RETURN NULL;" + "CREATE TRIGGER tr AFTER INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.f()",
            "trigger tr", select="SELECT id, name FROM {s}.t JOIN {s}.log USING (id) ORDER BY 1"),
    _staged("a constraint trigger, deferred", TABLE + "; CREATE TABLE {s}.log (id bigint); " + _ECHO % "INSERT INTO {s}.log VALUES (NEW.id); RETURN NULL;" + "CREATE CONSTRAINT TRIGGER tr AFTER INSERT ON {s}.t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {s}.f()",
            "trigger tr", select="SELECT id, name FROM {s}.t JOIN {s}.log USING (id) ORDER BY 1"),
    Kind("a trigger that is disabled", TABLE + "; " + _ECHO % "RETURN NULL;" + "CREATE TRIGGER tr BEFORE INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.f(); ALTER TABLE {s}.t DISABLE TRIGGER tr"),
    _staged("a rule ON INSERT DO ALSO", TABLE + "; CREATE TABLE {s}.log (id bigint); CREATE RULE r AS ON INSERT TO {s}.t DO ALSO INSERT INTO {s}.log VALUES (NEW.id)", "rule r",
            select="SELECT id, name FROM {s}.t JOIN {s}.log USING (id) ORDER BY 1"),
    _staged("a rule ON INSERT DO INSTEAD, into another table", TABLE + "; CREATE TABLE {s}.o (LIKE {s}.t); CREATE RULE r AS ON INSERT TO {s}.t DO INSTEAD INSERT INTO {s}.o VALUES (NEW.*)", "rule r",
            select="SELECT * FROM {s}.o ORDER BY 1"),
    _staged("a rule ON INSERT DO INSTEAD NOTHING", TABLE + "; CREATE RULE r AS ON INSERT TO {s}.t DO INSTEAD NOTHING", "rule r", stops="the merge moved 0 rows, and the manifest says 4"),
    Kind("row-level security, written by its owner", TABLE + "; ALTER TABLE {s}.t ENABLE ROW LEVEL SECURITY"),
    _staged("row-level security that holds for the role", TABLE + "; ALTER TABLE {s}.t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {s}.t FOR INSERT WITH CHECK (id < 5)", "row-level security", plain_role=True),
    Kind("columns that the rows lack: a default, none", "CREATE TABLE {s}.t (id bigint, name text, made text NOT NULL DEFAULT 'now', free text)", read=[(*row, "now", None) for row in READ]),
    Kind("a column that the rows lack, NOT NULL without a default", "CREATE TABLE {s}.t (id bigint, name text, must text NOT NULL)", refused="NOT NULL without a default"),
    Kind("a generated column, stored", "CREATE TABLE {s}.t (id bigint, name text, twice bigint GENERATED ALWAYS AS (id * 2) STORED)", read=[(*row, row[0] * 2) for row in READ]),
    Kind("a generated column, virtual", "CREATE TABLE {s}.t (id bigint, name text, twice bigint GENERATED ALWAYS AS (id * 2))", read=[(*row, row[0] * 2) for row in READ], since=18),
    Kind("a generated column that the rows have too", "CREATE TABLE {s}.t (id bigint, name text GENERATED ALWAYS AS ('x') STORED)", refused="the table generates it always"),
    Kind("an identity column, ALWAYS", "CREATE TABLE {s}.t (id bigint, name text, n bigint GENERATED ALWAYS AS IDENTITY)", select="SELECT id, name, count(n) OVER (), min(n) OVER (), max(n) OVER () FROM {s}.t ORDER BY 1", read=[(*row, 4, 1, 4) for row in READ]),
    Kind("an identity column, ALWAYS, that the rows have too", "CREATE TABLE {s}.t (id bigint GENERATED ALWAYS AS IDENTITY, name text)", refused="the table generates it always"),
    Kind("an identity column, BY DEFAULT, from the rows", "CREATE TABLE {s}.t (id bigint GENERATED BY DEFAULT AS IDENTITY, name text)"),
    Kind("an identity column, BY DEFAULT, that the rows lack", "CREATE TABLE {s}.t (name text, id bigint GENERATED BY DEFAULT AS IDENTITY)", rows={"name": NAMES}, select="SELECT count(DISTINCT id), count(name) FROM {s}.t", read=[(4, 3)]),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type, and rows for it. `read` is what comes back for the one value; None where it is refused."""

    sql: str
    value: Any
    arrow: pa.DataType
    read: Any


STRUCT = pa.struct([("a", pa.int32())])
# {s}.colour is an enum, {s}.small a domain over integer with a CHECK, {s}.smaller a domain over that one with another,
# {s}.pair a composite type; {s}.citext and {s}.hstore are made of text as those extensions make them.
TYPES = [
    ColumnType("{s}.colour", "red", pa.string(), "red"),
    ColumnType("{s}.small", 5, pa.int32(), 5),
    ColumnType("{s}.smaller", 5, pa.int32(), 5),
    ColumnType("{s}.citext", "A", pa.string(), "A"),
    ColumnType("numeric", D("12345678901234567890.5"), pa.decimal128(38, 9), D("12345678901234567890.5")),
    ColumnType("numeric(12,2)", D("1.25"), pa.decimal128(10, 2), D("1.25")),
    ColumnType("json", {"a": 1}, STRUCT, {"a": 1}),
    ColumnType("json", "[1]", pa.string(), [1]),
    ColumnType("jsonb", {"a": 1}, STRUCT, {"a": 1}),
    ColumnType("jsonb", "[1]", pa.string(), [1]),
    ColumnType("jsonb", [[1], []], pa.list_(pa.list_(pa.int32())), [[1], []]),
    ColumnType("uuid", "8c8e0a3b-5b1c-4a6e-9d0f-112233445566", pa.string(), uuid.UUID("8c8e0a3b-5b1c-4a6e-9d0f-112233445566")),
    ColumnType("interval", dt.timedelta(days=1, microseconds=5), pa.duration("us"), dt.timedelta(days=1, microseconds=5)),
    ColumnType("char(3)", "ab", pa.string(), "ab "),
    ColumnType("name", "ab", pa.string(), "ab"),
    ColumnType("bigint[]", [1, None], pa.list_(pa.int32()), [1, None]),
    ColumnType("text[]", ["a", None], pa.list_(pa.string()), ["a", None]),
    ColumnType("timestamp(3)", dt.datetime(2024, 1, 2, 3, 4, 5, 678000), pa.timestamp("ms"), dt.datetime(2024, 1, 2, 3, 4, 5, 678000)),
    ColumnType("timestamp(3)", dt.datetime(2024, 1, 2), pa.timestamp("us"), None),
    ColumnType("varchar(9)[]", ["a"], pa.list_(pa.string()), None),
    ColumnType("{s}.colour[]", ["red"], pa.list_(pa.string()), None),
    ColumnType("{s}.small[]", [5], pa.list_(pa.int32()), None),
    ColumnType("{s}.pair", {"a": 1}, STRUCT, None),
    ColumnType("{s}.hstore", "a=>1", pa.string(), None),
    ColumnType("inet", "10.0.0.1", pa.string(), None),
    ColumnType("cidr", "10.0.0.0/8", pa.string(), None),
    ColumnType("macaddr", "08:00:2b:01:02:03", pa.string(), None),
    ColumnType("money", D("1.25"), pa.decimal128(10, 2), None),
    ColumnType("xml", "<a/>", pa.string(), None),
    ColumnType("bit(3)", "101", pa.string(), None),
    ColumnType("bit varying(9)", "101", pa.string(), None),
    ColumnType("int4range", "[1,5)", pa.string(), None),
    ColumnType("tstzmultirange", "{}", pa.string(), None),
    ColumnType("point", "(1,2)", pa.string(), None),
    ColumnType("tsvector", "a", pa.string(), None),
    ColumnType("oid", 5, pa.int32(), None),
    ColumnType("time with time zone", dt.time(1), pa.time64("us"), None),
]  # fmt: skip
TYPES_SETUP = """
CREATE TYPE {s}.colour AS ENUM ('red', 'green');
CREATE DOMAIN {s}.small AS integer CHECK (VALUE < 10);
CREATE DOMAIN {s}.smaller AS {s}.small CHECK (VALUE < 9);
CREATE TYPE {s}.pair AS (a integer, b text);
""" + "".join(
    f"""
CREATE TYPE {{s}}.{name};
CREATE FUNCTION {{s}}.{name}in(cstring) RETURNS {{s}}.{name} LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION {{s}}.{name}out({{s}}.{name}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE FUNCTION {{s}}.{name}recv(internal) RETURNS {{s}}.{name} LANGUAGE internal STABLE STRICT AS 'textrecv';
CREATE FUNCTION {{s}}.{name}send({{s}}.{name}) RETURNS bytea LANGUAGE internal STABLE STRICT AS 'textsend';
CREATE TYPE {{s}}.{name} (INPUT = {{s}}.{name}in, OUTPUT = {{s}}.{name}out, RECEIVE = {{s}}.{name}recv,
    SEND = {{s}}.{name}send, INTERNALLENGTH = VARIABLE, STORAGE = extended, LIKE = text);
"""
    for name in ("citext", "hstore")
)


def tables() -> Iterator[str]:
    yield "| The target | `two_phase` | `staged` | `auto` takes | because |"
    yield "| --- | --- | --- | --- | --- |"
    for kind in KINDS:
        if kind.refused:
            yield f"| {kind.name} | refused | refused | | {kind.refused} |"
        else:
            two_phase, staged = "refused" if kind.not_two_phase else "yes", "stops" if kind.stops else "yes"
            because = f"{kind.because}; then: {kind.stops}" if kind.stops else kind.because
            yield f"| {kind.name} | {two_phase} | {staged} | `{kind.auto}` | {because} |"
    yield ""
    yield "| The column's type | Arrow type of the rows | |"
    yield "| --- | --- | --- |"
    notes = {"colour": "an enum", "small": "a domain over integer", "smaller": "a domain over that domain", "pair": "a composite type"}  # fmt: skip
    for column in TYPES:
        sql = column.sql.replace("{s}.", "")
        note = notes.get(sql.removesuffix("[]"))
        shown = f"`{sql}`" + (f", {note}" if note else "")
        yield f"| {shown} | `{column.arrow}` | {'refused' if column.read is None else 'yes'} |"

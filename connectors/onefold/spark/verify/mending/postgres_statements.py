"""Statements that mend a table of Postgres. Its own server writes the values down, from the bytes that the sink would
have sent: so they are what the pipeline would have written, of every type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.quoting import identifier
from onefold.core.checks import present
from onefold.core.values.plain import plain
from onefold.sinks.postgres import PostgresSink
from onefold.sinks.postgres.copy.encoding import Encoding
from onefold.sinks.postgres.copy.loading import BisectingLoad
from onefold.sinks.postgres.ledger import layout
from onefold.sinks.postgres.schema import target
from onefold.sinks.postgres.sink_options import Delivery
from onefold.sinks.postgres.sink_plan import ATTEMPT, planned
from onefold.spark.verify.comparing.wrong_rows import WrongRows, statement

_STAGE = "onefold_mending"
_ROWS_MAX = 2**31
# How values are written down, so that any session reads them as the same.
_FORMS = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}


def others(sink: PostgresSink, pipeline: str) -> list[str]:
    """The other pipelines whose ledger has a sink of this name, which is the table's unless it was given another."""
    settings = sink.settings
    with pool.borrow(
        settings.conninfo("verify"), f"looking for others that write into {settings.target}"
    ) as connection:
        is_there = layout.is_there(connection, settings.ledger, to_look=True)
        return sorted(settings.bookkeeping(pipeline).others(connection)) if is_there else []


def statements(sink: PostgresSink, wrong: WrongRows) -> Iterator[str]:
    """The statements, and a comment for each row that Postgres does not take. Writes into a table of the session's own
    alone, which ends with it. Raises SchemaMismatch where the rows do not fit."""
    yield "SET LOCAL client_encoding = 'UTF8';"  # as the file is, whatever psql's own
    settings = replace(sink.settings, mode="append", key=(), order=(), delete_when_true=None, delete_when_null=None)
    with pool.borrow(settings.conninfo("verify"), f"writing a plan for {settings.target}") as connection:
        table = present(target.find(connection, settings.target), f"no table {settings.target}, which was compared")
        parts = wrong.parts()
        plan = planned(settings, "verify", parts["INSERT"].schema, table, (Delivery.STAGED, "for a plan"), 0)
        plan = replace(plan, stage_table=f"pg_temp.{_STAGE}", position=())
        names = [column.name for column in plan.columns]
        with connection.transaction():
            for name, value in _FORMS.items():
                connection.execute("SELECT set_config(%s, %s, true)", (name, value))
            kinds = ", ".join(f"{identifier(column)} {kind}" for column, kind in plan.stage_columns)
            connection.execute(f"CREATE TEMP TABLE {_STAGE} ({kinds}) ON COMMIT DROP".encode())
            for number, rows in enumerate(parts.values()):
                load = BisectingLoad(connection, Encoding(plan, number), (), _ROWS_MAX)
                for batch in rows.to_batches():
                    load.add(batch)
                load.finish()
                yield from (f"-- left out: {plain(letter.row)} ({plain(letter.reason)})" for letter in load.dead)
            texts = ", ".join(f"quote_nullable({identifier(name)}::text)" for name in names)
            found = connection.execute(f"SELECT {ATTEMPT}, {texts} FROM {_STAGE} ORDER BY ctid".encode()).fetchall()
    verbs, quoted = [*parts], [*map(identifier, names)]
    for number, *values in sorted(found, key=lambda row: int(row[0])):
        yield statement(
            verbs[number], plan.target, dict(zip(quoted, values, strict=True)), [*map(identifier, wrong.key)]
        )

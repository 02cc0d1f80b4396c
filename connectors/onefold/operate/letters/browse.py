"""The dead letters of a pipeline, where they are in Postgres tables: records that could not be read, and rows that
Postgres refused. They are read within a bound: the tables may be large, and are in the database of the sink."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from onefold.clients.postgres import sessions as pool
from onefold.clients.postgres.sessions import Connection
from onefold.core import Retriable
from onefold.operate.letters.letter import FoundLetters, Letter, ReasonCount, RecordPlace, puts_rows_aside
from onefold.operate.letters.resend_marks import marks_of
from onefold.pipeline import Pipeline
from onefold.sinks import PostgresSink
from onefold.sinks.postgres.naming import SENT_AGAIN, TargetName
from onefold.sinks.postgres.sink_options import PostgresSinkConfig

WITHIN_S = 5.0  # of one statement
REASONS_MAX = 100
REASON_CHARACTERS = 200  # by which letters are counted
SHOWN_BYTES_MAX = 4096  # of each value, and of all headers of a letter as the table has them


def newest(pipeline: Pipeline, limit: int, reason: str = "") -> FoundLetters:
    """The newest letters first, at most `limit` of each sink, of those that have `reason` in theirs. Raises Retriable
    where a server does not answer."""
    has = sql.SQL("AND strpos(reason, {}) > 0").format(sql.Literal(reason)) if reason else sql.SQL("")
    letters: list[Letter] = []
    for settings in _tables_of_records(pipeline):
        letters += _records(settings, pipeline.name, limit, has)
    for settings in _tables_of_rows(pipeline):
        letters += _rows(settings, pipeline.name, limit, has)
    elsewhere = [sink.name for sink in pipeline.dead_letters if not isinstance(sink, PostgresSink)]
    return FoundLetters(sorted(letters, key=lambda letter: -letter.epoch), elsewhere)


def whole(pipeline: Pipeline, place: RecordPlace) -> Letter | None:
    """The letter of that record, with all that is kept of it."""
    at = sql.SQL("AND source_topic = {} AND source_partition = {} AND source_offset = {}").format(
        *map(sql.Literal, (place.topic, place.partition, place.offset))
    )
    found = (one for each in _tables_of_records(pipeline) for one in _records(each, pipeline.name, 1, at, 2**31 - 1))
    return next(found, None)


def reasons(pipeline: Pipeline) -> list[ReasonCount]:
    """How many letters have which reason, the most first; of each sink at most `REASONS_MAX`."""
    query = sql.SQL(
        "SELECT left(reason, {characters}), count(*), min(epoch), max(epoch) FROM {table} WHERE pipeline = {pipeline}"
        " {has} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {limit}"
    )
    of_sink = sql.SQL("AND sink = {sink}")
    tables: list[tuple[PostgresSinkConfig, TargetName, sql.Composable]]
    tables = [(each, each.target, sql.SQL("")) for each in _tables_of_records(pipeline)]
    tables += [(each, each.rejects, of_sink.format(sink=sql.Literal(each.name))) for each in _tables_of_rows(pipeline)]
    found = [
        ReasonCount(settings.name, *row)
        for settings, table, has in tables
        for row in _read(settings, table, query, pipeline.name, REASONS_MAX, "pipeline, epoch", has)
    ]
    return sorted(found, key=lambda each: -each.letters)


def _tables_of_records(pipeline: Pipeline) -> list[PostgresSinkConfig]:
    return [sink.settings for sink in pipeline.dead_letters if isinstance(sink, PostgresSink)]


def _tables_of_rows(pipeline: Pipeline) -> list[PostgresSinkConfig]:
    return [sink.settings for sink in pipeline.sinks if isinstance(sink, PostgresSink) and puts_rows_aside(sink)]


def _records(
    settings: PostgresSinkConfig, pipeline: str, limit: int, has: sql.Composable, shown: int = SHOWN_BYTES_MAX
) -> Iterator[Letter]:
    query = sql.SQL(
        "SELECT source_topic, source_partition, source_offset,"
        " CASE WHEN source_timestamp BETWEEN '0001-01-02' AND '9999-12-30' THEN source_timestamp END,"  # as Python has
        " left(reason, {shown}), epoch, substring(key for {shown}), substring(value for {shown}), octet_length(value),"
        " left(headers::text, {shown})"
        " FROM (SELECT * FROM {table} WHERE pipeline = {pipeline} {has} ORDER BY epoch DESC LIMIT {limit}) AS newest"
        " ORDER BY epoch DESC, source_partition, source_offset DESC"
    )
    with _reading(settings, TargetName(settings.ledger, SENT_AGAIN), "pipeline") as connection:
        marks = marks_of(connection, settings, pipeline)
    for row in _read(settings, settings.target, query, pipeline, limit, "pipeline, epoch", has, shown):
        topic, partition, offset, at, reason, epoch, key, value, size, headers = row
        yield Letter(
            sink=settings.name,
            epoch=epoch,
            at=at,
            reason=reason,
            place=RecordPlace(topic, partition, offset),
            position=None,
            key=key,
            value=value,
            value_bytes=size,
            headers=_first_headers(headers or ""),
            mark=marks.get((topic, partition, offset)),
        )


def _rows(settings: PostgresSinkConfig, pipeline: str, limit: int, has: sql.Composable) -> Iterator[Letter]:
    query = sql.SQL(
        "SELECT epoch, at, left(reason, {shown}), CASE WHEN octet_length(position::text) <= {shown} THEN position END,"
        ' left("row"::text, {shown}), octet_length("row"::text)'
        " FROM (SELECT * FROM {table} WHERE pipeline = {pipeline} AND sink = {sink} {has}"
        " ORDER BY epoch DESC LIMIT {limit}) AS newest ORDER BY epoch DESC"
    )
    found = _read(settings, settings.rejects, query, pipeline, limit, "pipeline, sink, epoch", has)
    for epoch, at, reason, position, row, size in found:
        yield Letter(settings.name, epoch, at, reason, None, position, None, row.encode(), size, ())


def _read(
    settings: PostgresSinkConfig,
    table: TargetName,
    query: sql.SQL,
    pipeline: str,
    limit: int,
    index: str,
    has: sql.Composable,
    shown: int = SHOWN_BYTES_MAX,
) -> list[tuple[Any, ...]]:
    """The rows of a query; none where the table is not there yet. It first finds which letters are the newest, by an
    index where there is one, and then reads the contents of these alone."""
    with _reading(settings, table, index) as connection:
        ((name,),) = connection.execute("SELECT to_regclass(%s)::text", (table.sql,))
        if name is None:
            return []
        filled = query.format(
            table=sql.SQL(table.sql),
            pipeline=sql.Literal(pipeline),
            sink=sql.Literal(settings.name),
            limit=sql.Literal(limit),
            shown=sql.Literal(shown),
            has=has,
            characters=sql.Literal(REASON_CHARACTERS),
        )
        return connection.execute(filled).fetchall()


@contextmanager
def _reading(settings: PostgresSinkConfig, table: TargetName, index: str) -> Iterator[Connection]:
    """A transaction that reads this table. `index` names the columns that let it read no more than it needs.

    Raises Retriable where a statement takes longer than `WITHIN_S`: the server has ended it then.
    """
    with pool.borrow(settings.conninfo("dead letters"), f"reading {table}") as connection:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL statement_timeout = {int(WITHIN_S * 1000)}".encode())
                yield connection
        except psycopg.errors.QueryCanceled as error:
            raise Retriable(
                "letters-slow",
                f"what is wanted of table {table} was not found within {WITHIN_S:g} s, and the query was ended. With an"
                f" index it is found at once: CREATE INDEX ON {table.sql} ({index}). Where there is one, somebody else"
                " locks the table: ask again later",
            ) from error


def headers_of(stored: object) -> list[tuple[str, bytes | None]]:
    """A record's headers, whose values the table has in base64. Raises ValueError for what onefold has not written."""
    try:
        found = json.loads(stored) if isinstance(stored, str) else stored
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return [*map(_header, found)] if isinstance(found, list) else []


def _header(one: Any) -> tuple[str, bytes | None]:
    try:
        key, value = one["key"], one["value"]
        if not isinstance(key, str):
            raise TypeError("a key is no text")
        return key, None if value is None else base64.b64decode(value)
    except (TypeError, KeyError) as error:
        raise ValueError("it is no header") from error


def _first_headers(text: str) -> list[tuple[str, bytes | None]]:
    """Those of the headers that are whole in the beginning of what the table has, up to one that is none."""
    decoder, found, at = json.JSONDecoder(), list[tuple[str, bytes | None]](), text.find("{")
    while at != -1:
        try:
            one, end = decoder.raw_decode(text, at)
            found.append(_header(one))
        except (ValueError, RecursionError):
            break  # it is cut here, or somebody else has written it
        at = text.find("{", end)
    return found

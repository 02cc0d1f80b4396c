"""Several statements in one message to Postgres: one round trip, in which the server runs them one after the other.

After the first error it runs none of the rest. Values are written into the text, since a message with parameters has
one statement. To plan one of an epoch's statements takes the server longer than to run it: a session that is its own
prepares each once. A COPY may be among them: the server asks for its data in the middle of the message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import errors, generators, waiting
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from onefold.clients.sql.database_backend import Answer, answered, answered_by

Statement = tuple[Any, Any]  # the query, a text, and its parameters, None, or what a COPY FROM STDIN takes


@dataclass(frozen=True, slots=True)
class CopyData:
    """What a COPY FROM STDIN takes, in pieces."""

    pieces: Sequence[bytes]


# By connection: how each query that its session has prepared is executed. It takes the same parameters.
_plans: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
_PARAMETER = re.compile(r"%(?:\((\w+)\)s|s|%)")
_PLAN_LOST = ("26000", "0A000")  # the session has no such statement; its result would be another one now
_numbers = itertools.count(1)
_PIECE_BYTES_MAX = 128 << 10  # that libpq is given at once


def may_prepare(connection: Any) -> None:
    """From now on `send` prepares statements with parameters in the connection's session, which no pooler shares."""
    _plans[connection] = {}


def send(cursor: Any, statements: Sequence[Statement], *, before: str = "", after: str = "") -> list[Answer]:
    """What the statements answer, by a `psycopg.ClientCursor`. `before` them runs what begins their transaction, and
    `after` them the one statement that ends it."""
    plans = _plans.get(cursor.connection)
    texts, asked, added = list[str](), list[int](), dict[str, str]()
    for query, parameters in statements:
        call = query
        if plans is not None and parameters is not None and not isinstance(parameters, CopyData):
            call = plans.get(query) or added.get(query)
            if call is None:
                # Not before its turn: it waits for locks, and the statements before it may say for how long.
                text, call = _prepared(query)
                texts.append(text)
                added[query] = call
        asked.append(len(texts))
        texts.append(call if isinstance(parameters, CopyData) else cursor.mogrify(call, parameters))
    message = ";".join(text for text in (before, *texts, after) if text).encode()
    copies = [data for _, data in statements if isinstance(data, CopyData)]
    try:
        found = _sent_with_data(cursor.connection, message, copies) if copies else _sent(cursor, message)
    except Exception as error:
        if plans and getattr(error, "sqlstate", None) in _PLAN_LOST:
            plans.clear()  # the next message prepares anew
        raise
    if plans is not None:
        plans |= added
    first = len(found) - len(texts) - bool(after)
    return [found[first + number] for number in asked]


def _sent(cursor: Any, message: bytes) -> list[Answer]:
    cursor.execute(message)
    found = [answered(cursor)]
    while cursor.nextset():
        found.append(answered(cursor))
    return found


def _sent_with_data(connection: Any, message: bytes, copies: Sequence[CopyData]) -> list[Answer]:
    """psycopg's cursor takes no message of several statements with a COPY among them; libpq does."""
    with connection.lock:
        results = connection.wait(_copying(connection.pgconn, message, copies))
    if results[-1].status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(results[-1], encoding=connection.info.encoding)
    loading: Any = Transformer(connection)
    return [_answer(loading, result) for result in results]


def _copying(
    pgconn: PGconn, message: bytes, copies: Sequence[CopyData]
) -> Generator[waiting.Wait, waiting.Ready, list[PGresult]]:
    pgconn.send_query(message)
    results: list[PGresult] = yield from generators.execute(pgconn)
    for data in copies:
        if results[-1].status != ExecStatus.COPY_IN:
            break  # an error came before it
        results.pop()
        for piece in data.pieces:
            for at in range(0, len(piece), _PIECE_BYTES_MAX):
                yield from generators.copy_to(pgconn, memoryview(piece)[at : at + _PIECE_BYTES_MAX])
        while pgconn.put_copy_end() == 0:
            yield waiting.WAIT_W
        results += yield from generators.execute(pgconn)
    return results


def _answer(loading: Any, result: PGresult) -> Answer:
    if result.status != ExecStatus.TUPLES_OK:
        return Answer([], -1 if result.command_tuples is None else result.command_tuples)
    loading.set_pgresult(result)
    names = tuple((result.fname(n) or b"").decode() for n in range(result.nfields))
    return answered_by(names, loading.load_rows(0, result.ntuples, tuple), result.ntuples)


def _prepared(query: str) -> tuple[str, str]:
    """The statement that prepares the query, and that which executes it. A name is never used again: where the message
    failed it may be taken."""
    name, parameters = f"onefold_{next(_numbers)}", list[str]()

    def numbered(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if found[1] is None or found[0] not in parameters:
            parameters.append(found[0])
            return f"${len(parameters)}"
        return f"${parameters.index(found[0]) + 1}"

    text = _PARAMETER.sub(numbered, query)
    return f"PREPARE {name} AS {text}", f"EXECUTE {name}" + (f"({', '.join(parameters)})" if parameters else "")

"""Several statements in one message to Postgres: one round trip, in which the server runs them one after the other.

After the first error it runs none of the rest. Values are written into the text, since a message with parameters has
one statement. To plan one of an epoch's statements takes the server longer than to run it: a session that is its own
prepares each once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from onefold.clients.sql.database_backend import Answer, answered

__all__ = ["Answer", "Statement", "may_prepare", "send"]

Statement = tuple[Any, Any]  # the query, a text, and its parameters or None

# By connection: how each query that its session has prepared is executed. It takes the same parameters.
_plans: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
_PARAMETER = re.compile(r"%(?:\((\w+)\)s|s|%)")
_PLAN_LOST = ("26000", "0A000")  # the session has no such statement; its result would be another one now
_numbers = itertools.count(1)


def may_prepare(connection: Any) -> None:
    """From now on `send` prepares statements with parameters in the connection's session, which no pooler shares."""
    _plans[connection] = {}


def send(cursor: Any, statements: Sequence[Statement], *, before: str = "", after: str = "") -> list[Answer]:
    """What the statements answer, by a `psycopg.ClientCursor`. `before` them runs what begins their transaction, and
    `after` them the one statement that ends it."""
    plans = _plans.get(cursor.connection)
    preparing, executing, added = [], [], dict[str, str]()
    for query, parameters in statements:
        call = query
        if plans is not None and parameters is not None:
            call = plans.get(query) or added.get(query)
            if call is None:
                text, call = _prepared(query)
                preparing.append(text)
                added[query] = call
        executing.append(cursor.mogrify(call, parameters))
    try:
        cursor.execute(";".join(text for text in (before, *preparing, *executing, after) if text).encode())
    except Exception as error:
        if plans and getattr(error, "sqlstate", None) in _PLAN_LOST:
            plans.clear()  # the next message prepares anew
        raise
    if plans is not None:
        plans |= added
    found = [answered(cursor)]
    while cursor.nextset():
        found.append(answered(cursor))
    return found[len(found) - len(statements) - bool(after) :][: len(statements)]


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

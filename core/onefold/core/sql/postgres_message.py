"""Several statements in one message to Postgres: one round trip, in which the server runs them one after the other.

After the first error it runs none of the rest. Values are written into the text, since a message with parameters has
one statement; and nothing is prepared, since a pooler may give each transaction another session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Answer", "Statement", "answers", "send"]

Statement = tuple[Any, Any]  # the query, and its parameters or None


class Answer(NamedTuple):
    """What a statement answered: its rows, and how many it returned or changed."""

    rows: list[Any]
    rowcount: int


def send(cursor: Any, statements: Sequence[Statement], *, before: str = "", after: str = "") -> None:
    """Run the statements between those of `before` and `after`, by a `psycopg.ClientCursor`, which then has the results
    of all."""
    texts = [before, *(cursor.mogrify(query, parameters) for query, parameters in statements), after]
    cursor.execute(";".join(text for text in texts if text).encode())


def answers(cursor: Any) -> list[Answer]:
    """All results from the cursor's present one on."""
    found: list[Answer] = []
    while not found or cursor.nextset():
        found.append(Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount))
    return found

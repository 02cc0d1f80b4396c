"""What Postgres's errors mean, by SQLSTATE or by words: the store, the sink and the source go by it."""

from __future__ import annotations

import pytest

from onefold.clients.postgres import sqlstates
from onefold.clients.sql.database_backend import Meaning


@pytest.mark.parametrize(
    ("state", "text", "meaning"),
    [
        ("22003", "numeric value out of range", Meaning.BAD_ROW),
        ("23505", "duplicate key", Meaning.BAD_ROW),
        ("OR001", "a trigger's own", Meaning.BAD_ROW),
        ("54000", "index row size exceeds maximum", Meaning.BAD_ROW),
        ("42501", "permission denied", Meaning.HOPELESS),
        ("53400", "temporary file size exceeds temp_file_limit", Meaning.HOPELESS),
        ("53100", "could not extend file: No space left on device", Meaning.EXHAUSTED),
        ("40001", "could not serialize access", Meaning.PASSING),
        ("55P03", "canceling statement due to lock timeout", Meaning.PASSING),
        ("55006", "database is being accessed by other users", Meaning.PASSING),
        ("55000", 'prepared transaction with identifier "onefold/a" is busy', Meaning.PASSING),
        ("55000", "cannot delete from table t because it does not have a replica identity", Meaning.HOPELESS),
        ("55P02", "parameter cannot be changed now", Meaning.HOPELESS),
        ("55P04", "unsafe use of new value of enum type", Meaning.HOPELESS),
        ("42622", "identifier too long", Meaning.BAD_ROW),
        ("57014", "canceling statement due to user request", Meaning.PASSING),
        ("25006", "cannot execute INSERT in a read-only transaction", Meaning.PASSING),
        ("0A000", "cannot set transaction read-write mode during recovery", Meaning.PASSING),
        ("0A000", "not supported", Meaning.HOPELESS),
        ("57P01", "terminating connection due to administrator command", Meaning.BROKEN),
        ("40003", "statement completion unknown", Meaning.BROKEN),
        ("25P03", "terminating connection due to idle-in-transaction timeout", Meaning.BROKEN),
        ("08006", "connection failure", Meaning.BROKEN),
        ("XX000", "internal error", Meaning.UNKNOWN),
        ("", "password authentication failed for user", Meaning.HOPELESS),
        ("", "sorry, too many clients already", Meaning.EXHAUSTED),
        ("", "session is read-only", Meaning.PASSING),
        ("", "session is read-only; no password supplied", Meaning.HOPELESS),
        ("", "Connection refused", Meaning.BROKEN),
    ],
)
def test_each_error_has_its_meaning(state: str, text: str, meaning: Meaning) -> None:
    assert sqlstates.meaning(state, text) is meaning


@pytest.mark.parametrize("state", ["23505", "42P06", "42P07", "42710"])
def test_each_way_that_two_who_create_the_same_thing_collide_means_that_it_is_there(state: str) -> None:
    assert sqlstates.is_there_already(state)

"""Several statements in one message, on a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from onefold.clients.postgres.message import Statement, may_prepare, send

pytestmark = pytest.mark.servers

ASKING: Statement = ("SELECT %(a)s::int + %(b)s::int, %(a)s::int, 100 %% 7", {"a": 1, "b": 2})


@pytest.fixture
def cursor(postgres_url: str) -> Iterator[psycopg.ClientCursor]:
    with psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None) as connection:
        may_prepare(connection)
        yield psycopg.ClientCursor(connection)


def test_each_query_is_prepared_once_and_answers_in_its_place(cursor: psycopg.ClientCursor) -> None:
    for _ in range(2):
        found = send(cursor, [ASKING, ("SELECT 4 WHERE true", {}), ASKING], before="BEGIN", after="COMMIT")
        assert [answer.rows for answer in found] == [[(3, 1, 2)], [(4,)], [(3, 1, 2)]]
    assert cursor.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (2,)


@pytest.mark.parametrize("lost", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_session_that_lost_its_prepared_statements_prepares_them_anew(
    cursor: psycopg.ClientCursor, lost: str
) -> None:
    send(cursor, [ASKING])
    cursor.execute(lost)  # type: ignore[arg-type]  # a literal of this file
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        send(cursor, [ASKING], before="BEGIN", after="COMMIT")
    cursor.connection.rollback()
    (found,) = send(cursor, [ASKING], before="BEGIN", after="COMMIT")
    assert found.rows == [(3, 1, 2)]


def test_a_plan_whose_result_would_be_another_one_is_made_anew(cursor: psycopg.ClientCursor) -> None:
    all_of = ("SELECT * FROM changing WHERE %(a)s::int = 1", {"a": 1})
    cursor.execute("CREATE TEMP TABLE changing (id int)")
    send(cursor, [all_of])
    cursor.execute("ALTER TABLE changing ADD name text")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        send(cursor, [all_of])
    assert send(cursor, [all_of])[0].rows == []

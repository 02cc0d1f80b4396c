"""What a user says of a Postgres source, and the same as options."""

from __future__ import annotations

from typing import Any

import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.sources import PostgresSource

URL = "postgresql://user:secret@localhost/shop"


def test_a_source_and_its_options_say_the_same() -> None:
    source = PostgresSource(
        URL,
        "shop.Orders",
        columns=["id", 'odd "name", here', " spaced "],
        where="amount > 0",
        split_by="id",
        splits=3,
        snapshot="00000005-00000002-1@1763714000123456",
        narrowing="check",
        statement_timeout_s=1.5,
        lock_timeout_s=0.25,
    )
    assert PostgresSource.from_options(source.options()) == source
    lower = {name.lower(): value for name, value in source.options().items()}
    assert PostgresSource.from_options(lower) == source
    query = PostgresSource(URL, query="SELECT 1")
    assert PostgresSource.from_options(query.options()) == query


def test_the_url_with_its_password_is_not_shown() -> None:
    assert "secret" not in repr(PostgresSource(URL, "t"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "either a table or a query"),
    ({"table": "t", "query": "SELECT 1"}, "either a table or a query"),
    ({"url": " ", "table": "t"}, "the url is missing"),
    ({"table": "t", "columns": "id"}, r"columns=\['id'\]"),
    ({"table": "t", "columns": []}, "at least one"),
    ({"table": "t", "columns": ["a", "a"]}, "each column once"),
    ({"table": "t", "splits": 0}, "from 1 to 10000"),
    ({"table": "t", "splits": True}, "from 1 to 10000"),
    ({"table": "t", "snapshot": "x'; DROP TABLE t; --"}, "pg_export_snapshot"),
    ({"table": "t", "narrowing": "yes"}, "'refuse' or 'check'"),
    ({"table": "t", "lock_timeout_s": -1}, "lock_timeout_s is a time"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_settings_that_cannot_be_are_refused_without_asking_a_server(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PostgresSource(**{"url": URL, **settings})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"table": "t"}, "option-missing"),
        ({"url": URL, "dbtable": "t"}, "option-not-allowed"),
        ({"url": URL, "table": "t", "numPartitions": "3"}, "option-not-allowed"),
        ({"url": URL, "tabel": "t"}, "option-unknown"),
        ({"url": URL, "table": "t", "xyz": "1"}, "option-unknown"),
        ({"url": URL, "table": "t", "splits": "many"}, "option-value"),
        ({"url": URL, "table": "t", "statementTimeoutS": "1s"}, "option-value"),
    ],
)
def test_options_that_do_not_exist_are_refused_with_what_does(options: dict[str, str], code: str) -> None:
    with raises(ConfigError, code):
        PostgresSource.from_options(options)

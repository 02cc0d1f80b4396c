"""Our own sinks and stores against the public conformance kit, on real servers."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest

from onefold.core.testing import check_sink
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers
CALLS = {"write", "writer's abort", "prepare", "abort", "commit", "record", "open", "recover"}
WAITING = {
    "two_phase": "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()",
    "staged": """SELECT count(*) + (SELECT count(*) FROM onefold_sinks.onefold_staged) FROM pg_class,
                 LATERAL query_to_xml(format('SELECT FROM %s', oid::regclass), false, false, '') AS stage,
                 LATERAL unnest(xpath('/table/row', stage)) WHERE relname LIKE 'onefold_stage_%%' AND relkind = 'r'""",
}


@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_the_postgres_sink_keeps_its_promises(postgres_url: str, delivery: str) -> None:
    def ask(query: str) -> list[int]:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            return [value for (value,) in connection.execute(query.encode())]

    report = check_sink(
        partial(PostgresSink, postgres_url, "t", delivery=delivery),
        rows=lambda: ask("SELECT id FROM t"),
        prepared=lambda: ask(WAITING[delivery])[0],
        make_sibling=partial(PostgresSink, postgres_url, "t", name="sibling", delivery=delivery),
    )
    print(f"\n{report}")
    assert report.strikes.keys() == (CALLS | {"merge"} if delivery == "staged" else CALLS)
    assert report.seconds < 60

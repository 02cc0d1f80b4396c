"""Our own sinks and stores against the public conformance kit, on real servers."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from onefold.core.testing import check_sink, check_store
from onefold.sinks import PostgresSink

pytestmark = pytest.mark.servers
STEPS_MAX = 6  # within each call; the kit's default is more
STORE_CALLS = {"acquire", "freeze", "open_epoch", "decide", "complete", "give_up", "damage", "accept_damage", "adopt"}
CALLS = {"write", "writer's abort", "prepare", "abort", "commit", "record", "open", "recover"}


class Ask:
    """The server's own view, over connections that the sink knows nothing of."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, query: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return [value for (value,) in connection.execute(query.encode())]

    def waiting(self) -> int:
        """Prepared transactions, staged rows, and attempts that are listed as staged."""
        stages = self("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^onefold_stage_' AND relkind = 'r'")
        staged = "".join(f" + (SELECT count(*) FROM {stage})" for stage in [*stages, "onefold_sinks.onefold_staged"])
        gids = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        return int(self(f"SELECT ({gids}){staged}")[0])


@pytest.mark.parametrize("delivery", ["two_phase", "staged"])
def test_the_postgres_sink_keeps_its_promises(postgres_url: str, delivery: str) -> None:
    ask = Ask(postgres_url)
    report = check_sink(
        partial(PostgresSink, postgres_url, "t", delivery=delivery),
        rows=lambda: ask("SELECT id FROM t"),
        prepared=ask.waiting,
        make_sibling=partial(PostgresSink, postgres_url, "t", name="sibling", delivery=delivery),
        steps_max=STEPS_MAX,
    )
    print(f"\n{report}")
    assert report.strikes.keys() == (CALLS | {"merge"} if delivery == "staged" else CALLS)


def test_the_checkpoint_store_keeps_its_promises(postgres_url: str) -> None:
    """On Postgres; core/tests has it on SQLite."""
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    report = check_store(url, steps_max=STEPS_MAX)
    print(f"\n{report}")
    assert report.strikes.keys() == STORE_CALLS

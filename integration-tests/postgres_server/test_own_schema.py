"""All of onefold's own tables are in one schema, which is found whatever the search_path says."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg.conninfo
import pyarrow as pa
import pytest
from harness.calls import Ask
from harness.pipeline_drivers import Epochs, MakeWorld

from onefold.clients.postgres.store import store_url
from onefold.core import ConfigError
from onefold.sinks import PostgresSink
from onefold.store.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.servers

PAGE = Path(__file__).parents[2] / "docs/postgres-connections.md"
OURS = """
SELECT n.nspname, regexp_replace(c.relname, '_[0-9a-f]{32}(_[0-9a-f]{12})?$', '_...')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relname ~ '^onefold_'
ORDER BY 1, 2
"""


@pytest.fixture
def role(ask: Ask) -> Iterator[str]:
    name = f"loader_{uuid.uuid4().hex[:8]}"
    ask(f"CREATE ROLE {name} LOGIN")
    yield name
    for gid in ask.gids():
        ask(f"ROLLBACK PREPARED '{gid}'")
    ask(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    return psycopg.conninfo.make_conninfo(url, user=role)


def test_a_real_run_makes_the_tables_of_the_page_and_no_others(make: MakeWorld, postgres_url: str, ask: Ask) -> None:
    world = make("t", delivery="two_phase")
    world.start()
    world.epoch(0)
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("gone", pa.bool_())])
    upserts = PostgresSink(
        postgres_url,
        "u",
        mode="upsert",
        key="id",
        order="v",
        delete_when_true="gone",
        on_error="dead_letter",
        evolve=True,
    )
    with Epochs(upserts, schema, pipeline="q") as epochs:
        epochs.run(pa.record_batch([[1, 2], [1, 1], [False, False]], schema=schema))
    listed = PAGE.read_text().partition("### All of onefold's tables")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?`) \|", listed, re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`(\w+(?:\.\.\.)?)`", cell)}
    names.remove("onefold_sent_again")  # which no run makes: somebody sends a dead letter again
    assert sorted(("onefold_sinks", name) for name in names) == sorted(ask(OURS))


def test_the_schema_that_the_page_documents_is_all_that_a_role_needs_beside_another_roles_pipelines(
    make: MakeWorld, postgres_url: str, ask: Ask, role: str
) -> None:
    other = make("other", pipeline="p", store=store_url(postgres_url, schema="public"))
    other.start()
    other.epoch(0)
    before = ask(OURS)
    ask(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    mine = PostgresSink(as_role(postgres_url, role), f"{role}.orders", name="t", delivery="two_phase", ledger=role)
    world = make(mine)
    world.start()
    world.epoch(0)
    assert world.ids(f"{role}.orders") == list(range(10))
    made = [each for each in ask(OURS) if each not in before]
    assert {schema for schema, _ in made} == {role} and (role, "onefold_store") in made
    other.epoch(1)
    assert other.ids("other") == list(range(20))


def test_a_missing_right_is_named_with_the_schema_its_owner_the_role_and_what_mends_it(
    make: MakeWorld, postgres_url: str, ask: Ask, role: str
) -> None:
    (owner,) = ask("SELECT current_user")[0]
    url = as_role(postgres_url, role)
    store = store_url(url)

    def store_of_role() -> None:
        try:
            opened = CheckpointStore(store)
            opened.id()
        finally:
            opened.close()

    for refused in (store_of_role, lambda: PostgresSink(url, "t").recover("p")):
        with pytest.raises(
            ConfigError, match=rf'CREATE SCHEMA "onefold_sinks" AUTHORIZATION "{role}", or GRANT CREATE'
        ):
            refused()
    world = make()
    world.start()
    world.epoch(0)
    said = rf"role '{role}' may not \w+ onefold_sinks\.\w+, .* in schema 'onefold_sinks' of role '{owner}'.*GRANT USAGE"
    for refused in (store_of_role, lambda: PostgresSink(url, "t").recover("p")):
        with pytest.raises(ConfigError, match=said):
            refused()
    ask(f"GRANT USAGE ON SCHEMA onefold_sinks TO {role}")
    ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA onefold_sinks TO {role}")
    store_of_role()
    PostgresSink(url, "t").recover("p").close()
    ask("DROP TABLE onefold_sinks.onefold_pins")
    created = (
        rf"role '{role}' may not create .* in schema 'onefold_sinks' of role '{owner}'.*GRANT USAGE, CREATE ON SCHEMA"
    )
    ask("DROP TABLE onefold_sinks.onefold_locks")
    with pytest.raises(ConfigError, match=created):
        store_of_role()


def test_a_store_that_knows_no_pipeline_is_not_in_the_way(make: MakeWorld, postgres_url: str) -> None:
    empty = CheckpointStore(store_url(postgres_url, schema="public"))
    empty.id()
    empty.close()
    world = make()
    world.start()
    world.epoch(0)
    world.assert_exact(1)

"""`onefold reset`: after it a pipeline begins anew, exactly, and no other pipeline has lost anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.calls import Ask
from harness.definitions import into
from harness.errors import raises
from harness.pipeline_drivers import MakeWorld
from harness.places import KINDS, SCHEMA, Place, each, place_of
from harness.txns import dies_at
from typer.testing import CliRunner, Result

from onefold.cli.main import app
from onefold.clients.hbase import HBaseTable
from onefold.core import CheckpointMismatch, ConfigError, DataLoss, Fenced, Retriable
from onefold.operate.letters import resend_marks
from onefold.sinks import PostgresSink
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.postgres.ledger import pruning
from onefold.sinks.sql import bookkeeping

pytestmark = pytest.mark.servers


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, request, tmp_path) as place:
        yield place


def reset(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["reset", *arguments], input=answer, catch_exceptions=False)


def whole(place: Place) -> list[str]:
    """The arguments that remove everything of the pipeline, its rows too."""
    return [place.defined(), "--rows", "--yes"]


class Died(BaseException):
    """Ends a process: nothing of onefold's catches it."""


def die() -> None:
    raise Died


LEDGER_REMOVALS = [(pruning, "remove"), (bookkeeping, "forget"), (HBaseTable, "remove"), (Topics, "drop_ledger")]


@pytest.mark.slow
@each(*KINDS)
def test_a_pipeline_that_was_reset_begins_anew_exactly_and_another_one_goes_on(
    place: Place, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place.run(3)
    kind = str(request.node.callspec.params["place"])
    with place_of(kind, request, tmp_path) as beside:
        other = replace(beside, pipeline=f"{place.pipeline}-other", store=place.store)
        other.run(2)
        shown = reset(*whole(place)).output
        assert f"pipeline {place.pipeline} begins anew without" in shown and place.target in shown
        assert f"the next start of pipeline {place.pipeline} is its first" in shown
        assert place.ids() == []
        other.run(1)
        other.assert_exact(3)
    place.run(2)
    place.assert_exact(2)
    nobody = replace(place, pipeline="nobody")
    assert reset(nobody.defined(), "--yes").output == "there is nothing of pipeline nobody here\n"


@each("two_phase", "sqlite", "row_key", "transactional")
def test_what_a_dead_driver_left_in_the_middle_is_removed_and_only_with_take_over_where_the_store_has_the_epoch(
    place: Place,
) -> None:
    place.run(1)
    with place.session() as session:
        session.open_sinks(SCHEMA)
        with pytest.raises(Died):
            place.epoch(session, die)
        is_open = bool(session.facts().unfinished)  # where its sink writes through
    wanted = whole(place)
    if is_open:
        with raises(ConfigError, "pipeline-may-run"):
            reset(*wanted)
        wanted = [*wanted, "--take-over"]
    reset(*wanted)
    place.run(2)
    place.assert_exact(2)


@each("two_phase", "sqlite", "row_key", "transactional")
def test_a_pipeline_whose_driver_lives_is_not_reset_whatever_it_writes_to_and_a_driver_that_lives_after_all_is_fenced(
    place: Place,
) -> None:
    wanted = whole(place)
    with place.session() as session:
        session.open_sinks(SCHEMA)
        place.epoch(session)
        with raises(ConfigError, "pipeline-may-run"):
            reset(*wanted)
        assert len(place.ids()) == 10
        reset(*wanted, "--take-over")
        with pytest.raises((Fenced, CheckpointMismatch, DataLoss)):
            place.epoch(session)
    place.run(2)
    place.assert_exact(2)


@each("two_phase", "sqlite", "row_key", "transactional")
def test_a_reset_that_dies_between_the_rows_and_the_ledger_lets_nothing_begin_until_it_is_run_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(2)
    wanted = whole(place)
    with monkeypatch.context() as patched:
        for ledgers, removal in LEDGER_REMOVALS:
            patched.setattr(ledgers, removal, lambda *_: die())
        with pytest.raises(Died):
            reset(*wanted)
    with raises(CheckpointMismatch, "sink-ahead-of-store"):
        place.run(1)
    reset(*wanted)
    place.run(1)
    place.assert_exact(1)


@each("sqlite")
def test_nothing_is_removed_before_the_answer(place: Place) -> None:
    place.run(2)
    answered = reset(place.defined(), "--rows", answer="n\n")
    assert answered.exit_code == 1 and "all of its rows, 20" in answered.output
    place.run(1)
    place.assert_exact(3)


@each("sqlite")
def test_without_rows_the_rows_stay(place: Place) -> None:
    place.run(2)
    assert " stay: --rows removes them, too" in reset(place.defined(), "--yes").output
    place.run(1)
    assert sorted(place.ids()) == sorted([*range(20), *range(10)])


@each("staged", "sqlite", "row_key", "transactional")
def test_a_name_that_no_table_or_topic_has_and_another_store_are_refused(place: Place, tmp_path: Path) -> None:
    place.run(1)
    with raises(ConfigError, "reset-target-missing", "'test_oders'"):
        reset(place.defined("test_oders"), "--rows", "--yes")
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    with raises(ConfigError, "ledger-of-another-store"):
        reset(*whole(replace(place, store=elsewhere)))
    place.run(1)
    place.assert_exact(2)


@each("transactional")
def test_a_topic_whose_records_kafka_does_not_delete_is_refused_before_anything_is_removed(
    place: Place, kafka_server: Any
) -> None:
    place.run(1)
    servers = kafka_server.bootstrap_servers
    compacted, both = f"{place.target}-compacted", f"{place.target}-both"
    admin = AdminClient({"bootstrap.servers": servers})
    for name, policy in ((compacted, "compact"), (both, "compact,delete")):
        admin.create_topics([NewTopic(name, 1, 1, config={"cleanup.policy": policy})])[name].result(30)
    topics = Topics(KafkaSinkConfig(compacted, bootstrap_servers=servers), place.pipeline)
    with pytest.raises(Retriable, match="Policy violation"):
        topics.empty(compacted)
    with pytest.raises(
        ConfigError, match=r"-compacted' has cleanup\.policy=compact, and Kafka does not delete the records"
    ):
        reset(place.defined(compacted), "--rows", "--yes")
    place.run(1)
    place.assert_exact(2)
    reset(place.defined(both), "--rows", "--yes")
    place.run(1)
    place.assert_exact(1)


@each("sqlite")
def test_a_checkpoint_directory_goes_too_and_another_directory_does_not(place: Place, tmp_path: Path) -> None:
    place.run(1)
    checkpoint, home = tmp_path / "checkpoint", tmp_path / "home"
    for path in (checkpoint / "offsets" / "0", checkpoint / "metadata", home / "thesis.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    with raises(ConfigError, "not-a-checkpoint", "which no checkpoint has"):
        reset(place.defined(checkpoint=str(home)), "--rows", "--yes")
    assert home.exists() and len(place.ids()) == 10
    reset(place.defined(checkpoint=f"file:{checkpoint}"), "--rows", "--yes")
    assert not checkpoint.exists()
    place.run(1)
    place.assert_exact(1)


def test_prepared_transactions_stages_and_dead_letters_go_with_their_pipeline(
    make: MakeWorld, postgres_url: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    upserts = PostgresSink(postgres_url, "u", mode="upsert", key="id", order="name", on_error="dead_letter")
    world, other = make("t", upserts), make("v", pipeline="other")
    for started in (world, other):
        started.start()
        started.epoch(0)
    dies_at(monkeypatch, world, "after:Decide", 1)
    ask("INSERT INTO onefold_sinks.onefold_dead_letters VALUES ('p', 'u', 1, 1, 'x', NULL, NULL, '{}', now())")
    settings = upserts.settings
    with psycopg.connect(postgres_url) as connection:
        for pipeline in ("p", "other"):
            resend_marks.begin(connection, settings, pipeline, ("topic", 0, 7), 9)
    world.close()
    defined = into(*world.sinks)
    with raises(ConfigError, "pipeline-may-run"):
        reset(defined, "--rows", "--yes")
    shown = reset(defined, "--rows", "--yes", "--take-over").output
    plan = [line for line in shown.splitlines() if line.startswith("  ")]
    assert len(plan) == len({*plan}), "each thing once"
    assert [sum(f" sink {name}," in line or f"table public.{name}:" in line for line in plan) for name in "tu"] == [
        2,
        2,
    ]
    assert "prepared transactions, rolled back: of/p/t/" in shown and "the pipeline's dead letters, 1" in shown
    assert "which dead letters of the pipeline were sent again, 1" in shown
    with psycopg.connect(postgres_url) as connection:
        marks = [len(resend_marks.marks_of(connection, settings, pipeline)) for pipeline in ("p", "other")]
    assert marks == [0, 1]
    assert ask("SELECT DISTINCT pipeline FROM onefold_sinks.onefold_ledger") == [("other",)]
    assert (ask.gids(), ask.ids("t"), ask.ids("u"), ask.ids("v")) == ([], [], [], list(range(10)))
    assert ask("SELECT count(*) FROM onefold_sinks.onefold_dead_letters") == [(0,)]
    assert ask("SELECT relname FROM pg_class WHERE relname ~ '^onefold_stage_'") == []
    again = make("t", upserts)
    again.start()
    again.epoch(0)
    again.assert_exact(1)

"""`onefold txn` without any server: what it does where a pipeline's sinks are in several places."""

from __future__ import annotations

from typing import Any

import pytest
from harness.definitions import into
from typer.testing import CliRunner

from onefold.cli.commands import txn as command
from onefold.cli.main import app
from onefold.core import ConfigError, Retriable
from onefold.operate import in_doubt
from onefold.operate import prune as pruning
from onefold.operate.in_doubt import LedgerDatabase
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sinks.postgres.admin import Operations
from onefold.sinks.postgres.ledger.pruning import KeptOfSink

ONE, OTHER = "postgresql://nowhere/one", "postgresql://nowhere/other"
POSTGRES, SALES = PostgresSink(ONE, "orders"), KafkaSink("sales", bootstrap_servers="nowhere:9092")


def test_what_postgres_has_is_listed_where_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_pipeline: object) -> Any:
        raise Retriable("kafka-unanswered", "no broker answers")

    monkeypatch.setattr(in_doubt, "prepared_in", lambda _databases: ([], []))
    monkeypatch.setattr(in_doubt, "open_of", fail)
    listed = CliRunner().invoke(app, ["txn", "list", into(POSTGRES, SALES)])
    assert "no prepared transactions of onefold" in listed.output
    assert isinstance(listed.exception, Retriable)
    without = CliRunner().invoke(app, ["txn", "list", into(SALES)])
    assert (without.output, type(without.exception)) == ("", Retriable), "nobody knows that there is none"


def test_resolve_says_that_it_leaves_kafkas_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_resolve_transactions", lambda *_: True)
    assert "what is open of Kafka sinks (sales) stays as it is" in (
        CliRunner().invoke(app, ["txn", "resolve", into(POSTGRES, SALES)]).output
    )
    assert CliRunner().invoke(app, ["txn", "resolve", into(POSTGRES)]).output == ""


def test_a_retired_pipeline_may_be_kept_in_one_database_of_two_and_one_in_none_stops_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kept(self: Operations) -> tuple[list[KeptOfSink], list[str]]:
        there = KeptOfSink("old", "sink", None, 0, 0, ())
        return ([there] if self.url == OTHER else []), []

    pruned: list[str] = []

    def prune(database: LedgerDatabase, _retired: object, _ask: object) -> tuple[int, int]:
        pruned.append(database.postgres)
        return 0, 0

    monkeypatch.setattr(Operations, "kept", kept)
    monkeypatch.setattr(pruning, "prune_bookkeeping", prune)
    pipeline = into(POSTGRES, PostgresSink(OTHER, "other"))
    refused = CliRunner().invoke(app, ["txn", "prune", pipeline, "--retired=old", "--retired=typo"])
    assert isinstance(refused.exception, ConfigError)
    assert "nothing is kept here for a pipeline typo" in str(refused.exception)
    assert pruned == []
    done = CliRunner().invoke(app, ["txn", "prune", pipeline, "--retired=old"])
    assert (done.exit_code, pruned) == (0, [ONE, OTHER]), done.exception

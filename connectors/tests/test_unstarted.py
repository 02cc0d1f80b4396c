"""Commands on a pipeline that was never started, and what the engine's lacks: refused by one code, changing nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.definitions import named, piped
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource

RUNTIMES = [Engine(), Spark()]


def pipeline_in(directory: Path, runtime: Engine | Spark) -> Pipeline:
    source = KafkaSource("t", bootstrap_servers="127.0.0.1:1", format="json", schema="id long", timeout_s=1)
    sink = SqlSink(f"sqlite:///{directory}/rows.db", table="rows")
    return piped("orders", source=source, sinks=[sink], directory=str(directory), patience_s=0.1, runtime=runtime)


def typed(*arguments: str) -> str:
    ran = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.mark.parametrize("runtime", RUNTIMES, ids=["engine", "spark"])
@pytest.mark.parametrize(
    "command",
    [
        "positions",
        "positions --set latest --yes",
        "sinks",
        "sinks --apply --yes",
        "verify --key id",
        "recover --yes",
        "recover --accept-damage 1 --yes",
        "recover --accept-targets --yes",
        "txn resolve --take-over --yes",
    ],
)
def test_what_needs_a_start_is_refused_by_one_code_and_makes_no_store(
    tmp_path: Path, runtime: Engine | Spark, command: str
) -> None:
    name = named(pipeline_in(tmp_path, runtime))
    words = command.split()
    at = 2 if words[0] == "txn" else 1
    with raises(ConfigError, "pipeline-unknown", "'orders'"):
        typed(*words[:at], name, *words[at:])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("runtime", [Engine(), Spark()])
def test_a_savepoint_of_a_pipeline_that_was_never_started_makes_no_store(tmp_path: Path, runtime: Any) -> None:
    with raises(ConfigError, "pipeline-unknown", "'orders'"):
        typed("savepoint", "create", named(pipeline_in(tmp_path, runtime)))
    assert [*tmp_path.iterdir()] == []

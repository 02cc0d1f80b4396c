"""A Kafka sink as the command line describes it is the one that a program would make."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from onefold.cli.kafka_options import kafka_sink
from onefold.cli.main import app
from onefold.core import ConfigError
from onefold.sinks import KafkaSink

VERIFY = ["verify", "--pipeline=p", "--topic=t", "--bootstrap-servers=h:1", "--schema=id long", "--into=sales"]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, KafkaSink("sales", bootstrap_servers="h:1")),
        (
            {"into_name": "s", "into_key": "a, b", "into_headers": "c", "into_ledger": "p"},
            KafkaSink("sales", bootstrap_servers="h:1", name="s", key=["a", "b"], headers=["c"], ledger="p"),
        ),
        (
            {
                "into_delivery": "keyed",
                "id": "a, n",
                "id_header": "id",
                "into_key": "a",
                "transactional_id_prefix": "x",
            },
            KafkaSink(
                "sales",
                bootstrap_servers="h:1",
                delivery="keyed",
                id=["a", "n"],
                id_header="id",
                key="a",
                transactional_id_prefix="x",
            ),
        ),
        ({"into_format": "raw", "into_headers": ""}, KafkaSink("sales", bootstrap_servers="h:1", format="raw")),
    ],
)
def test_what_is_said_is_as_the_sink_has_it_and_what_is_left_out_too(given: dict[str, Any], made: KafkaSink) -> None:
    sink = kafka_sink("sales", "h:1", **given)
    assert sink is not None and sink.settings == made.settings


def test_librdkafkas_settings_are_the_sinks_too() -> None:
    sink = kafka_sink("sales", "h:1", ["security.protocol=PLAINTEXT"])
    assert sink is not None and sink.settings.client_config == {"security.protocol": "PLAINTEXT"}
    with pytest.raises(ConfigError, match="name=value"):
        kafka_sink("sales", "h:1", ["security.protocol"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--postgres=postgresql://h/d"], "--postgres belongs to another destination"),
        (["--hbase=h:1"], "--hbase belongs to another destination"),
        (["--table=t"], "--table belongs to another destination"),
        (["--mode=upsert"], "--mode belongs to another destination"),
        (["--order=n"], "--order belongs to another destination"),
        (["--delete-when-true=gone"], "--delete-when-true belongs to another destination"),
        (["--letters=dead"], "--letters goes with --postgres"),
        ([], "The destination has no checkpoint store"),
    ],
)
def test_what_belongs_to_another_destination_is_refused(options: list[str], why: str) -> None:
    answer = CliRunner().invoke(app, [*VERIFY, *options])
    assert isinstance(answer.exception, ConfigError) and why in str(answer.exception)


def test_a_destination_that_is_half_named_is_refused() -> None:
    of_nothing = [option for option in VERIFY if option != "--into=sales"]
    for options, why in (
        ([], "name the destination: .* or --into TOPIC"),
        (["--postgres=postgresql://h/d", "--key=id"], "--postgres goes with --table"),
        (["--id=n"], "--id goes with --into"),
    ):
        with pytest.raises(ConfigError, match=why):
            CliRunner().invoke(app, [*of_nothing, *options], catch_exceptions=False)
    for options in (["--into=sales"], ["--into=sales", "--postgres=x", "--into-servers=h:1"], []):
        with pytest.raises(ConfigError):
            CliRunner().invoke(app, ["txn", "list", *options], catch_exceptions=False)

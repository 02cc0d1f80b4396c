"""What is said of a driver that others can speak with. integration-tests/attacks/test_driver.py has what they get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onefold.core import ConfigError
from onefold.sinks import SqlSink
from onefold.spark import EpochWriter
from onefold.spark.runtime.access import close_callbacks, exposure_of

LOCAL = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1"}
ANYWHERE = LOCAL | {"spark.driver.host": "192.0.2.7"}
CLUSTER = {"spark.master": "spark://host:7077", "spark.driver.host": "192.0.2.7"}
AUTHENTICATED = {"spark.authenticate": "true"}


def session(settings: dict[str, str]) -> Any:
    return SimpleNamespace(_jsparkSession=None, conf=settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (LOCAL, "spark.authenticate is not set, and any user of this machine can read"),
        (ANYWHERE, "spark.authenticate is not set, and whoever reaches this machine can read"),
        (LOCAL | {"spark.driver.bindAddress": "0.0.0.0"}, "and whoever reaches this machine can read"),
        (CLUSTER, "spark.authenticate is not set, and whoever reaches this machine can read"),
        (CLUSTER | AUTHENTICATED, "spark.network.crypto.enabled is not set, and somebody on the network can read"),
    ],
)
def test_a_driver_that_others_reach_is_named_and_refused_with_require_tls(settings: dict[str, str], says: str) -> None:
    assert says in exposure_of(session(settings))
    writer = EpochWriter("p", [SqlSink("sqlite:////tmp/rows.db", "t")], require_tls=True)
    with pytest.raises(ConfigError, match=says) as refused:
        writer.write_batch(SimpleNamespace(sparkSession=session(settings)), "r")  # type: ignore[arg-type]
    assert refused.value.code == "tls-required"


@pytest.mark.parametrize("encrypted", ["spark.network.crypto.enabled", "spark.ssl.rpc.enabled"])
def test_nothing_is_said_of_one_that_they_do_not_reach(encrypted: str) -> None:
    beside = LOCAL | AUTHENTICATED | {"spark.master": "spark://127.0.0.1:7077"}
    for settings in (
        LOCAL | AUTHENTICATED,
        ANYWHERE | AUTHENTICATED,
        beside,
        CLUSTER | AUTHENTICATED | {encrypted: "true"},
    ):
        assert exposure_of(session(settings)) == ""


def test_spark_connect_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"Spark Connect.*trust_machine=True") as refused:
        close_callbacks(SimpleNamespace())  # type: ignore[arg-type]
    assert refused.value.code == "callbacks-open"

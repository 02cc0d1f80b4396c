"""The images' Kafka and HBase are set up as those of onefold.local: a test cannot tell them apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onefold.local.hbase import parts
from onefold.local.kafka import broker
from onefold.local.kafka.recovery import SESSION_MS
from onefold.local.resources import HOST

COMPOSE = Path(__file__).parents[3] / "compose"
KAFKA, HBASE = ((COMPOSE / name / "entrypoint").read_text() for name in ("kafka", "hbase"))


def settings(script: str) -> dict[str, str]:
    """Those that an entrypoint writes down, the last of a name."""
    return dict(re.findall(r"^([a-z][\w.-]*\.[\w.-]+)=(\S+)$", script, re.MULTILINE))


@pytest.mark.parametrize(
    ("script", "local"),
    [
        (KAFKA.partition("fence_earlier_life()")[0], broker._SETTINGS),
        (HBASE.partition("thrift_settings()")[0], parts._SERVER),
        (HBASE.partition("thrift_settings()")[2], parts._THRIFT),
    ],
    ids=["kafka", "hbase", "thrift"],
)
def test_each_setting_that_is_no_address_is_the_same(script: str, local: dict[str, str]) -> None:
    found = settings(script)
    assert {name: found.get(name) for name, value in local.items() if value != HOST} == {
        name: value for name, value in local.items() if value != HOST
    }


def test_what_they_log_is_the_same() -> None:
    assert (COMPOSE / "kafka/log4j2.properties").read_text() == broker._LOG4J
    assert (COMPOSE / "hbase/log4j.properties").read_text() == parts._LOG4J


def test_a_killed_kafka_is_fenced_after_the_same_time() -> None:
    assert f"broker.session.timeout.ms={SESSION_MS}\n" in KAFKA


def test_hbases_java_opens_the_same_packages() -> None:
    (opened,) = re.findall(r"--add-opens=java.base/\{([^}]+)\}=ALL-UNNAMED", HBASE)
    others = re.findall(r"(?<= )(?:-XX:|--add-modules|--add-exports)\S+", HBASE.partition('-cp "$work')[0])
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened.split(",")]
    assert {*opens, *(other.strip("()") for other in others)} == set(parts._JVM)

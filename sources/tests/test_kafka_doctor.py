"""What is concluded from topics' settings; brokers of all makes are more than tests start."""

from __future__ import annotations

import subprocess
import sys

from onefold.core.findings import Level
from onefold.sources.kafka.doctor import retention


def test_a_topic_is_told_by_those_of_its_settings_that_the_brokers_know() -> None:
    (some,) = retention("orders", {"retention.ms": "7200000"})
    assert (some.level, some.says) == (Level.FINE, "topic 'orders' keeps records for 2 hours")
    (compacted,) = retention("orders", {"cleanup.policy": "compact", "retention.ms": "7200000"})
    assert "for good, of each key the last one only" in compacted.says
    (silent,) = retention("orders", {"retention.bytes": "-1"})
    assert silent.says == "topic 'orders' keeps records for a time that is not shown"
    (hidden,) = retention("orders", {})
    assert hidden.level is Level.CAUTION


ASK = """
from onefold.core import Retriable
from onefold.sources import KafkaSource
from onefold.sources.kafka.doctor import examine

try:
    list(examine(KafkaSource("t", bootstrap_servers="127.0.0.1:1", timeout_s=1), None))
except Retriable as error:
    print(error.code)
"""


def test_where_nobody_logs_the_error_alone_says_that_no_broker_answers() -> None:
    ended = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("kafka-unreachable\n", "")

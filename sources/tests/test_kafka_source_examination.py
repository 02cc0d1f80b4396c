"""What is concluded from topics' settings; brokers of all makes are more than tests start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from onefold.core import Positions
from onefold.core.findings import Level
from onefold.sources import KafkaSource
from onefold.sources.kafka.planning.broker import Topic
from onefold.sources.kafka.planning.lag import lag
from onefold.sources.kafka.source_examination import retention


def test_a_topic_is_told_by_those_of_its_settings_that_the_brokers_know() -> None:
    (some,) = retention("orders", {"retention.ms": "7200000"})
    assert (some.level, some.says) == (Level.FINE, "topic 'orders' keeps records for 2 hours")
    (compacted,) = retention("orders", {"cleanup.policy": "compact", "retention.ms": "7200000"})
    assert "for good, of each key the last one only" in compacted.says
    (silent,) = retention("orders", {"retention.bytes": "-1"})
    assert silent.says == "topic 'orders' keeps records for a time that is not shown"
    (hidden,) = retention("orders", {})
    assert hidden.level is Level.CAUTION


class BusyBroker:
    """Of one partition, which grows by five records between any two questions."""

    timeout_s = 1.0

    def __init__(self, open_at: int | None = None) -> None:
        self.end, self.open_at = 100, open_at

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        return {name: Topic(None, (0,)) for name in names}

    def earliest(self, partitions: Sequence[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def log_end(self, partitions: Sequence[Any]) -> dict[Any, int]:
        self.end += 5
        return dict.fromkeys(partitions, self.end)

    def latest(self, partitions: Sequence[Any]) -> dict[Any, int]:
        stable = self.log_end(partitions)
        return stable if self.open_at is None else dict.fromkeys(partitions, self.open_at)


def test_records_that_come_between_two_questions_wait_for_no_transaction() -> None:
    source, at = KafkaSource("t", bootstrap_servers="b:1"), Positions.of({"t/0": 90})
    (plain,) = lag(source, at, BusyBroker())  # type: ignore[arg-type]
    assert (plain.held_back, plain.behind) == (0, 20)
    (held,) = lag(source, at, BusyBroker(open_at=95))  # type: ignore[arg-type]
    assert (held.held_back, held.behind) == (10, 5)


ASK = """
from onefold.core import Retriable
from onefold.sources import KafkaSource
from onefold.sources.kafka.source_examination import examine

try:
    list(examine(KafkaSource("t", bootstrap_servers="127.0.0.1:1", timeout_s=1), None))
except Retriable as error:
    print(error.code)
"""


def test_where_nobody_logs_the_error_alone_says_that_no_broker_answers() -> None:
    ended = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("kafka-unreachable\n", "")

"""What is concluded from brokers' settings; a cluster of three is more than tests start."""

from __future__ import annotations

from onefold.core.findings import Level
from onefold.sinks.kafka.guarantee_checks import outage
from onefold.sinks.kafka.topics import LEDGER_CONFIG, TopicState, ledger_faults


def test_an_outage_may_last_as_long_as_the_slowest_epoch_leaves_of_the_timeout() -> None:
    (known,) = outage(900, 300, 100.5)
    assert known.level is Level.FINE and "leaves 799 s" in known.says
    (slow,) = outage(900, 300, 650)
    assert slow.level is Level.CAUTION and "leaves less than outage_max_s" in slow.says
    (unknown,) = outage(900, 300, None)
    assert unknown.level is Level.FINE and "an outage of 300 s" in unknown.says


def test_a_ledger_topic_of_three_replicas_is_refused_unless_two_acknowledge() -> None:
    (fault,) = ledger_faults(TopicState("books", 1, 3, {**LEDGER_CONFIG, "min.insync.replicas": "1"}))
    assert "min.insync.replicas=1 of 3" in fault and "--add-config min.insync.replicas=2" in fault
    assert ledger_faults(TopicState("books", 1, 3, {**LEDGER_CONFIG, "min.insync.replicas": "2"})) == []
    assert ledger_faults(TopicState("books", 1, 3, {})) == [], "settings that are not shown are no fault"
    (fault,) = ledger_faults(TopicState("books", 1, 1, {**LEDGER_CONFIG, "min.insync.replicas": "2"}))
    assert "can never be written to" in fault

"""What is concluded from topics' settings; brokers of all makes are more than tests start."""

from __future__ import annotations

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

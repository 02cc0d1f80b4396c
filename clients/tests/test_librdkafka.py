"""What librdkafka says of its connections, and how much of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from onefold.clients.kafka.client_roles import CONSUMER


def test_brokers_that_are_away_are_told_in_a_few_lines_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("onefold.clients.kafka.librdkafka.time", SimpleNamespace(monotonic=lambda: now_s))
    role = replace(CONSUMER, logger=logging.getLogger("onefold.of_this_test"))
    for number in range(700):
        role.said.error("Connect to %s failed", f"127.0.0.1:{9092 + number // 50}")
    assert [record.getMessage()[-11:] for record in caplog.records] == [f"{port} failed" for port in range(9092, 9102)]
    now_s += 61
    for _ in range(2):
        role.said.error("Connect to %s failed", "127.0.0.1:9092")
    assert caplog.messages[10:] == ["Connect to 127.0.0.1:9092 failed (690 more were left out before)"]

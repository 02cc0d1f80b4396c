"""What a range does with what the client says of its partition. A fake client: a real one says so once in a while."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from harness.errors import raises

from onefold.core.errors import Retriable
from onefold.sources.kafka.fetching import fetcher
from onefold.sources.kafka.fetching.consumer import Taken
from onefold.sources.kafka.offsets import OffsetRange

RANGE = OffsetRange("t", 0, 10, 20)


class Client:
    """It gathers five records at a time. Where it stands at `at`, it is told `times` that this is out of range."""

    def __init__(self, times: int, at: int = RANGE.start) -> None:
        self.errors: list[KafkaError] = []
        self.reached, self.gathered, self.times, self.at = RANGE.start, 0, times, at
        self.begun: list[int] = []

    def assign(self, wanted: OffsetRange) -> None:
        assert not self.gathered, "records would be forgotten"
        self.begun.append(wanted.start)

    def take(self, *_limits: object, **_more: object) -> Taken:
        if self.reached == self.at and self.times:
            self.times -= 1
            return Taken(0, [KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, "out of range")], False, None)
        self.reached, self.gathered = self.reached + 5, self.gathered + 5
        return Taken(5, [], False, None)

    def hand_over(self) -> Any:
        count, self.gathered = self.gathered, 0
        return range(self.reached - count, self.reached)


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "_check_log", lambda *_: None)
    monkeypatch.setattr(fetcher, "Broker", lambda *_: None)


def read(client: Client) -> list[int]:
    found = fetcher._records(client, RANGE, "localhost:1", {}, 60.0, 100)  # type: ignore[arg-type]
    return [offset for records in found for offset in records]  # type: ignore[attr-defined]


def test_an_offset_that_the_broker_has_all_the_same_is_asked_for_again() -> None:
    client = Client(times=1)
    assert read(client) == [*range(10, 20)]
    assert client.begun == [10]


def test_and_only_once() -> None:
    with raises(Retriable, "read-interrupted"):
        read(Client(times=2))


def test_not_behind_records_that_may_be_of_another_topic_of_that_name() -> None:
    client = Client(times=1, at=15)
    with raises(Retriable, "read-interrupted"):
        read(client)
    assert client.begun == []

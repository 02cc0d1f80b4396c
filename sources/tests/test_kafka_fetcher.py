"""What a range does with what the client says of its partition. A fake client: a real one says so once in a while."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from harness.errors import raises

from onefold.clients.per_process import PerProcess
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


class Opened:
    """A consumer that was opened ahead, of a broker that knows these topics."""

    def __init__(self, *topics: str) -> None:
        self.topics, self.looked_up, self.is_closed = topics, list[str](), False

    def look_up(self, topic: str, _wait_s: float) -> None:
        self.looked_up.append(topic)
        if topic not in self.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    clients: list[Opened] = []

    def open_one(*_: object) -> Opened:
        clients.append(Opened("orders", "refunds"))
        return clients[-1]

    monkeypatch.setattr(fetcher, "MessageConsumer", open_one)
    monkeypatch.setattr(fetcher, "_consumers", PerProcess(fetcher._Consumers))
    return clients


SETTINGS = {"client.id": "orders"}


def test_a_consumer_that_was_opened_ahead_is_the_one_that_reads_first(opened: list[Opened]) -> None:
    fetcher.connect("localhost:1", ["orders", "refunds"], SETTINGS, "off")
    key = fetcher._key("localhost:1", SETTINGS, None)
    slots = [fetcher._borrow(key, RANGE, None) for _ in range(2)]
    assert [slot.consumer for slot in slots] == opened and len(opened) == fetcher.consumers_made() == 2
    assert [client.looked_up for client in opened] == [["orders", "refunds"], []]


def test_none_is_kept_that_could_not_find_a_topic(opened: list[Opened]) -> None:
    with pytest.raises(KafkaException):
        fetcher.connect("localhost:1", ["orders", "odd"], SETTINGS, "off")
    fetcher._borrow(fetcher._key("localhost:1", SETTINGS, None), RANGE, None)
    assert [client.is_closed for client in opened] == [True, False]
    assert fetcher.consumers_made() == 1


def test_a_broker_that_is_slow_to_answer_for_each_of_many_topics_holds_a_start_up_for_a_moment(
    opened: list[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(fetcher, "time", clock)
    monkeypatch.setattr(Opened, "look_up", clock.slow(Opened.look_up))
    fetcher.connect("localhost:1", ["orders", "refunds"] * 50, SETTINGS, "off")
    assert clock.now_s <= 1.5 and opened[0].looked_up[:2] == ["orders", "refunds"]
    assert fetcher._borrow(fetcher._key("localhost:1", SETTINGS, None), RANGE, None).consumer is opened[0]


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def slow(self, look_up: Any) -> Any:
        def looked_up(client: Opened, topic: str, wait_s: float) -> None:
            self.now_s += 0.4
            look_up(client, topic, wait_s)

        return looked_up

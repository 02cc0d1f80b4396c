"""What the source asks Kafka, and asks again. A fake client: a real one believes so once in some thousand topics."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo
from harness.errors import raises

from onefold.core.errors import Retriable
from onefold.sources.kafka.planning import broker as asking

SETTINGS: dict[str, str] = {}


class Client:
    """The first `made` ones have seen the topic without a leader, and never look again."""

    made = 0
    blind = 0
    lists = 0

    def __init__(self, _config: dict[str, Any]) -> None:
        Client.made += 1
        self.sees = Client.made > Client.blind

    def poll(self, _timeout: float) -> None: ...

    def list_offsets(self, asked: dict[Any, Any], **_more: Any) -> dict[Any, Future[Any]]:
        Client.lists += 1
        answers: dict[Any, Future[Any]] = {at: Future() for at in asked}
        for answer in answers.values():
            if self.sees:
                answer.set_result(ListOffsetsResultInfo(7, -1, 0))  # type: ignore[no-untyped-call]
            else:
                answer.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "No leaders found")))
        return answers


@pytest.fixture(autouse=True)
def _clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "made", 0)
    monkeypatch.setattr(Client, "lists", 0)
    monkeypatch.setattr(asking, "AdminClient", Client)


def test_a_client_that_saw_a_topic_without_a_leader_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "blind", 2)
    broker = asking.Broker("localhost:1", SETTINGS, timeout_s=20)
    assert broker.latest([("t", 0)]) == {("t", 0): 7}
    assert broker.latest([("t", 0)]) == {("t", 0): 7}
    assert Client.made == 3


def test_a_topic_that_stays_without_a_leader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "blind", 1_000)
    with raises(Retriable, "kafka-unreachable"):
        asking.Broker("localhost:1", SETTINGS, timeout_s=0.3).latest([("t", 0)])


@pytest.mark.parametrize(
    ("blind", "wanted", "lists"), [(0, [("t", 0)], 1), (0, [("t", 0), ("t", 1)], 2), (1, [("t", 0)], 2)]
)
def test_ends_that_are_on_their_way_are_asked_again_where_they_are_of_others_or_fail(
    monkeypatch: pytest.MonkeyPatch, blind: int, wanted: list[tuple[str, int]], lists: int
) -> None:
    monkeypatch.setattr(Client, "blind", blind)
    broker = asking.Broker("localhost:1", SETTINGS, timeout_s=20)
    on_its_way = broker.ask_ends([("t", 0)])
    assert dict(broker.ends(wanted, on_its_way).offsets) == dict.fromkeys(wanted, 7)
    assert Client.lists == lists

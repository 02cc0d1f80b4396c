"""What a real broker does to transactions that one process leaves and another ends: what the Kafka sink rests on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from harness.errors import raises
from harness.kafka.reading import Reader
from harness.kafka.topics import in_order
from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import EndTxnRequest, EndTxnResponse

from onefold.clients.answers import Unanswered
from onefold.clients.kafka import error_codes
from onefold.clients.kafka.broker_connection import WireConnection
from onefold.clients.kafka.cluster import Cluster
from onefold.core import ConfigError, DataLoss, Retriable
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.transactional import txn_admin

pytestmark = pytest.mark.servers

OK, INVALID_STATE, UNKNOWN_PRODUCER, BUSY, FENCED = 0, 48, 49, 51, 90

CHILD = """
import sys, time
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": sys.argv[2], "log_level": 0})
producer.init_transactions(20)
producer.begin_transaction()
producer.produce(sys.argv[3], b"left")
producer.flush()
print("open", flush=True)
time.sleep(60)
"""


@dataclass
class Lab:
    """One topic with one partition, its read_committed reader, and producers whose transactions are looked at."""

    servers: str
    topic: str

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.servers, {}, 20)
        self.reader = Reader(self.servers, self.topic, 1)

    def producer(self, transactional_id: str, timeout_ms: int = 60_000, **more: object) -> Producer:
        config = {"bootstrap.servers": self.servers, "transactional.id": transactional_id, "log_level": 0}
        producer = Producer({**config, "transaction.timeout.ms": timeout_ms, **more})
        producer.init_transactions(20)
        return producer

    def begin(self, producer: Producer, value: str) -> None:
        producer.begin_transaction()
        producer.produce(self.topic, value)
        assert producer.flush(20) == 0

    def opened(self, value: str) -> tuple[Producer, Handle]:
        """A transaction with one record, under a new id."""
        name = f"lab/{uuid.uuid4().hex}"
        producer = self.producer(name)
        self.begin(producer, value)
        return producer, self.found(name).handle

    def found(self, name: str) -> txn_admin.TopicTransaction:
        return txn_admin.describe(self.cluster, [name])[name]

    def state(self, handle: Handle) -> str:
        return self.found(handle.transactional_id).state

    def end(self, handle: Handle, commit: bool, version: int = 5) -> int:
        """The coordinator's answer, once it is not busy with the markers of an earlier one."""
        for _ in range(200):
            request = EndTxnRequest(
                transactional_id=handle.transactional_id,
                producer_id=handle.producer_id,
                producer_epoch=handle.producer_epoch,
                committed=commit,
            )
            (broker,) = self.cluster.by_coordinator([handle.transactional_id])
            code: int = self.cluster.ask(broker, request, EndTxnResponse, version).error_code
            if code != BUSY:
                return code
            time.sleep(0.01)
        raise AssertionError("busy for good")

    def values(self) -> list[str]:
        return [message.value().decode() for message in self.reader.read()]

    def shows(self, *values: str) -> None:
        """A reader sees these; the last markers may take a moment."""
        deadline_s = time.monotonic() + 10
        while (seen := self.values()) != list(values) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert seen == list(values)


@pytest.fixture
def lab(kafka_server: Any, kafka_topic: Callable[..., str]) -> Iterator[Lab]:
    lab = Lab(kafka_server.bootstrap_servers, kafka_topic(partitions=1))
    yield lab
    lab.reader.close()
    lab.cluster.close()


def test_a_transaction_that_a_killed_process_left_open_is_committed_by_another(lab: Lab) -> None:
    name = f"lab/{uuid.uuid4().hex}"
    command = [sys.executable, "-c", CHILD, lab.servers, name, lab.topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        child.send_signal(signal.SIGKILL)
    found = lab.found(name)
    assert found.state == "Ongoing" and lab.values() == []
    assert txn_admin.end(lab.cluster, [found.handle], commit=True) == {found.handle: OK}
    lab.shows("left")


def test_close_aborts_an_open_transaction_and_letting_go_leaves_it(lab: Lab) -> None:
    closed, of_closed = lab.opened("closed")
    closed.close()
    left, of_left = lab.opened("left")
    del left
    assert (lab.state(of_closed), lab.state(of_left)) == ("CompleteAbort", "Ongoing")
    assert lab.end(of_closed, commit=True) == INVALID_STATE
    assert lab.end(of_left, commit=True) == OK
    lab.shows("left")


def test_init_before_resume_aborts_what_was_open_and_the_old_handle_is_fenced(lab: Lab) -> None:
    producer, handle = lab.opened("lost")
    again = lab.producer(handle.transactional_id)
    assert lab.state(handle) == "Empty" or lab.state(handle) == "CompleteAbort"
    assert lab.end(handle, commit=True) == FENCED
    lab.begin(again, "kept")
    assert lab.end(lab.found(handle.transactional_id).handle, commit=True) == OK
    lab.shows("kept")
    del producer


@pytest.mark.slow
@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_coordinators_answers_by_version(lab: Lab, version: int) -> None:
    _, committed = lab.opened("committed")
    assert lab.end(committed, True, version) == OK
    assert lab.end(committed, True, version) == OK, "repeated"
    assert lab.end(committed, False, version) == INVALID_STATE, "the opposite"
    _, aborted = lab.opened("aborted")
    assert lab.end(aborted, False, version) == OK
    assert lab.end(aborted, False, version) == OK, "repeated"
    assert lab.end(aborted, True, version) == INVALID_STATE, "the opposite"
    _, running = lab.opened("running")
    newer = replace(running, producer_epoch=running.producer_epoch + 1)
    assert lab.end(newer, True, version) in (FENCED, INVALID_STATE)
    assert lab.end(replace(running, producer_id=running.producer_id + 10_000), True, version) == UNKNOWN_PRODUCER
    assert lab.end(replace(running, transactional_id="lab/nobody"), True, version) == UNKNOWN_PRODUCER
    name = f"lab/{uuid.uuid4().hex}"
    lab.producer(name).begin_transaction()
    assert lab.end(lab.found(name).handle, True, version) == INVALID_STATE, "one without records"
    assert lab.end(running, True, version) == OK
    lab.shows("committed", "running")


@pytest.mark.parametrize(("version", "harms"), [(3, True), (4, True), (5, False)])
def test_a_late_repeat_commits_a_half_written_transaction_unless_it_is_of_version_5(
    lab: Lab, version: int, harms: bool
) -> None:
    """Of a producer that goes on without being initialized again: version 5 does not let it."""
    producer, first = lab.opened("first")
    assert lab.end(first, True, version) == OK
    if not harms:
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(20)
        assert error_codes.is_fenced(raised.value)
        lab.shows("first")
        return
    producer.commit_transaction(20)
    lab.begin(producer, "half")
    assert lab.end(first, True, version) == OK
    lab.shows("first", "half")


def test_a_late_repeat_never_touches_the_next_attempt_under_the_same_id(lab: Lab) -> None:
    producer, first = lab.opened("first")
    assert lab.end(first, commit=True) == OK
    del producer
    again = lab.producer(first.transactional_id)
    lab.begin(again, "second")
    for commit in (True, False):
        assert lab.end(first, commit) == FENCED
    second = lab.found(first.transactional_id)
    assert second.state == "Ongoing"
    assert lab.end(second.handle, commit=True) == OK
    lab.shows("first", "second")


def test_an_idle_zombies_empty_commit_says_nothing_of_its_fence(lab: Lab) -> None:
    zombie, handle = lab.opened("before")
    zombie.commit_transaction(20)
    lab.producer(handle.transactional_id)
    zombie.begin_transaction()
    zombie.commit_transaction(20)  # nothing is raised
    zombie.begin_transaction()
    zombie.produce(lab.topic, "zombie")
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(20)
    assert error_codes.is_fenced(raised.value)
    lab.shows("before")


def test_a_fenced_flush_is_an_error_of_ours_also_where_callbacks_hide_it(lab: Lab) -> None:
    name = f"lab/{uuid.uuid4().hex}"
    failures: list[object] = []
    zombie = lab.producer(name, on_delivery=lambda error, _: failures.append(error))
    lab.begin(zombie, "zombie")
    lab.producer(name)
    zombie.produce(lab.topic, "late")
    with pytest.raises(SystemError) as hidden:
        zombie.flush(20)
    assert error_codes.is_fenced(hidden.value)
    with raises(Retriable, "transaction-ended-elsewhere"):
        error_codes.asked(lambda: _raise(hidden.value), "flushing")
    lab.shows()


def _raise(error: BaseException) -> None:
    raise error


def test_a_log_is_read_past_other_peoples_keys_of_any_bytes(lab: Lab) -> None:
    producer = in_order(lab.servers)
    for key in (b"\xff\x00", b"ours"):
        producer.produce(lab.topic, b"v", key)
    assert producer.flush(20) == 0
    items = [item for some, _ in txn_admin.read_log(lab.cluster, lab.topic, 0) for item in some]
    assert [item.key for item in items if isinstance(item, txn_admin.LogRecord)] == ["\ufffd\x00", "ours"]


def test_all_of_a_log_shows_behind_an_open_transaction_whose_readers_wait(lab: Lab) -> None:
    _, waiting = lab.opened("open")
    _, done = lab.opened("done")
    assert lab.end(done, commit=True) == OK
    markers: list[txn_admin.Marker] = []
    deadline_s = time.monotonic() + 10
    while not markers and time.monotonic() < deadline_s:
        items = [item for some, _ in txn_admin.read_log(lab.cluster, lab.topic, 0) for item in some]
        markers = [item for item in items if isinstance(item, txn_admin.Marker)]
    assert [(m.producer_id, m.is_commit) for m in markers] == [(done.producer_id, True)]
    assert [item.value for item in items if isinstance(item, txn_admin.LogRecord)] == [b"open", b"done"]
    assert lab.values() == []
    assert lab.end(waiting, commit=False) == OK
    lab.shows("done")
    with raises(DataLoss, "ledger-topic-cut"):
        list(txn_admin.read_log(lab.cluster, lab.topic, 1_000_000))


class Hindered(Cluster):
    """One whose brokers give each of these answers in place of their own, once, to whoever fetches."""

    def __init__(self, servers: str, *spoilt: Callable[[Any], None]) -> None:
        super().__init__(servers, {}, 20)
        self.spoilt = list(spoilt)

    def ask(self, broker: int, request: Any, response: type[Any], version: int) -> Any:
        answer = super().ask(broker, request, response, version)
        if response is FetchResponse and self.spoilt:
            self.spoilt.pop(0)(answer)
        return answer


def held_back(answer: Any) -> None:
    """What a quota of bytes makes of it: the same again later."""
    answer.responses = []


def of_a_new_leader(answer: Any) -> None:
    """Of one that was elected a moment ago: nothing of what it has is known to be acknowledged."""
    partition = answer.responses[0].partitions[0]
    partition.high_watermark, partition.records = 0, b""


def test_all_of_a_log_is_read_through_quotas_and_changes_of_leader(lab: Lab) -> None:
    _, done = lab.opened("done")
    assert lab.end(done, commit=True) == OK
    lab.shows("done")
    for spoilt in (held_back, of_a_new_leader):
        hindered = Hindered(lab.servers, spoilt)
        items = [item for some, _ in txn_admin.read_log(hindered, lab.topic, 0) for item in some]
        assert [type(item) for item in items] == [txn_admin.LogRecord, txn_admin.Marker]
        assert not hindered.spoilt
        hindered.close()


def test_a_broker_that_lacks_a_request_is_named_as_too_old(lab: Lab) -> None:
    with raises(ConfigError, "kafka-too-old"):
        lab.cluster.any().ask(EndTxnRequest(), EndTxnResponse, 99)


def test_a_broker_that_is_gone_is_asked_for_anew(lab: Lab) -> None:
    _, done = lab.opened("done")
    for ask in (lambda: lab.state(done) == "Ongoing", lambda: [*txn_admin.read_log(lab.cluster, lab.topic, 0)]):
        assert ask()
        lab.cluster._brokers.clear()  # as after its outage, which the metadata of those that are left shows
        assert ask()
    assert lab.state(done) == "Ongoing"
    lab.cluster._brokers.clear()
    (said,) = txn_admin.end(lab.cluster, [done], commit=True).values()
    assert isinstance(said, Retriable)
    assert txn_admin.end(lab.cluster, [done], commit=True) == {done: OK}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_requests(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    _, prepared = lab.opened("prepared")
    _, ended = lab.opened("ended")
    assert lab.end(ended, commit=True) == OK
    gone = replace(prepared, producer_epoch=prepared.producer_epoch + 7)

    def interrupted(*_: object) -> bytes:
        raise interrupt

    with monkeypatch.context() as patch:
        patch.setattr(WireConnection, "_receive", interrupted)
        with pytest.raises(interrupt):
            txn_admin.end(lab.cluster, [prepared], commit=True)
    assert lab.end(gone, commit=True) in txn_admin.REFUSED
    assert lab.end(prepared, commit=True) == OK


def test_an_answer_to_another_request_ends_the_connection(lab: Lab) -> None:
    connection = lab.cluster.any()
    request = ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[])
    assert connection.ask(request, ListTransactionsResponse, 0).error_code == OK
    connection._socket.sendall(connection._framed(request, 0)[1])  # somebody asked, and did not wait for the answer
    with pytest.raises(Unanswered, match=r"it answered request \d+ instead of \d+"):
        connection.ask(request, ListTransactionsResponse, 0)
    assert connection.is_closed and lab.cluster.any() is not connection

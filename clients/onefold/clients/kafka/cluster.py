"""A Kafka cluster for our own requests: connections to its brokers, coordinators of transactional ids, leaders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest, MetadataResponse

from onefold.clients.answers import Unanswered, understood
from onefold.clients.kafka.broker_connection import Security, WireConnection
from onefold.clients.kafka.error_codes import DENIED, NOT_READY
from onefold.clients.kafka.librdkafka import Settings
from onefold.clients.per_process import PerProcess
from onefold.core.errors import ConfigError, OnefoldError, Retriable
from onefold.core.waiting import Wait

T = TypeVar("T")
_TRANSACTION = 1  # FindCoordinator's key_type


class NotReady(Retriable):
    """A broker is up, and cannot answer yet: it does not know who leads or coordinates what it was asked about."""


class Cluster:
    """Thread-safe. Raises Retriable where a broker gives no answer, ConfigError where it refuses."""

    def __init__(self, bootstrap_servers: str, settings: Settings, timeout_s: float) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self._security = Security.of(settings)
        self._lock = threading.RLock()
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], WireConnection] = {}
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[str, int] = {}

    def brokers(self) -> list[int]:
        """The ids of the brokers that are up, as one of them says now."""
        with self._lock:
            self._refresh(())
            return sorted(self._brokers)

    def any(self) -> WireConnection:
        """A connection to one of the brokers: those that are known, else the bootstrap servers, one after another."""
        with self._lock:
            refused: list[str] = []
            for address in dict.fromkeys([*self._brokers.values(), *_addresses(self.bootstrap_servers)]):
                try:
                    return self._connection(address)
                except Retriable as error:
                    refused.append(error.message)
            raise Retriable("kafka-unreachable", "; ".join(refused))

    def by_coordinator(self, ids: Collection[str]) -> dict[int, list[str]]:
        """Which broker to ask about which transactional ids."""
        with self._lock, self._reading():
            unknown = [name for name in ids if name not in self._coordinators]
            if unknown:
                request = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=unknown)
                answer = self._ask_twice(lambda: self.any().ask(request, FindCoordinatorResponse, 4))
                for found in answer.coordinators:
                    self.check(found.error_code, f"transactional id {found.key!r}")
                    self._coordinators[found.key] = found.node_id
                    self._brokers[found.node_id] = (found.host, found.port)
            shared: dict[int, list[str]] = {}
            for name in ids:
                shared.setdefault(self._coordinators[name], []).append(name)
            return shared

    def leader(self, topic: str) -> int:
        """The broker that leads partition 0 of a topic."""
        with self._lock, self._reading():
            if topic not in self._leaders:
                self._refresh((topic,))
            return self._leaders[topic]

    def when_ready(self, ask: Callable[[], T]) -> T:
        """Ask again until the brokers know their coordinators and leaders: after a start that takes a moment. An answer
        that is not what was asked for raises Retriable."""
        wait = Wait(self.timeout_s)
        while True:
            try:
                with self._reading():
                    return ask()
            except NotReady:
                if not wait.again():
                    raise
                self._coordinators.clear()
                self._leaders.clear()

    def forget(self, name: str) -> None:
        """Look up anew which broker coordinates this transactional id, or leads this topic."""
        with self._lock:
            self._coordinators.pop(name, None)
            self._leaders.pop(name, None)

    def ask(self, broker: int, request: Any, response: type[Any], version: int) -> Any:
        return self.ask_all(broker, [request], response, version)[0]

    def ask_all(self, broker: int, requests: Sequence[Any], response: type[Any], version: int) -> list[Any]:
        """The answers in order. Unanswered requests, which all may be repeated, are sent once more on a new connection:
        brokers close idle ones."""
        with self._lock:
            try:
                if broker not in self._brokers:
                    raise NotReady("kafka-not-ready", f"broker {broker} of Kafka at {self.bootstrap_servers} is gone")
                address = self._brokers[broker]
                answers: list[Any] = self._ask_twice(
                    lambda: self._connection(address).ask_all(requests, response, version)
                )
                return answers
            except OnefoldError:
                self._coordinators.clear()  # another broker may coordinate and lead by now
                self._leaders.clear()
                raise

    def check(self, code: int, what: str) -> None:
        """Raise what Kafka's error code means, if it is one."""
        if code == 0:
            return
        if code in DENIED:
            raise ConfigError(
                "kafka-access-denied",
                f"Kafka at {self.bootstrap_servers} denies us {what} (error {code}). The sink needs WRITE and DESCRIBE "
                "on its transactional ids, by prefix, READ, WRITE and DESCRIBE on the ledger topic, and WRITE and "
                "DESCRIBE on the topic",
            )
        if code in NOT_READY:
            raise NotReady(
                "kafka-not-ready", f"{what}: Kafka at {self.bootstrap_servers} is not ready for it (error {code})"
            )
        raise Retriable("kafka-request-failed", f"{what}: Kafka at {self.bootstrap_servers} answered with error {code}")

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _connection(self, address: tuple[str, int]) -> WireConnection:
        known = self._connections.get(address)
        if known is None or known.is_closed:
            known = self._connections[address] = WireConnection(*address, self._security, self.timeout_s)
        return known

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with understood(f"Kafka at {self.bootstrap_servers}"):
                yield
        except Unanswered as error:
            raise Retriable("kafka-unanswered", str(error)) from error

    def _ask_twice(self, ask: Any) -> Any:
        """The answer, on a new connection if the known one is gone."""
        for is_last in (False, True):
            try:
                return ask()
            except Unanswered as error:
                if is_last:
                    raise Retriable("kafka-unanswered", str(error)) from error
        raise AssertionError("unreachable")

    def _refresh(self, topics: Sequence[str]) -> None:
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self._ask_twice(lambda: self.any().ask(request, MetadataResponse, 9))
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            partition = next((p for p in topic.partitions if p.partition_index == 0), None)
            self.check(topic.error_code or (partition.error_code if partition else 5), f"topic {topic.name!r}")
            assert partition is not None
            self._leaders[topic.name] = partition.leader_id


def _addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    found = []
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError("option-value", f"bootstrap_servers names {server.strip()!r}, and each is host:port")
        found.append((host.strip("[]"), int(port)))
    return found


_Key = tuple[str, tuple[tuple[str, str], ...], float]
_clusters = PerProcess(dict[_Key, Cluster])


def cluster(bootstrap_servers: str, settings: Settings, timeout_s: float) -> Cluster:
    """This process's cluster for these settings: its connections stay open from one task to the next."""
    key = (bootstrap_servers, tuple(sorted(settings.items())), timeout_s)
    with _clusters.lock:
        if key not in _clusters.now:
            _clusters.now[key] = Cluster(bootstrap_servers, settings, timeout_s)
        return _clusters.now[key]

"""Questions to the brokers: which topics there are, and where their partitions begin and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from onefold.clients.kafka.client_roles import CONSUMER, isolation
from onefold.clients.kafka.error_codes import DENIED, NOT_SHOWN
from onefold.clients.kafka.librdkafka import NO_TOPIC_ID, Settings
from onefold.core.errors import ConfigError
from onefold.core.waiting import Wait
from onefold.sources.kafka.offsets import Offsets, OffsetSnapshot, Partition

_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_WITHOUT_MEMBERS = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now: its id, where brokers know such, and the numbers of its partitions."""

    id: str | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """A question for offsets that is on its way. Its client stays until all partitions have their answers."""

    client: AdminClient
    answers: Mapping[Partition, Future[Any]]


class Broker:
    """Answers questions about a Kafka cluster, each within `timeout_s`. Not thread-safe; does not pickle."""

    def __init__(self, bootstrap_servers: str, settings: Settings, timeout_s: float = 60.0) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self._isolation = isolation(settings)
        self._said: deque[KafkaError] = deque(maxlen=5)
        self._config = {**CONSUMER.admin_config(bootstrap_servers, settings), "error_cb": self._said.append}
        self._admin = CONSUMER.open(AdminClient, self._config)

    def topic_names(self) -> list[str]:
        """All topics that we may describe."""
        known = self._ask("asking for the topics", lambda left_s: self._admin.list_topics(timeout=left_s).topics)
        return [name for name, topic in known.items() if topic.error is None]

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Those of these topics that exist."""
        if not names:
            return {}

        def describe(left_s: float) -> dict[str, Topic]:
            asked = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=left_s)
            answers = {name: self._described(name, answer) for name, answer in asked.items()}
            return {name: topic for name, topic in answers.items() if topic is not None}

        return self._ask(f"asking for the partitions of {', '.join(sorted(names)[:5])}", describe)

    def settings_of(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """The settings of these topics, with the brokers' defaults; empty for a topic whose settings are hidden."""

        def ask(left_s: float) -> dict[str, dict[str, str]]:
            wanted = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            asked = self._admin.describe_configs(wanted, request_timeout=left_s) if wanted else {}
            return {resource.name: self._configured(answer) for resource, answer in asked.items()}

        return self._ask("asking for the topics' settings", ask)

    def compacted(self, names: Collection[str]) -> list[str]:
        """Those of the topics that may lack any record but the newest of its key."""
        found = self.settings_of(names)
        return [name for name in names if "compact" in found.get(name, {}).get("cleanup.policy", "delete")]

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """The first record that Kafka still has, of each partition."""
        return dict(self._list(dict.fromkeys(partitions, _FIRST), self._isolation).offsets)

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """The end of each partition: with read_committed the last stable offset, before any open transaction."""
        return dict(self.ends(partitions).offsets)

    def ends(self, partitions: Iterable[Partition], asked: OffsetsRequest | None = None) -> OffsetSnapshot:
        """The same, with the leader epochs of now; of what `ask_ends` has asked already, where that is for these."""
        return self._list(dict.fromkeys(partitions, _END), self._isolation, asked)

    def ask_ends(self, partitions: Iterable[Partition]) -> OffsetsRequest:
        """Ask for the ends, and wait for nothing: another question may be asked meanwhile."""
        return self._send(dict.fromkeys(partitions, _END), self._isolation, self.timeout_s)

    def log_end(self, partitions: Iterable[Partition]) -> Offsets:
        """The end of each partition whether or not transactions are open."""
        return dict(self._list(dict.fromkeys(partitions, _END), IsolationLevel.READ_UNCOMMITTED).offsets)

    def at_times(self, times_ms: Mapping[Partition, int]) -> Offsets:
        """The first record of each partition from that time on; -1 where there is none yet."""
        specs = {at: OffsetSpec.for_timestamp(ms) for at, ms in times_ms.items()}
        return dict(self._list(specs, self._isolation).offsets)

    def set_group(self, group: str, offsets: Mapping[Partition, int]) -> Future[Any]:
        """Send a group's positions, and wait for nothing.

        Here the answer "another coordinator" (or that it loads, or is not there) is a partition's error, and a
        connection that ends the call's: tried with librdkafka 2.16, whose admin client dies in `group`'s question.
        """
        at = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        wanted = ConsumerGroupTopicPartitions(group, at)
        (sent,) = self._admin.alter_consumer_group_offsets([wanted], request_timeout=self.timeout_s).values()
        return sent

    def group(self, name: str, partitions: Collection[Partition]) -> tuple[bool, Offsets]:
        """Whether a consumer group has members, and what they have committed of these partitions. Waits for commits
        within open transactions.

        A consumer is asked, which joins nothing: in an admin client of librdkafka 2.16 the answer "another coordinator"
        ends the process (rd_kafka_cgrp_op of no group, SIGSEGV).
        """

        def ask(left_s: float) -> tuple[bool, Offsets]:
            listed = self._admin.list_consumer_groups(request_timeout=left_s).result()
            if listed.errors:
                raise listed.errors[0]
            has_members = any(one.group_id == name and one.state not in _WITHOUT_MEMBERS for one in listed.valid)
            of_group = {"group.id": name, "isolation.level": "read_committed", "enable.auto.commit": False}
            with closing(CONSUMER.open(Consumer, {**self._config, **of_group})) as consumer:
                found = consumer.committed([TopicPartition(*each) for each in partitions], timeout=left_s)
            if failed := next((at.error for at in found if at.error is not None), None):
                raise KafkaException(failed)
            return has_members, {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

        return self._ask(f"asking for the consumer group {name}", ask)

    def _described(self, name: str, answer: Future[Any]) -> Topic | None:
        try:
            found = answer.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION):
                reason = error.args[0].str()
                raise ConfigError(
                    "topic-not-readable", f"topic {name!r} at {self.bootstrap_servers}: {reason}"
                ) from error
            raise
        topic_id = str(found.topic_id)
        return Topic(None if topic_id == NO_TOPIC_ID else topic_id, tuple(sorted(p.id for p in found.partitions)))

    @staticmethod
    def _configured(answer: Future[Any]) -> dict[str, str]:
        try:
            return {name: entry.value for name, entry in answer.result().items()}
        except KafkaException as error:
            if error.args[0].code() in NOT_SHOWN:
                return {}
            raise

    def _list(
        self, specs: Mapping[Partition, OffsetSpec], isolation: IsolationLevel, asked: OffsetsRequest | None = None
    ) -> OffsetSnapshot:
        if not specs:
            return OffsetSnapshot()
        on_their_way = [asked] if asked is not None and asked.answers.keys() == specs.keys() else []

        def ask(left_s: float) -> OffsetSnapshot:
            sent = on_their_way.pop() if on_their_way else self._send(specs, isolation, left_s)
            found = {at: answer.result() for at, answer in sent.answers.items()}
            epochs = {p: result.leader_epoch for p, result in found.items() if result.leader_epoch is not None}
            return OffsetSnapshot({p: result.offset for p, result in found.items()}, {}, epochs)

        return self._ask("asking for offsets", ask)

    def _send(
        self, specs: Mapping[Partition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
    ) -> OffsetsRequest:
        wanted = {TopicPartition(topic, number): spec for (topic, number), spec in specs.items()}
        sent = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout_s) if wanted else {}
        return OffsetsRequest(self._admin, {(at.topic, at.partition): answer for at, answer in sent.items()})

    def _ask(self, what: str, ask: Callable[[float], T]) -> T:
        """Ask until there is an answer or the time is up: after a restart, a partition has no leader for a while.

        A client that saw it so may never look again (seen with librdkafka 2.16: "No leaders found" for 40 s, while
        another client was answered at once). So a new one asks again.
        """
        self._said.clear()
        wait = Wait(self.timeout_s)
        while True:
            try:
                return ask(max(0.1, wait.left_s))
            except KafkaException as error:
                is_final = error.args[0].code() in (KafkaError._TIMED_OUT, *DENIED)
                if is_final or not wait.again():
                    self._admin.poll(0)
                    said = [*self._said, error.args[0]]
                    raise CONSUMER.unreachable(what, self.bootstrap_servers, self.timeout_s, said) from error
                if error.args[0].code() == KafkaError._NOENT:
                    self._admin = CONSUMER.open(AdminClient, self._config)
            finally:
                self._admin.poll(0)

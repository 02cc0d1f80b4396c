"""The topics that a sink writes to: its own, which must exist, and the ledger topic, which it creates; and the settings
that keep acknowledged records, which the ledger topic must have and the sink's own should."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from onefold.clients.kafka import error_codes
from onefold.clients.kafka.client_roles import PRODUCER
from onefold.clients.kafka.error_codes import creating
from onefold.clients.kafka.librdkafka import NO_TOPIC_ID
from onefold.core.errors import ConfigError, Retriable
from onefold.core.findings import Checks, Finding, passed
from onefold.core.invariants import NoLoss
from onefold.core.values.names import near
from onefold.core.waiting import Wait
from onefold.sinks.kafka.producer import initialize, opened
from onefold.sinks.kafka.sink_options import KafkaSinkConfig

REPLICAS = 3
LEDGER_CONFIG = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",  # it is read with a codec that has no compression library
    "unclean.leader.election.enable": "false",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3_600_000),
}


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is: `replicas` of the partition that has the fewest; no `config` where we may not see it."""

    name: str
    partitions: int
    replicas: int
    config: Mapping[str, str]

    @property
    def in_sync(self) -> int:
        return int(self.config.get("min.insync.replicas", "1"))

    def alter(self, setting: str, value: str) -> str:
        """The command that does it."""
        return f"kafka-configs.sh --alter --topic {self.name} --add-config {setting}={value}"

    def acknowledged_alone(self) -> str | None:
        """What is wrong where one of several brokers may acknowledge by itself, with what to do."""
        if not self.config or self.replicas < REPLICAS or self.in_sync >= 2:
            return None
        return (
            f"has min.insync.replicas={self.in_sync} of {self.replicas}: what one broker acknowledged alone is lost "
            f"with it: {self.alter('min.insync.replicas', '2')}"
        )

    def unwritable(self) -> str | None:
        """What is wrong where it asks for more replicas in sync than it has."""
        if self.in_sync <= self.replicas:
            return None
        return (
            f"has {self.replicas} replicas and min.insync.replicas={self.in_sync}: it can never be written to. Lower "
            "the one, or reassign it to more brokers"
        )


def ledger_faults(topic: TopicState) -> list[str]:
    """What keeps a topic from being a ledger topic, each with what to do."""
    name, config = topic.name, topic.config
    faults = [
        f"the ledger topic {name!r} has {setting}={config[setting]}, and it must be {LEDGER_CONFIG[setting]}, since "
        f"the sink's ledger lives there for good: {topic.alter(setting, LEDGER_CONFIG[setting])}"
        for setting in ("cleanup.policy", "compression.type", "unclean.leader.election.enable")
        if config.get(setting, LEDGER_CONFIG[setting]) != LEDGER_CONFIG[setting]
    ]
    return [
        *faults,
        *(f"the ledger topic {name!r} {why}" for why in (topic.acknowledged_alone(), topic.unwritable()) if why),
    ]


T = TypeVar("T")

_PROPAGATION_S = 5.0
_WRITE = frozenset({AclOperation.WRITE, AclOperation.DESCRIBE})
_READ_WRITE = _WRITE | {AclOperation.READ}


class Topics:
    """Questions of one sink to its brokers' admin interface."""

    def __init__(self, settings: KafkaSinkConfig, pipeline: str) -> None:
        self._settings, self._where = settings, settings.where(pipeline)
        self._ledger = settings.ledger_topic(pipeline)
        self._said: list[KafkaError] = []
        config = PRODUCER.admin_config(settings.bootstrap_servers, settings.client_config)
        self._admin = PRODUCER.open(AdminClient, {**config, "error_cb": self._said.append})

    def check_target(self) -> None:
        """Raise ConfigError unless the sink's topic is there, and can be written to."""
        topic = self._settings.topic
        found = self._once_there(topic, _WRITE)
        if found is None:
            raise ConfigError(
                "topic-missing",
                f"{self._where}: Kafka at {self._settings.bootstrap_servers} has no topic {topic!r}"
                f": create it, with as many partitions as you choose"
                f" ({creating(topic, self._settings.bootstrap_servers)}), or correct the name in"
                f" topic={near(topic, self.named(''))}",
            )
        if (why := self._kept(topic, found).unwritable()) is not None:
            raise ConfigError("topic-unwritable", f"{self._where}: the topic {topic!r} {why}")

    def target_id(self) -> str | None:
        """The id of the sink's topic, empty where brokers know no ids; None where there is no such topic."""
        found = self._once_there(self._settings.topic, _WRITE)
        return None if found is None else str(found.topic_id).removeprefix(NO_TOPIC_ID)

    def check_ledger(self) -> Checks[TopicState | None]:
        """Whether the ledger topic keeps what it acknowledged; None where it is not there, and may be made."""
        name = self._ledger
        found = self._describe(name, _READ_WRITE)
        if found is None:
            if self._create(name, is_trial=True):
                return None
            found = self._once_there(name, _READ_WRITE)
            if found is None:
                raise Retriable(
                    "topic-not-there-yet", f"{self._where}: the topic {name!r} was created, and is not there yet"
                )
        state = self._kept(name, found)
        for fault in ledger_faults(state):
            yield Finding.of(ConfigError("ledger-topic-unsuitable", f"{self._where}: {fault}"), NoLoss.name)
        return state

    def make_ledger_topic(self) -> None:
        """Create it if it is missing, and check it."""
        if passed(self.check_ledger()) is None:
            self._create(self._ledger)
            passed(self.check_ledger())

    def look_at_target(self) -> TopicState | None:
        """As it is now, None if it is not there. Raises ConfigError where the sink may not write to it."""
        return self.look(self._settings.topic, _WRITE)

    def look_at_ledger(self) -> TopicState | None:
        """The same of the ledger topic, which the sink reads, too."""
        return self.look(self._ledger, _READ_WRITE)

    def look(self, topic: str, wanted: frozenset[AclOperation] = frozenset()) -> TopicState | None:
        """The same of any topic."""
        found = self._describe(topic, wanted)
        return self._kept(topic, found) if found is not None else None

    def may_read(self, topic: str) -> bool:
        """Whether a topic is there, and the sink may read it."""
        try:
            return self._describe(topic, frozenset({AclOperation.READ})) is not None
        except ConfigError:
            return False

    def is_there(self, topic: str) -> bool:
        return self._describe(topic) is not None

    def empty(self, topic: str) -> None:
        """Delete all records that a topic has by now."""
        found, timeout_s = self._describe(topic), self._settings.timeout_s
        ends = [TopicPartition(topic, each.id, OFFSET_END) for each in found.partitions]
        for future in self._admin.delete_records(ends, request_timeout=timeout_s).values():
            self._answer(future.result, f"deleting the records of topic {topic!r}")

    def drop_ledger(self) -> None:
        """Delete the ledger topic, and wait until no broker knows it: a start would take it for one that stays."""
        future = self._admin.delete_topics([self._ledger], request_timeout=self._settings.timeout_s)[self._ledger]
        self._answer(future.result, f"deleting topic {self._ledger!r}")
        wait = Wait(self._settings.timeout_s)
        while self.is_there(self._ledger) and wait.again():
            pass

    def named(self, prefix: str) -> list[str]:
        """The topics whose names begin so, as far as the sink may see them."""
        return sorted(name for name in self._known().topics if name.startswith(prefix))

    def try_transactions(self, transactional_id: str) -> None:
        """Find out whether transactions with the sink's prefix and its timeout are allowed; none is begun."""
        timeout_ms = int(self._settings.transaction_timeout_s * 1000)
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": str(timeout_ms)}
        producer = opened(self._settings, {**own, "error_cb": self._said.append})
        doing = f"{self._where}, trying transactional id {transactional_id!r} with a timeout of {timeout_ms} ms"
        initialize(producer, self._settings, doing)

    def broker_settings(self) -> list[dict[str, str]]:
        """Each broker's; none of those that the sink may not see."""
        found = [self._config(ResourceType.BROKER, str(broker)) for broker in sorted(self._known().brokers)]
        return [config for config in found if config]

    def held_back(self, topic: str, partitions: int) -> dict[int, int]:
        """How many offsets of which partitions read_committed readers don't see yet, for transactions that are open."""
        ends = []
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
            latest = {TopicPartition(topic, n): OffsetSpec.latest() for n in range(partitions)}  # type: ignore[no-untyped-call]
            asked = self._admin.list_offsets(latest, isolation_level=level, request_timeout=self._settings.timeout_s)
            doing = f"asking for the end of {topic!r}"
            ends.append({at.partition: self._answer(future.result, doing).offset for at, future in asked.items()})
        return {n: end - ends[1][n] for n, end in ends[0].items() if end > ends[1][n]}

    def _known(self) -> Any:
        """Topics and brokers."""
        return self._answer(lambda: self._admin.list_topics(timeout=self._settings.timeout_s), "listing topics")

    def _describe(self, topic: str, wanted: frozenset[AclOperation] = frozenset()) -> Any:
        """None if it is not there. Raises ConfigError where the operations that the sink needs are not allowed."""
        futures = self._admin.describe_topics(
            TopicCollection([topic]),
            include_authorized_operations=True,
            request_timeout=self._settings.timeout_s,
        )
        try:
            found = self._answer(futures[topic].result, f"describing topic {topic!r}")
        except KafkaException:
            return None
        allowed = frozenset(found.authorized_operations or ())
        if allowed and not (missing := wanted - allowed):
            return found
        if allowed:
            raise ConfigError(
                "kafka-access-denied",
                f"{self._where}: {', '.join(sorted(op.name for op in missing))} on topic {topic!r} is denied: "
                "kafka-acls.sh --add with these operations for the sink's principal",
            )
        return found

    def _create(self, name: str, *, is_trial: bool = False) -> bool:
        """False where it is there. In a trial the brokers only say whether they would."""
        replicas, config = self._ledger_layout()
        topic = NewTopic(name, num_partitions=1, replication_factor=replicas, config=config)
        timeout_s = self._settings.timeout_s
        future = self._admin.create_topics([topic], request_timeout=timeout_s, validate_only=is_trial)[name]
        try:
            self._answer(future.result, f"creating the ledger topic {name!r}")
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def creating_ledger(self) -> str:
        """The command that makes the ledger topic as `make_ledger_topic` does."""
        replicas, config = self._ledger_layout()
        settings = "".join(f" --config {name}={value}" for name, value in config.items())
        return (
            f"kafka-topics.sh --bootstrap-server {self._settings.bootstrap_servers} --create --topic {self._ledger}"
            f" --partitions 1 --replication-factor {replicas}{settings}"
        )

    def _ledger_layout(self) -> tuple[int, dict[str, str]]:
        """Of a ledger topic that is made: replicas, and settings."""
        replicas = min(REPLICAS, len(self._known().brokers))
        return replicas, {**LEDGER_CONFIG, "min.insync.replicas": str(2 if replicas >= REPLICAS else 1)}

    def _once_there(self, topic: str, wanted: frozenset[AclOperation]) -> Any:
        """One that was made a moment ago may not be known to every broker yet. None if it is not there in a while."""
        wait = Wait(min(self._settings.timeout_s, _PROPAGATION_S))
        while (found := self._describe(topic, wanted)) is None and wait.again():
            pass
        return found

    def _kept(self, topic: str, found: Any) -> TopicState:
        replicas = min(len(partition.replicas) for partition in found.partitions)
        return TopicState(topic, len(found.partitions), replicas, self._config(ResourceType.TOPIC, topic))

    def _config(self, kind: ResourceType, name: str) -> dict[str, str]:
        """The settings of a topic or a broker; none where the sink may not see them."""
        resource = ConfigResource(kind, name)
        future = self._admin.describe_configs([resource], request_timeout=self._settings.timeout_s)[resource]
        try:
            return {name: entry.value for name, entry in future.result().items()}
        except KafkaException as error:
            if error.args[0].code() in error_codes.NOT_SHOWN:
                return {}
            raise error_codes.translate(error.args[0], f"{self._where}, reading the settings of {name!r}") from error

    def _answer(self, call: Callable[[], T], doing: str) -> T:
        """KafkaException passes where the answer is that the topic is there already, or is not."""
        try:
            return call()
        except KafkaException as error:
            code = error.args[0].code()
            if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_ALREADY_EXISTS):
                raise
            if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                self._admin.poll(0)
                raise PRODUCER.unreachable(
                    f"{self._where}, {doing}",
                    self._settings.bootstrap_servers,
                    self._settings.timeout_s,
                    [*self._said, error.args[0]],
                ) from error
            raise error_codes.translate(error.args[0], f"{self._where}, {doing}") from error

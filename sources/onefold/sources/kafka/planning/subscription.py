"""The topics that a source reads: those it names, or all that match a pattern, new ones too."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from onefold.clients.kafka.error_codes import creating
from onefold.core.errors import ConfigError, DataLoss
from onefold.core.values.names import near
from onefold.core.waiting import Wait
from onefold.sources.kafka.offsets import Partition
from onefold.sources.kafka.planning.broker import Broker, Topic

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")  # positions of a flow's other sources have other names
PROPAGATION_S = 5.0  # how long a broker may not know yet what another one does: a new topic, a new leader's end


@dataclass(frozen=True)
class Subscription:
    """Topics by name, or by a regular expression that the whole name matches (Kafka's own topics never do).

    `forgotten` topics are not read, and it is no loss that they are gone: positions in them stay as they are.
    """

    topics: tuple[str, ...]
    pattern: str | None = None
    forgotten: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.topics) if self.pattern is None else f"the topics that match {self.pattern!r}"

    def check(self) -> None:
        """Raise `ConfigError` with what is wrong. Asks no server."""
        if both := sorted({*self.topics} & {*self.forgotten}):
            raise ConfigError(
                "options-conflict",
                f"the topic {both[0]!r} is to be read, and is in forget_topics: take it out of one of them",
            )
        if self.pattern is not None:
            if self.topics:
                raise ConfigError(
                    "options-conflict", f"name the topics ({', '.join(self.topics)}) or give topics_pattern, not both"
                )
            try:
                re.compile(self.pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(
                    "option-value", f"topics_pattern is a regular expression, not {self.pattern!r}: {error}"
                ) from None
            return
        if not self.topics or not all(isinstance(t, str) and t.strip() for t in self.topics):
            raise ConfigError(
                "option-value", f"name at least one topic, not {self.topics!r}: KafkaSource('orders', ...)"
            )
        if bad := [t for t in self.topics if "," in t or "/" in t or t != t.strip()]:
            raise ConfigError("option-value", f"{bad[0]!r} is not a topic's name: give several topics as a list")
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError("option-value", f"a topic is named twice: {', '.join(self.topics)}")

    def covers(self, topic: str) -> bool:
        """Whether this topic is read, should it exist."""
        if self.pattern is None or topic in self.forgotten:
            return topic in self.topics
        return bool(re.fullmatch(self.pattern, topic) and _TOPIC.fullmatch(topic)) and not topic.startswith("__")

    def check_continues(self, topics: Collection[str], whose: str) -> None:
        """Raise `ConfigError` if there are positions in a topic that this doesn't cover."""
        if strangers := sorted(t for t in topics if not self.covers(t) and t not in self.forgotten):
            raise ConfigError(
                "topic-not-read",
                f"{whose} holds positions of the topic {strangers[0]!r}, which the source does not read ({self}):"
                " name it in topics= again, or start with a new checkpoint",
            )

    def find(self, broker: Broker, known: Collection[str] = ()) -> dict[str, Topic]:
        """The topics as they are now. Raises `ConfigError` for a topic that does not exist, and `DataLoss` if it is
        one of `known`, in which there are positions."""
        known = [topic for topic in known if topic not in self.forgotten]
        wait = Wait(min(broker.timeout_s, PROPAGATION_S))
        while True:
            wanted = self.topics if self.pattern is None else filter(self.covers, broker.topic_names())
            found = broker.topics(sorted({*wanted, *known}))
            missing = [topic for topic in dict.fromkeys((*known, *self.topics)) if topic not in found]
            if not missing:
                return found
            if not wait.again():
                if missing[0] in known:
                    raise DataLoss(
                        "topic-deleted",
                        f"{missing[0]}: the topic was deleted, and there are positions in it. What was not read of it"
                        " is lost. Restore it with its records at the same offsets; or, if it is gone for good, name it"
                        " in forget_topics",
                    )
                command = creating(missing[0], broker.bootstrap_servers)
                raise ConfigError(
                    "topic-missing",
                    f"Kafka at {broker.bootstrap_servers} has no topic {', '.join(map(repr, missing))}: create it,"
                    f" with as many partitions as you choose ({command}), or correct the name in"
                    f" topics={near(missing[0], broker.topic_names())}",
                )

    def partitions(self, broker: Broker) -> list[Partition]:
        """Every partition of the topics as they are now, topic by topic. Raises as `find` does."""
        return [(topic, number) for topic, found in self.find(broker).items() for number in found.partitions]

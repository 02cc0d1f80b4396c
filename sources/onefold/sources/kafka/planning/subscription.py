"""Which topics a source reads: those it names, or those that match a pattern, whenever they come."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import dataclass

from onefold.core.errors import ConfigError, DataLoss
from onefold.sources.kafka.planning.broker import Broker, Topic
from onefold.sources.kafka.planning.offset_snapshot import Partition

__all__ = ["SETTLE_S", "Subscription"]

SETTLE_S = 5.0  # how long a broker may not know yet what another one does: a new topic, a new leader's end


@dataclass(frozen=True)
class Subscription:
    """Topics by name, or by a regular expression that the whole name matches (Kafka's own topics never do).

    `forgotten` ones are not read, and nobody asks where they went: positions in them stay as they are.
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
                f"the topic {both[0]!r} is to be read, and is in forget_topics: take it out of one of them"
            )
        if self.pattern is not None:
            if self.topics:
                raise ConfigError(f"name the topics ({', '.join(self.topics)}) or give topics_pattern, not both")
            try:
                re.compile(self.pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(f"topics_pattern is a regular expression, not {self.pattern!r}: {error}") from None
            return
        if not self.topics or not all(isinstance(t, str) and t.strip() for t in self.topics):
            raise ConfigError(f"name at least one topic, not {self.topics!r}: KafkaSource('orders', ...)")
        if bad := [t for t in self.topics if "," in t or "/" in t or t != t.strip()]:
            raise ConfigError(f"{bad[0]!r} is not a topic's name: give several topics as several arguments")
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError(f"a topic is named twice: {', '.join(self.topics)}")

    def covers(self, topic: str) -> bool:
        """Whether this topic is read, should it exist."""
        if self.pattern is None or topic in self.forgotten:
            return topic in self.topics
        return re.fullmatch(self.pattern, topic) is not None and not topic.startswith("__")

    def check_continues(self, topics: Collection[str], whose: str) -> None:
        """Raise `ConfigError` if there are positions in a topic that this doesn't cover."""
        if strangers := sorted(t for t in topics if not self.covers(t) and t not in self.forgotten):
            raise ConfigError(
                f"{whose} holds positions of the topic {strangers[0]!r}, which subscribe does not name"
                f" ({self}): subscribe to it again, or start with a new checkpoint"
            )

    def find(self, broker: Broker, known: Collection[str] = ()) -> dict[str, Topic]:
        """The topics as they are now. Raises `ConfigError` where one was never there, `DataLoss` where a `known` one,
        of which there are positions, is gone."""
        known = [topic for topic in known if topic not in self.forgotten]
        deadline = time.monotonic() + min(broker.timeout_s, SETTLE_S)
        while True:
            wanted = self.topics if self.pattern is None else filter(self.covers, broker.topic_names())
            found = broker.topics(sorted({*wanted, *known}))
            missing = [topic for topic in dict.fromkeys((*known, *self.topics)) if topic not in found]
            if not missing:
                return found
            if time.monotonic() > deadline:
                if missing[0] in known:
                    raise DataLoss(
                        f"{missing[0]}: the topic was deleted, and there are positions in it. What was not read of it"
                        " is lost. Restore it with its records at the same offsets; or, if it is gone for good, name it"
                        " in forget_topics"
                    )
                raise ConfigError(
                    f"Kafka at {broker.bootstrap_servers} has no topic {', '.join(map(repr, missing))}: create it, or"
                    " correct the name in subscribe"
                )
            time.sleep(0.25)

    def partitions(self, broker: Broker) -> list[Partition]:
        """Every partition of the topics as they are now, topic by topic. Raises as `find` does."""
        return [(topic, number) for topic, found in self.find(broker).items() for number in found.partitions]

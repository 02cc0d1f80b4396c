"""Where topics begin and end, asked of the broker; and how much of that one batch takes, which is arithmetic."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from onefold.core.errors import ConfigError, DataLoss, Retriable
from onefold.core.positions import Positions
from onefold.sources.kafka import settings as client

__all__ = ["EARLIEST", "LATEST", "Broker", "OffsetRange", "limit", "not_behind", "ranges"]

Partition = tuple[str, int]
Offsets = dict[Partition, int]

LATEST, EARLIEST = -1, -2  # as in Spark's startingOffsets, and in Kafka's own ListOffsets

_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_SETTLE_S = 5.0  # how long an end may stay behind after a change of leader before we call it a loss


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition: from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


class Broker:
    """Questions to a Kafka cluster. Each ends within `timeout_s`; not thread-safe; does not pickle."""

    def __init__(self, bootstrap_servers: str, settings: client.Settings, timeout_s: float = 60.0) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self._isolation = client.isolation(settings)
        self._said: deque[KafkaError] = deque(maxlen=5)
        config: dict[str, Any] = {
            **client.admin_config(bootstrap_servers, settings),
            "error_cb": self._said.append,
            "logger": client.LOGGER,
        }
        try:
            self._admin = AdminClient(config)
        except KafkaException as error:
            raise client.refused_by_client(error) from error

    def partitions(self, topics: Collection[str]) -> list[Partition]:
        """Every partition of these topics. Raises `ConfigError` for a topic that doesn't exist."""
        deadline = time.monotonic() + min(self.timeout_s, _SETTLE_S)
        while True:
            found, missing = self._metadata(topics)
            if not missing:
                return found
            if time.monotonic() > deadline:  # a topic made a moment ago may not be known to every broker yet
                raise ConfigError(self._no_topic(missing))
            time.sleep(0.25)

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """The first record that Kafka still has, of each partition."""
        return self._list(partitions, _FIRST, self._isolation)

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """The end of each partition: with read_committed the last stable offset, before any open transaction."""
        return self._list(partitions, _END, self._isolation)

    def log_end(self, partitions: Iterable[Partition]) -> Offsets:
        """The end of each partition whether or not transactions are open."""
        return self._list(partitions, _END, IsolationLevel.READ_UNCOMMITTED)

    def resolve(
        self, topics: Collection[str], spec: str | Mapping[str, Mapping[str, int]], complete: bool = True
    ) -> Positions:
        """Explicit positions for "earliest", "latest", or offsets by topic and partition (-2 earliest, -1 latest).

        `complete` refuses offsets that leave a partition out; without it, such a partition stands at its first record.
        """
        partitions = self.partitions(topics)
        wanted: Offsets = {}
        if isinstance(spec, str):
            wanted = dict.fromkeys(partitions, {"earliest": EARLIEST, "latest": LATEST}[spec])
        else:
            wanted = {(topic, int(p)): offset for topic, by in spec.items() for p, offset in by.items()}
            if unknown := sorted(wanted.keys() - set(partitions)):
                raise ConfigError(f"startingOffsets names {_names(unknown)}, which Kafka does not have: take it out")
            missing = sorted(set(partitions) - wanted.keys())
            if missing and complete:
                raise ConfigError(
                    f"startingOffsets leaves out {_names(missing)}: give an offset for every partition, "
                    f"-2 for the earliest or -1 for the latest"
                )
        resolved = dict(wanted)
        if early := [p for p, offset in wanted.items() if offset == EARLIEST]:
            resolved |= self.earliest(early)
        if late := [p for p, offset in wanted.items() if offset == LATEST]:
            resolved |= self.latest(late)
        return positions(resolved)

    def _metadata(self, topics: Collection[str]) -> tuple[list[Partition], list[str]]:
        found: list[Partition] = []
        missing = []
        deadline = time.monotonic() + self.timeout_s
        for topic in topics:
            try:
                answer = self._admin.list_topics(topic, timeout=max(0.1, deadline - time.monotonic())).topics[topic]
            except KafkaException as error:
                raise self._failed(f"asking for the partitions of {topic!r}", error) from error
            self._admin.poll(0)
            if answer.error is not None and answer.error.code() in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.TOPIC_EXCEPTION,
            ):
                raise ConfigError(f"topic {topic!r} at {self.bootstrap_servers}: {answer.error.str()}")
            if answer.error is not None or not answer.partitions:
                missing.append(topic)
            found += [(topic, number) for number in sorted(answer.partitions)]
        return found, missing

    def _list(self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel) -> Offsets:
        asked = {TopicPartition(topic, number): spec for topic, number in partitions}
        if not asked:
            return {}
        self._said.clear()
        deadline = time.monotonic() + self.timeout_s
        while True:
            left_s = max(0.1, deadline - time.monotonic())
            try:
                answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=left_s)
                return {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
            except KafkaException as error:
                # A partition without a leader, as during a restart, is asked again until the time is up.
                if error.args[0].code() == KafkaError._TIMED_OUT or time.monotonic() + 0.25 > deadline:
                    raise self._failed("asking for offsets", error) from error
                time.sleep(0.25)
            finally:
                self._admin.poll(0)

    def _failed(self, what: str, error: KafkaException) -> Exception:
        self._admin.poll(0)
        return client.unreachable(what, self.bootstrap_servers, self.timeout_s, [*self._said, error.args[0]])

    def _no_topic(self, missing: list[str]) -> str:
        names = ", ".join(map(repr, missing))
        return f"Kafka at {self.bootstrap_servers} has no topic {names}: create it, or correct the name in subscribe"


def positions(offsets: Mapping[Partition, int]) -> Positions:
    """As the protocol keeps them: `orders/0`."""
    return Positions.of({f"{topic}/{number}": offset for (topic, number), offset in offsets.items()})


def offsets_of(at: Positions) -> Offsets:
    return {(topic, number): offset for topic, by in at.topics().items() for number, offset in by.items()}


def limit(start: Mapping[Partition, int], latest: Mapping[Partition, int], records_max: int | None) -> Offsets:
    """The end of the next batch: at most `records_max` offsets after `start`, shared in proportion to the lag.

    Every partition that lags gets at least one, so that none starves (so a bound below the number of lagging
    partitions is exceeded by their number). A partition without a start stands at 0; none goes beyond its latest,
    nor behind its start.
    """
    lag = {p: max(0, end - start.get(p, 0)) for p, end in latest.items()}
    total = sum(lag.values())
    if records_max is None or total <= records_max:
        return {p: start.get(p, 0) + lag[p] for p in latest}
    lagging = sum(behind > 0 for behind in lag.values())
    beyond = max(0, records_max - lagging)  # what there is to share once each has its one
    share = {p: 1 + (n - 1) * beyond // max(1, total - lagging) if n else 0 for p, n in lag.items()}
    rest = records_max - sum(share.values())
    for p in sorted(lag, key=lambda p: lag[p] - share[p], reverse=True):  # what the rounding down left over
        if rest <= 0:
            break
        more = min(rest, lag[p] - share[p])
        share[p] += more
        rest -= more
    return {p: start.get(p, 0) + share[p] for p in latest}


def ranges(start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[OffsetRange]:
    """One range for each partition that has anything between the two. A partition without a start stands at 0."""
    for (topic, number), offset in start.items():
        if offset > end.get((topic, number), -1):
            raise DataLoss(
                f"{topic}/{number}: this batch would start at {offset} and end at {end.get((topic, number), 'nothing')}"
                ": the checkpoint and the starting offsets belong to different runs, or the topic was made anew"
            )
    return [
        OffsetRange(topic, number, start.get((topic, number), 0), offset)
        for (topic, number), offset in sorted(end.items())
        if offset > start.get((topic, number), 0)
    ]


def not_behind(broker: Broker, start: Mapping[Partition, int], latest: Offsets) -> Offsets:
    """`latest`, once no partition ends before its start; raises `DataLoss` if one stays behind."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        behind = sorted(p for p, offset in start.items() if latest.get(p, -1) < offset)
        if not behind:
            return latest
        if time.monotonic() > deadline:
            topic, number = behind[0]
            now = latest.get((topic, number))
            raise DataLoss(
                f"{topic}/{number}: the next offset to read is {start[topic, number]}, but "
                + (f"the partition now ends at {now}" if now is not None else "the partition is gone")
                + ". The topic was deleted and made anew, or its log was cut. Restore it, or accept the loss: start "
                "over under a new pipeline name with explicit startingOffsets for every partition"
            )
        time.sleep(0.5)  # a new leader may not know the old end yet
        try:
            latest = broker.latest(latest)
        except Retriable as error:
            raise Retriable(f"{error} (checking whether {_names(behind)} lost records)") from error


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}/{number}" for topic, number in partitions)

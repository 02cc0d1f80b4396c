"""Where an operator wants a pipeline's positions: what is asked for is parsed, and resolved by what the broker says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.sources.kafka.offsets import OffsetSnapshot, Partition
from onefold.sources.kafka.planning import start_positions
from onefold.sources.kafka.planning.start_positions import Start
from onefold.sources.kafka.planning.subscription import Subscription
from onefold.sources.kafka.source_options import KafkaSourceConfig

_FORM = (
    " takes earliest, latest, at=2026-11-20T00:00:00Z (the first record from then on), or"
    " TOPIC:PARTITION=OFFSET, such as orders:0=17, where the offset may be earliest or latest, too"
)


_PARTITION = re.compile("[0-9]{1,10}")
_OFFSET = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class WantedPositions:
    """The positions, with their topics' ids, and what Kafka has of each partition: its first offset, and its end."""

    positions: Positions
    first: dict[Partition, int]
    end: dict[Partition, int]


def wanted_positions(
    source: KafkaSourceConfig, stands: Positions, texts: Sequence[str], option: str = "--set"
) -> WantedPositions:
    """What `texts`, of that option, ask for; partitions that they don't name stay where they stand.

    Raises ConfigError for a text that says nothing, and for an offset outside its partition; DataLoss where a topic of
    these positions is gone, or was made anew.
    """
    start = _parse(texts, source.subscription, option)
    broker = source.broker()
    topics = source.subscription.find(broker, stands.topics().keys())
    start_positions.check_ids(stands.topic_ids(), topics)
    there = [(topic, number) for topic, found in sorted(topics.items()) for number in found.partitions]
    if unknown := sorted(start.partitions.keys() - set(there)):
        topic, number = unknown[0]
        raise ConfigError("partition-unknown", f"{option} names {topic}:{number}, which Kafka does not have")
    first, end, log_end = broker.earliest(there), broker.latest(there), broker.log_end(there)
    places = {partition: place for partition in there if (place := start.place(partition)) is not None}
    found = start_positions.offsets_at(broker, places, first, end)
    for (topic, number), offset in found.items():
        at = topic, number
        if not first[at] <= offset <= log_end[at]:
            raise ConfigError(
                "position-outside-partition",
                f"{option} {topic}:{number}={offset}: Kafka has the offsets from {first[at]} to {log_end[at]} of that"
                " partition. Name one of these (the last is the end, before the next record)",
            )
    ids = {name: topic.id for name, topic in topics.items() if topic.id is not None}
    kept = OffsetSnapshot.of(stands).offsets
    return WantedPositions(OffsetSnapshot({**kept, **found}, ids).positions(), first, end)


def _parse(texts: Sequence[str], subscription: Subscription, option: str) -> Start:
    every, partitions = None, dict[str, dict[str, int | str]]()
    for text in texts:
        name, _, value = text.partition("=")
        topic, _, number = name.rpartition(":")
        if text in ("earliest", "latest") or name == "at":
            try:
                every = start_positions.parse(option, value or text, subscription).every
            except ConfigError as error:
                raise ConfigError("option-value", f"{option}{_FORM}, not {text!r}") from error
        elif topic and _PARTITION.fullmatch(number) and _OFFSET.fullmatch(value):
            partitions.setdefault(topic, {})[number] = int(value)
        elif topic and _PARTITION.fullmatch(number) and value and not value.lstrip("-").isdigit():
            partitions.setdefault(topic, {})[number] = value
        else:
            raise ConfigError("option-value", f"{option}{_FORM}, not {text!r}")
    if not partitions:
        return Start(every)
    return replace(start_positions.parse(option, json.dumps(partitions), subscription), every=every)

"""Examines what exactly-once reading from Kafka depends on, as the brokers are set up now. It writes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from onefold.core.findings import Finding, Level
from onefold.core.invariants import NoLoss
from onefold.core.positions import Positions
from onefold.core.values.remedies import RESET
from onefold.sources.kafka.offsets import names_of
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.planning.lag import PartitionLag, lag
from onefold.sources.kafka.planning.start_positions import check_ids, initial
from onefold.sources.kafka.source_options import KafkaSourceConfig

_LATE = 0.5  # of the retention time: who has not read by then has as long again to find out why


def examine(source: KafkaSourceConfig, at: Positions | None) -> Iterator[Finding]:
    """`at`: where the pipeline stands, if it was ever started. Raises ConfigError, DataLoss as a start does."""
    broker = source.broker()
    known = at if at is not None else Positions()
    topics = source.subscription.find(broker, known.topics().keys())
    check_ids(known.topic_ids(), topics)
    settings = broker.settings_of(topics)
    for topic, config in sorted(settings.items()):
        yield from retention(topic, config)
    if at is None:
        initial(broker, source.subscription, source.starting_text)
        yield Finding(Level.FINE, "where the pipeline stands is not known: it has not been started with this store")
        return
    partitions = lag(source, at, broker)
    yield from _behind(partitions)
    yield from _headroom(broker, partitions, settings)


def retention(topic: str, config: Mapping[str, str]) -> Iterator[Finding]:
    """What a topic with these settings keeps; brokers that are not Apache's have some of them only."""
    if not config:
        yield Finding(Level.CAUTION, f"the settings of topic {topic!r} are not shown to us (DESCRIBE_CONFIGS on it)")
        return
    retention_ms = config.get("retention.ms")
    size = int(config.get("retention.bytes", "-1"))
    policy = config.get("cleanup.policy", "delete")
    if "delete" not in policy or retention_ms == "-1":
        kept = "for good"
    elif retention_ms is None:
        kept = "for a time that is not shown"
    else:
        kept = f"for {int(retention_ms) / 3_600_000:,.4g} hours"
    if size >= 0 and "delete" in policy:
        kept += f", and of each partition {size:,} bytes at most"
    if "compact" in policy:
        kept += ", of each key the last one only: what was replaced is not read"
    yield Finding(Level.FINE, f"topic {topic!r} keeps records {kept}")
    if config.get("unclean.leader.election.enable") == "true":
        yield Finding(
            Level.CAUTION,
            f"topic {topic!r} has unclean.leader.election.enable=true: records that were read may be cut from it. The "
            "source notices that (DataLoss); turn it off",
        )


def _behind(partitions: tuple[PartitionLag, ...]) -> Iterator[Finding]:
    held = [p for p in partitions if p.held_back]
    yield Finding(Level.FINE, f"{sum(p.behind for p in partitions):,} offsets are still to be read")
    if held:
        names = names_of([(p.topic, p.partition) for p in held])
        offsets = f"{sum(p.held_back for p in held):,} offsets"
        yield Finding(Level.FINE, f"{offsets} in {names} wait for the end of somebody's open transaction")


def _headroom(
    broker: Broker, partitions: tuple[PartitionLag, ...], settings: Mapping[str, Mapping[str, str]]
) -> Iterator[Finding]:
    """How far retention is from what was not read yet."""
    if gone := [p for p in partitions if p.headroom < 0]:
        names = names_of([(p.topic, p.partition) for p in gone])
        yield Finding(
            Level.PROBLEM,
            f"{sum(-p.headroom for p in gone):,} offsets that were not read are deleted already, in {names}: the next "
            "batch ends with DataLoss. To go on without them, with explicit "
            f"starting_offsets, {RESET}",
            (NoLoss.name,),
        )
    now_ms = time.time() * 1000
    lagging = [p for p in partitions if p.behind and p not in gone]
    halves_ms = {
        (p.topic, p.partition): int(now_ms - _LATE * kept_ms)
        for p in lagging
        if (kept_ms := int(settings[p.topic].get("retention.ms", "-1"))) > 0
        and "delete" in settings[p.topic].get("cleanup.policy", "delete")
    }
    if not halves_ms:
        return
    younger = broker.at_times(halves_ms)
    late = [p for p in lagging if (at := younger.get((p.topic, p.partition))) is not None and not 0 <= at <= p.position]
    if late:
        names = names_of([(p.topic, p.partition) for p in late])
        yield Finding(
            Level.CAUTION,
            f"records in {names} wait to be read for more than half of the time that Kafka keeps them: start the "
            "pipeline, or raise retention.ms, before they are deleted",
        )
    else:
        yield Finding(Level.FINE, "what is still to be read is younger than half of the time that Kafka keeps it")

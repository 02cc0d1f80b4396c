"""Which settings keep what brokers acknowledged: of the progress topic, which must have them, and of the sink's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PROGRESS", "REPLICAS", "Kept", "progress_faults"]

REPLICAS = 3
PROGRESS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",  # it is read with a codec that has no compression library
    "unclean.leader.election.enable": "false",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3_600_000),
}


@dataclass(frozen=True, slots=True)
class Kept:
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


def progress_faults(topic: Kept) -> list[str]:
    """What keeps a topic from being a progress topic, each with what to do."""
    name, config = topic.name, topic.config
    faults = [
        f"the progress topic {name!r} has {setting}={config[setting]}, and it must be {PROGRESS[setting]}, since the "
        f"sink's ledger lives there for good: {topic.alter(setting, PROGRESS[setting])}"
        for setting in ("cleanup.policy", "compression.type", "unclean.leader.election.enable")
        if config.get(setting, PROGRESS[setting]) != PROGRESS[setting]
    ]
    if topic.config and topic.replicas >= REPLICAS and topic.in_sync < 2:
        faults.append(
            f"the progress topic {name!r} has min.insync.replicas={topic.in_sync} of {topic.replicas}: what one broker "
            f"acknowledged alone is lost with it: {topic.alter('min.insync.replicas', '2')}"
        )
    if topic.in_sync > topic.replicas:
        faults.append(
            f"the progress topic {name!r} has {topic.replicas} replicas and min.insync.replicas={topic.in_sync}: it "
            "can never be written to. Lower the one, or reassign it to more brokers"
        )
    return faults

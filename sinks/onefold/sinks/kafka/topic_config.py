"""Which settings keep what brokers acknowledged: of the ledger topic, which must have them, and of the sink's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LEDGER_CONFIG", "REPLICAS", "TopicState", "ledger_faults"]

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

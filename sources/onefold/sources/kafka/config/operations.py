"""Settings for running a source: which reader, how much at once, and whom to tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onefold.core.errors import ConfigError

if TYPE_CHECKING:
    from onefold.sources.kafka.source import KafkaSource

__all__ = ["OPTIONS", "READERS", "check", "options", "settings"]

OPTIONS = ("maxBytesPerTrigger", "commitToGroup", "forgetTopics")

READERS = ("onefold", "spark")


def check(reader: str, bytes_max: int | None, group: str | None) -> None:
    """Raise `ConfigError` with what is wrong. Asks no server."""
    if reader not in READERS:
        raise ConfigError(f"reader is 'onefold' or 'spark' (Spark's own Kafka connector), not {reader!r}")
    if bytes_max is not None and (not isinstance(bytes_max, int) or bytes_max < 1):
        raise ConfigError(f"maxBytesPerTrigger is a whole number from 1, not {bytes_max!r}")
    if bytes_max is not None and reader == "spark":
        raise ConfigError("maxBytesPerTrigger: Spark's own connector has no such limit; use maxOffsetsPerTrigger")
    if group is not None and (not isinstance(group, str) or not group.strip()):
        raise ConfigError(f"commitToGroup names a consumer group, not {group!r}")


def options(source: KafkaSource, *, in_pipeline: bool) -> dict[str, str]:
    """As a data source's options. A pipeline tells the group itself."""
    given = {
        "maxBytesPerTrigger": source.max_bytes_per_trigger,
        "commitToGroup": None if in_pipeline else source.commit_to_group,
        "forgetTopics": ",".join(source.forget_topics) or None,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def settings(given: Mapping[str, str]) -> dict[str, Any]:
    """The settings that these options stand for."""
    bytes_max = given.get("maxBytesPerTrigger")
    if bytes_max is not None and not bytes_max.strip().isdigit():
        raise ConfigError(f"maxBytesPerTrigger is a whole number from 1, not {bytes_max!r}")
    return {
        "max_bytes_per_trigger": None if bytes_max is None else int(bytes_max),
        "commit_to_group": given.get("commitToGroup"),
        "forget_topics": [topic.strip() for topic in given.get("forgetTopics", "").split(",") if topic.strip()],
    }

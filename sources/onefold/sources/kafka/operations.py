"""Settings for running a source: which reader, how much at once, and whom to tell."""

from __future__ import annotations

from onefold.core.errors import ConfigError

__all__ = ["READERS", "check"]

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

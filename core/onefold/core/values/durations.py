"""Durations as users write them: "5 seconds", "250 milliseconds", "2 hours"."""

from __future__ import annotations

import re

from onefold.core.errors import ConfigError

_TEXT = re.compile(r"\s*([0-9]+)\s+(millisecond|second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}


def duration_us(given: object, label: str) -> int:
    """In microseconds. Raises ConfigError for what is none."""
    found = _TEXT.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ConfigError(
            "option-value", f"{label}={given!r:.100} is no duration: write one such as '5 seconds' or '30 minutes'"
        )
    return int(found[1]) * _US[found[2].lower()]

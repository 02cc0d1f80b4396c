"""Lists on the command line."""

from __future__ import annotations

__all__ = ["listed"]


def listed(text: str) -> list[str]:
    """What is separated by commas; nothing of an empty text."""
    return [name.strip() for name in text.split(",")] if text else []

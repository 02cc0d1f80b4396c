"""Values of command line options: lists, and secrets that are not on the command line itself, where `ps` shows them."""

from __future__ import annotations

from pathlib import Path

from onefold.pipeline.secrets import filled

__all__ = ["comma_separated", "resolved"]


def comma_separated(text: str) -> list[str]:
    """The parts between commas; none of an empty text."""
    return [name.strip() for name in text.split(",")] if text else []


def resolved(text: str | None) -> str | None:
    """The text with its secrets, which are named as in a pipeline's file. Raises ConfigError for one that is not
    there."""
    return None if text is None else str(filled(text, Path()))

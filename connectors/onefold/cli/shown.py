"""Text of files, databases and other processes, as commands print it."""

from __future__ import annotations

from rich.markup import escape

from onefold.core.values.plain import SAID_MAX, plain

__all__ = ["shown"]


def shown(text: object) -> str:
    """The text on one line, with nothing in it that a terminal, or rich, takes for more than characters."""
    return escape(plain(str(text), SAID_MAX))

"""How tables of transactions look."""

from __future__ import annotations

import sys

from rich.console import Console

from onefold.core.protocol.in_doubt import Fate

__all__ = ["COLOURS", "table_console"]

_PIPE_COLUMNS = 400  # one line for each transaction, for those who read it by program
COLOURS = {Fate.COMMIT: "green", Fate.ROLL_BACK: "yellow", Fate.LEAVE: "default", Fate.UNKNOWN: "red"}


def table_console() -> Console:
    """As wide as the terminal, and as the text where there is none."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)

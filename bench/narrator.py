"""How a benchmark says where it is: each step is a line; and every half minute, into a file, that it goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

from rich.console import Console

from onefold.trials.heartbeat import heartbeat

__all__ = ["Say", "narrated"]

Say = Callable[[str], None]
_FILE_COLUMNS = 140


def narrated(main: Callable[[Console, Say], int]) -> int:
    """Run `main` with a console for its results, and what says its steps. SIGTERM ends it as Ctrl-C does: the servers
    that it has started are stopped."""
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    last = "starting"

    def say(text: str) -> None:
        nonlocal last
        last = text
        console.print(f"[dim]{text}[/]", highlight=False)

    with heartbeat(console, lambda: f"goes on; last: {last}"):
        return main(console, say)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

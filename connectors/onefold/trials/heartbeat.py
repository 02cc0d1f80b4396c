"""A line every half minute of a run that takes minutes, for a file or the log of a CI: no bar moves there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

EVERY_S = 30.0


@contextmanager
def heartbeat(console: Console, doing: Callable[[], str], every_s: float = EVERY_S) -> Iterator[None]:
    """Prints how long the run has taken, and what `doing` says, where the console is no terminal."""
    if console.is_terminal:
        yield
        return
    ended, began_s = threading.Event(), time.monotonic()

    def beat() -> None:
        while not ended.wait(every_s):
            minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
            console.print(f"{minutes:>3}:{seconds:02d} {doing()}", highlight=False, markup=False, soft_wrap=True)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def said_of(bar: Progress) -> str:
    """What a bar would show: each task that is not finished, and how far it is; between two tasks, that it goes on."""
    tasks = [task for task in bar.tasks if task.visible and not task.finished]
    said = "; ".join(
        f"{task.description}, {task.completed:,.0f} of {task.total:,.0f}" if task.total else task.description
        for task in tasks
    )
    return said or "goes on"

"""The one place that sleeps, and the one that retries: every loop that looks again, or asks again, waits here."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable
from typing import TypeVar

from onefold.core.errors import OnefoldError, Retriable

T = TypeVar("T")


class Wait:
    """A wait of at most `within_s` in all, in pauses that double from `pause_s` to `pause_max_s`.

    However late the first answer comes, there is time for a second one. Pauses vary, so that many do not ask in step.
    """

    def __init__(self, within_s: float, pause_s: float = 0.05, pause_max_s: float = 1.0) -> None:
        self.pauses = 0
        self._until_s = time.monotonic() + within_s
        self._pause_s = pause_s
        self._pause_max_s = max(pause_s, pause_max_s)

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.pauses > 0 and self.left_s == 0.0

    def extend(self, by_s: float) -> None:
        """Wait longer: there was progress for so long."""
        self._until_s += by_s

    def pause(self) -> None:
        pause_s = min(self._pause_s * 2.0 ** min(self.pauses, 20), self._pause_max_s)
        self.pauses += 1
        time.sleep(min(pause_s * random.uniform(0.5, 1.0), self.left_s))

    def again(self) -> bool:
        """Pause, and say whether to look again: False, without a pause, once the time is over."""
        if self.is_over:
            return False
        self.pause()
        return True


def hold(for_s: float) -> None:
    """Wait for so long: what comes next would be too early."""
    time.sleep(for_s)


def retry(
    ask: Callable[[], T],
    within_s: float,
    on: tuple[type[OnefoldError], ...] = (Retriable,),
    never: tuple[type[OnefoldError], ...] = (),
) -> T:
    """The answer of `ask`, which is safe to repeat. It is asked again while it raises one of `on`, but none of `never`,
    for `within_s`; then that error is raised, and says how often it was asked."""
    wait = Wait(within_s)
    while True:
        try:
            return ask()
        except never:
            raise
        except on as error:
            if not wait.again():
                asked = f"asked {wait.pauses + 1} times within {within_s:g} s"
                raise error.reworded(f"{error.message} ({asked})") from error


def has_word(socket: int) -> bool:
    """Whether there is something to read, or the other side has closed: a server that ends a connection says so."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))

"""Calls to servers that may hang, kept apart from the API's own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from onefold.core import Retriable

T = TypeVar("T")


class BlockingCalls:
    """At most `calls_max` calls at once, each in a thread of its own, which ends with the process."""

    WITHIN_S = 10.0

    def __init__(self, what: str, calls_max: int) -> None:
        self._what = what
        self._free = asyncio.Semaphore(calls_max)

    async def ask(self, call: Callable[[], T]) -> T:
        """What the call returns or raises. Raises Retriable where that takes longer than WITHIN_S."""
        try:
            async with asyncio.timeout(self.WITHIN_S):
                await self._free.acquire()
                return await self._begun(call)
        except TimeoutError:
            raise Retriable(
                "store-unanswered", f"{self._what} has not answered within {self.WITHIN_S:g} s: ask again later"
            ) from None

    def _begun(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            finish: Callable[[], None]
            try:
                finish = partial(answer.set_result, call())
            except Exception as error:
                finish = partial(answer.set_exception, error)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done, finish)

        def done(finish: Callable[[], None]) -> None:
            self._free.release()
            if not answer.done():
                finish()

        threading.Thread(target=run, daemon=True).start()
        return answer

"""A protocol asks the world by yielding effects, and asks again until there is an answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from onefold.core.errors import InDoubt, Retriable
from onefold.core.protocol.effects import Effect, Pause

__all__ = ["Protocol", "insist"]

T = TypeVar("T")
Protocol = Generator[Effect, Any, T]


def insist(effect: Effect) -> Protocol[Any]:
    """Ask until there is an answer. Only for effects that are safe to repeat, which is all but Decide's aftermath."""
    attempt = 0
    while True:
        try:
            return (yield effect)
        except (Retriable, InDoubt) as error:
            attempt += 1
            yield Pause(attempt, effect, error)

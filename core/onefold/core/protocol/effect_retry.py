"""The protocol's type, a generator of effects, and the effect that is repeated until it is answered."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from onefold.core.errors import InDoubt, Retriable
from onefold.core.protocol.effects import Effect, Pause

__all__ = ["Protocol", "retry"]

T = TypeVar("T")
Protocol = Generator[Effect, Any, T]


def retry(effect: Effect) -> Protocol[Any]:
    """Yield the effect until it is answered, with a pause after each error. Only for what is safe to repeat."""
    attempt = 0
    while True:
        try:
            return (yield effect)
        except (Retriable, InDoubt) as error:
            attempt += 1
            yield Pause(attempt, effect, error)

"""Answers of servers to requests of our own, where a server may be broken, or not the one that is meant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from onefold.core.errors import OnefoldError
from onefold.core.values.plain import plain

T = TypeVar("T")


class Unanswered(Exception):
    """A request was sent, or may have been, and no answer came: it may have taken effect, and may yet do so."""


@contextmanager
def understood(server: str) -> Iterator[None]:
    """Within, an answer is taken apart. What is missing there, or of another kind than was asked for, is Unanswered."""
    try:
        yield
    except (OnefoldError, Unanswered, MemoryError):
        raise
    except Exception as error:
        said = plain(str(error)) or "no more"
        raise Unanswered(f"what {server} answered cannot be read ({type(error).__name__}: {said})") from error


def as_it_is(answer: T) -> T:
    """An answer that needs no reading."""
    return answer

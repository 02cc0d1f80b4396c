"""Which pipeline, generation and epoch a line of the log is about, for handlers that show fields.

Context variables, so that pipelines of one process keep theirs apart: each runs in threads of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["current", "logged_as", "note"]

_fields: ContextVar[dict[str, object] | None] = ContextVar("onefold_log_fields", default=None)


def current() -> Mapping[str, object]:
    """The fields of what this thread is at."""
    return _fields.get() or {}


@contextmanager
def logged_as(**fields: object) -> Iterator[None]:
    """What is logged in the block has these fields, beside those from around it."""
    before = _fields.set({**current(), **fields})
    try:
        yield
    finally:
        _fields.reset(before)


def note(**fields: object) -> None:
    """From here to the end of the innermost block that is `logged_as` something, these fields too."""
    if (known := _fields.get()) is not None:
        known.update(fields)

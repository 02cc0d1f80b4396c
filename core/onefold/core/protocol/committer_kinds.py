"""Narrows a committer to LastResource or WriteThrough, as its sink's guarantee says."""

from __future__ import annotations

from onefold.core.contract import Committer, LastResource, WriteThrough
from onefold.core.errors import InternalError

__all__ = ["last_resource", "write_through"]


def last_resource(committer: Committer) -> LastResource:
    """The committer. Raises InternalError where it cannot merge inside a decision."""
    if not isinstance(committer, LastResource):
        raise InternalError(f"{committer!r} says that it is a last resource, and lacks a method of LastResource")
    return committer


def write_through(committer: Committer) -> WriteThrough:
    """The committer. Raises InternalError where it cannot announce an epoch."""
    if not isinstance(committer, WriteThrough):
        raise InternalError(f"{committer!r} says that it writes through, and lacks a method of WriteThrough")
    return committer

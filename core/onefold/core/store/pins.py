"""Pins: values that a pipeline's first start finds, such as a schema, and that each later start must use again."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from onefold.core.errors import Retriable
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.tables import pins

__all__ = ["all_pins", "pin", "pinned"]


def pinned(store: CheckpointStore, pipeline: str, name: str) -> str | None:
    """The value that is pinned under that name; None if there is none."""
    store.id()
    known = sa.select(pins.c.value).where(pins.c.pipeline == pipeline, pins.c.name == name)
    with store.database.transaction() as connection:
        row = connection.execute(known).one_or_none()
    return None if row is None else str(row.value)


def all_pins(store: CheckpointStore, pipeline: str) -> dict[str, str]:
    """All of a pipeline's, by their names."""
    store.id()
    with store.database.transaction() as connection:
        rows = connection.execute(sa.select(pins.c.name, pins.c.value).where(pins.c.pipeline == pipeline)).all()
    return {str(row.name): str(row.value) for row in rows}


def pin(store: CheckpointStore, pipeline: str, name: str, find: Callable[[], str]) -> str:
    """The value that was first pinned under that name; `find` gives it where there is none yet.

    Raises `Retriable` where another process pins it at the same time: the next call returns that value.
    """
    known = pinned(store, pipeline, name)
    if known is not None:
        return known
    value = find()
    with store.database.transaction() as connection:
        try:
            connection.execute(pins.insert().values(pipeline=pipeline, name=name, value=value))
        except IntegrityError as error:
            raise Retriable("pin-raced", f"{name} of pipeline {pipeline!r} was pinned by another process") from error
    return value

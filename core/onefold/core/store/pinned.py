"""What a pipeline found out once, and must not find out differently at a later start: kept in its checkpoint store."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from onefold.core.errors import Retriable
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.tables import settled

__all__ = ["settle"]


def settle(store: CheckpointStore, pipeline: str, name: str, find: Callable[[], str]) -> str:
    """The value that was first settled under that name; `find` is asked where there is none yet.

    Raises `Retriable` where another process settled it meanwhile: asked again, this tells what that one said.
    """
    store.id()
    known = sa.select(settled.c.value).where(settled.c.pipeline == pipeline, settled.c.name == name)
    with store.database.transaction() as connection:
        row = connection.execute(known).one_or_none()
    if row is not None:
        return str(row.value)
    value = find()
    with store.database.transaction() as connection:
        try:
            connection.execute(settled.insert().values(pipeline=pipeline, name=name, value=value))
        except IntegrityError as error:
            raise Retriable(f"{name} of pipeline {pipeline!r} was settled by another process") from error
    return value

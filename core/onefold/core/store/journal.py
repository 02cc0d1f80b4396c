"""The journal of a source in the checkpoint store: as old as the epochs whose positions name its texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa

from onefold.core.errors import CheckpointMismatch, InDoubt, Retriable
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.tables import journals

__all__ = ["StoreJournal"]

_NAMES_AT_ONCE = 500  # in a statement


class StoreJournal:
    """Implements Journal. `source` has 200 characters at most. `store_id` is the store's, where a start has found that
    before: then none is made."""

    def __init__(self, store: CheckpointStore, pipeline: str, source: str, store_id: str | None = None) -> None:
        self._store, self._store_id = store, store_id
        self._own = {"pipeline": pipeline, "source": source}
        self._where = sa.and_(journals.c.pipeline == pipeline, journals.c.source == source)

    def names(self) -> set[str]:
        with self._transaction() as connection:
            return set(connection.scalars(sa.select(journals.c.name).where(self._where)))

    def read(self, names: Collection[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with self._transaction() as connection:
            for some in _some(names):
                asked = sa.select(journals.c.name, journals.c.value).where(self._where, journals.c.name.in_(some))
                found |= {str(row.name): str(row.value) for row in connection.execute(asked)}
        return found

    def write(self, texts: Mapping[str, str]) -> None:
        with self._transaction() as connection:
            there = self._among(connection, texts)  # of a call before, whose commit was not acknowledged
            for name in texts.keys() - there:  # one by one: a statement has no more bytes than a server takes
                connection.execute(journals.insert().values(**self._own, name=name, value=texts[name]))

    def remove(self, names: Collection[str]) -> None:
        with self._transaction() as connection:
            for some in _some(names):
                connection.execute(journals.delete().where(self._where, journals.c.name.in_(some)))

    def _among(self, connection: sa.Connection, names: Collection[str]) -> set[str]:
        found: set[str] = set()
        for some in _some(names):
            found.update(connection.scalars(sa.select(journals.c.name).where(self._where, journals.c.name.in_(some))))
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Raises Retriable also where it may have been committed: nobody has been told its names, or they are gone."""
        if self._store_id is None:
            self._store.id()
        elif self._store.look() != self._store_id:
            raise CheckpointMismatch(
                "another-store",
                f"the checkpoint store of {self._own['pipeline']!r} is gone, or another one has its place since the"
                " start. Nothing was read. Restore it, and start again",
            )
        try:
            with self._store.database.transaction() as connection:
                yield connection
        except InDoubt as error:
            raise error.retyped(Retriable) from error


def _some(names: Collection[str]) -> Iterator[list[str]]:
    known = list(names)
    for start in range(0, len(known), _NAMES_AT_ONCE):
        yield known[start : start + _NAMES_AT_ONCE]

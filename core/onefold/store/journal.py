"""The journal of a source in the checkpoint store: as old as the epochs whose positions name its texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from onefold.clients.sql.database import Transaction
from onefold.clients.sql.database_backend import Statement
from onefold.core.errors import CheckpointMismatch, InDoubt, Retriable
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.store_rows import adding, removing

_MINE = "FROM onefold_journals WHERE pipeline = %(pipeline)s AND source = %(source)s"


class StoreJournal:
    """Implements Journal. `source` has 200 characters at most. `store_id` is the store's, where a start has found that
    before: then none is made."""

    def __init__(self, store: CheckpointStore, pipeline: str, source: str, store_id: str | None = None) -> None:
        self._store, self._store_id = store, store_id
        self._own = {"pipeline": pipeline, "source": source}

    def names(self) -> set[str]:
        self._check_store()
        (found,) = self._store.database.ask((f"SELECT name {_MINE}", self._own))
        return {row.name for row in found.rows}

    def read(self, names: Collection[str]) -> dict[str, str]:
        self._check_store()
        answers = self._store.database.ask(*self._asking("name, value", names)) if names else []
        return dict(row for answer in answers for row in answer.rows)

    def write(self, texts: Mapping[str, str]) -> None:
        with self._transaction() as transaction:
            # Some are there by a call before, whose commit was not acknowledged.
            there = {row.name for answer in transaction.run(*self._asking("name", texts)) for row in answer.rows}
            for name in texts.keys() - there:  # one by one: a statement has no more bytes than a server takes
                transaction.run(adding("onefold_journals", {**self._own, "name": name, "value": texts[name]}))

    def remove(self, names: Collection[str]) -> None:
        with self._transaction() as transaction:
            transaction.run(*(removing("onefold_journals", **self._own, name=name) for name in names))

    def _asking(self, columns: str, names: Collection[str]) -> list[Statement]:
        asked = f"SELECT {columns} {_MINE} AND name = %(name)s"
        return [(asked, {**self._own, "name": name}) for name in names]

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Raises Retriable also where it may have been committed: nobody has been told its names, or they are gone."""
        self._check_store()
        try:
            with self._store.database.transaction() as transaction:
                yield transaction
        except InDoubt as error:
            raise error.retyped(Retriable) from error

    def _check_store(self) -> None:
        """Makes the store where it may; raises CheckpointMismatch where it is another one than the start found."""
        if self._store_id is None:
            self._store.id()
        elif self._store.look() != self._store_id:
            raise CheckpointMismatch(
                "another-store",
                f"the checkpoint store of {self._own['pipeline']!r} is gone, or another one has its place since the"
                " start. Nothing was read. Restore it, and start again",
            )


def journals(store: CheckpointStore, pipeline: str) -> list[tuple[str, str, str]]:
    """All texts of all sources of a pipeline: source, name, text."""
    (found,) = store.database.ask(
        ("SELECT source, name, value FROM onefold_journals WHERE pipeline = %(pipeline)s", {"pipeline": pipeline})
    )
    return sorted((row.source, row.name, row.value) for row in found.rows)

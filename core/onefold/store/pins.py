"""Pins: values that a pipeline's first start finds, such as a schema, and that each later start must use again."""

from __future__ import annotations

from collections.abc import Callable

from onefold.core.errors import Retriable
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.store_rows import adding

ENDPOINTS = "endpoints"  # what each start writes anew: the sources and sinks, as tables of a pipeline's file


def pinned(store: CheckpointStore, pipeline: str, name: str) -> str | None:
    """The value that is pinned under that name; None if there is none."""
    return all_pins(store, pipeline).get(name)


def all_pins(store: CheckpointStore, pipeline: str) -> dict[str, str]:
    """All of a pipeline's, by their names."""
    store.id()
    asked = "SELECT name, value FROM onefold_pins WHERE pipeline = %(pipeline)s"
    (found,) = store.database.ask((asked, {"pipeline": pipeline}))
    return {row.name: row.value for row in found.rows}


def pin(store: CheckpointStore, pipeline: str, name: str, find: Callable[[], str]) -> str:
    """The value that was first pinned under that name; `find` gives it where there is none yet.

    Raises `Retriable` where another process pins it at the same time: the next call returns that value.
    """
    known = pinned(store, pipeline, name)
    if known is not None:
        return known
    value = find()
    with store.database.transaction() as transaction:
        try:
            transaction.run(adding("onefold_pins", {"pipeline": pipeline, "name": name, "value": value}))
        except store.database.backend.integrity_error as error:
            raise Retriable("pin-raced", f"{name} of pipeline {pipeline!r} was pinned by another process") from error
    return value

"""A pipeline whose driver does not run, opened for a command that copies or replaces what belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from onefold.cli.reset.idle import refuse_running
from onefold.cli.reset.places import known_places
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.definition import Definition
from onefold.spark.runtime.query import QuerySession

__all__ = ["check_idle", "opened"]


@contextmanager
def opened(definition: Definition) -> Iterator[QuerySession]:
    """A session of the pipeline, which has taken nothing over yet."""
    store = CheckpointStore(definition.store_url)
    with ExitStack() as stack:
        stack.callback(store.close)
        session = QuerySession(definition.name, definition.sinks, store, definition.patience_s, definition.dead_letters)
        stack.pop_all()
    with closing(session):
        yield session


def check_idle(definition: Definition, take_over: bool) -> None:
    """Raises ConfigError where a driver of the pipeline may be running. `take_over` is the user's word that none is."""
    if take_over:
        return
    with ExitStack() as stack:
        store = stack.enter_context(closing(CheckpointStore(definition.store_url, lock_timeout_s=10)))
        places = known_places(definition)
        for place in places:
            stack.callback(place.close)
        facts = store.facts(definition.name) if store.look() is not None else None
        refuse_running(definition.name, places, facts, "Nothing was changed")

"""A pipeline whose driver does not run, opened for a command that copies or replaces what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from onefold.core.job.move_session import MoveSession
from onefold.core.job.restores import restoring
from onefold.core.protocol.store_protocol import Files
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.operate.idle import refuse_running
from onefold.pipeline import Pipeline

__all__ = ["check_idle", "opened"]


@contextmanager
def opened(
    pipeline: Pipeline, files: Files | None = None, set_aside: Callable[[int], None] = lambda _: None
) -> Iterator[MoveSession]:
    """A session of the pipeline, which has taken nothing over yet. `files` reads its checkpoint, where that is to be
    compared with the store; `set_aside` is what a move of its positions does with the checkpoint."""
    root = None if files is None else pipeline.checkpoint
    with ExitStack() as stack:
        store = CheckpointStore(pipeline.store_url)
        stack.callback(store.close)
        session = MoveSession(
            pipeline.name,
            pipeline.everyone,
            store,
            pipeline.patience_s,
            [sink.name for sink in pipeline.dead_letters],
            set_aside,
            files,
            root,
        )
        stack.pop_all()
    with closing(session):
        yield session


def check_idle(pipeline: Pipeline, take_over: bool) -> None:
    """Raises ConfigError where a driver of the pipeline may be running. `take_over` is the user's word that none is."""
    if take_over:
        return
    with closing(CheckpointStore(pipeline.store_url, lock_timeout_s=10)) as store:
        facts = store.facts(pipeline.name) if store.look() is not None else None
        if facts is not None and restoring(store, pipeline.name) is not None:
            facts = replace(facts, unfinished=())  # what is unfinished then is that restore's
        refuse_running(pipeline.name, store, facts, "Nothing was changed")

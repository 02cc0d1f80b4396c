"""`onefold reset`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Annotated

import typer
from rich.console import Console

from onefold.cli.arguments import Named, Yes
from onefold.cli.shown import shown
from onefold.core import ConfigError
from onefold.core.protocol.effects import StoreFacts
from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.values.plain import shown_url
from onefold.operate.checkpoint_directory import CheckpointDirectory
from onefold.operate.idle import refuse_running
from onefold.operate.ledger_place import LedgerPlace

__all__ = ["reset", "reset_pipeline"]


def reset(
    named: Named,
    rows: Annotated[
        bool, typer.Option("--rows", help="All rows of the sinks' tables and topics go, too, whoever wrote them.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also where it may be running: FENCES its driver if it is alive.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Remove ledger, prepared work, store and checkpoint of a pipeline, so that its next start is its first. For
    development; shows what would go, and asks."""
    from onefold.operate.reset import places_of
    from onefold.pipeline import read

    pipeline = read(named)
    directory = CheckpointDirectory(pipeline.checkpoint)
    places = places_of(pipeline, rows)
    reset_pipeline(pipeline.name, places, pipeline.store_url, directory, take_over, yes)


def reset_pipeline(
    pipeline: str,
    places: Sequence[LedgerPlace],
    store_url: str,
    checkpoint: CheckpointDirectory,
    take_over: bool,
    yes: bool,
) -> None:
    """Shows what would go, asks, and removes it. Raises ConfigError where the pipeline may be running, or its store is
    another one.

    The order is what makes it safe to be cut short: the store goes first, and each ledger after the rows that it speaks
    of. So a start that comes between finds a ledger ahead of the store, and never begins anew beside old rows.
    """
    console = Console(soft_wrap=True)
    with ExitStack() as stack:
        store = stack.enter_context(closing(CheckpointStore(store_url, lock_timeout_s=10)))
        for place in places:
            stack.callback(place.close)
        targets = [place.targets() for place in places]
        plan = [
            *(line for place, named in zip(places, targets, strict=True) for line in _of_place(place, named)),
            *_of_store(store, pipeline),
            *checkpoint.found(),
        ]
        if not plan:
            console.print(f"there is nothing of pipeline {shown(pipeline)} here")
            return
        if not take_over:
            _check_idle(pipeline, places, store)
        console.print(f"pipeline {shown(pipeline)} begins anew without", highlight=False)
        for line in plan:
            console.print(f"  {shown(line)}", highlight=False)
        for place, named in zip(places, targets, strict=True):
            if not named:
                console.print(f"the rows in {shown(place.server)} stay: --rows removes them, too", highlight=False)
        if checkpoint.is_elsewhere:
            console.print(
                f"the checkpoint {shown(shown_url(checkpoint.text))} stays: remove it yourself", highlight=False
            )
        if not yes:
            typer.confirm("Remove all of this?", abort=True)
        if not take_over:
            _check_idle(pipeline, places, store)  # it may have been started meanwhile
        if _facts(store, pipeline) is not None:
            above = max(place.generation() or 0 for place in places)
            generation = store.acquire(pipeline, above)  # from here on no older driver opens or decides an epoch
            if not take_over:
                _check_idle(pipeline, places, store)
            store.begin_anew(generation)
        for place in places:
            place.remove()
        checkpoint.remove()
        console.print(f"removed: the next start of pipeline {shown(pipeline)} is its first", highlight=False)


def _of_place(place: LedgerPlace, targets: Mapping[str, str | None]) -> Iterator[str]:
    for line in place.found():
        yield f"{place.server}: {line}"
    for name, rows in targets.items():
        if rows is None:
            raise ConfigError(
                "reset-target-missing",
                f"{place.server} has no table or topic {name!r}. Nothing was removed: correct the pipeline, or leave"
                " --rows out",
            )
        yield f"{place.server}: {rows}, also those of other pipelines"


def _of_store(store: CheckpointStore, pipeline: str) -> Iterator[str]:
    facts = _facts(store, pipeline)
    if facts is not None and (facts.last is not None or facts.unfinished or facts.frozen is not None):
        epochs = len(store.history(pipeline))
        yield f"the checkpoint store at {store.database}: {epochs} epochs, and where the pipeline began"


def _facts(store: CheckpointStore, pipeline: str) -> StoreFacts | None:
    """None where the store is not there, or knows no such pipeline."""
    facts = store.facts(pipeline) if store.look() is not None else None
    return facts if facts is not None and facts.generation else None


def _check_idle(pipeline: str, places: Sequence[LedgerPlace], store: CheckpointStore) -> None:
    """Raises ConfigError where the pipeline may be running, as far as its store tells."""
    facts = _facts(store, pipeline)
    if facts is None and any(place.generation() is not None for place in places):
        raise ConfigError(
            "ledger-of-another-store",
            f"pipeline {pipeline!r} has a ledger, and the checkpoint store at {store.database} does not know it."
            " Nothing was removed: correct the pipeline's store; or, where the store is lost and no driver lives, add"
            " --take-over",
        )
    refuse_running(pipeline, store, facts, "Nothing was removed")

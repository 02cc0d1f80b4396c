"""Notices that a sink's target, a table or a topic, was dropped, made anew or emptied under its ledger.

A start cannot see that in the ledger: the epochs are on record, and the rows are gone. So the store keeps, as a pin,
what each target was when its sink was last opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onefold.core.contract import Generation, Sink
from onefold.core.errors import DataLoss
from onefold.core.findings import Finding, Level, Target, Targeting
from onefold.core.values.remedies import remedies
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.pins import pinned

_PIN = "targets"


def check_targets(store: CheckpointStore, pipeline: str, sinks: Iterable[Sink]) -> Iterator[Finding]:
    """A caution for each target that was emptied. Raises DataLoss for one that is missing, or was made anew: before the
    sinks are opened, which would make what is missing."""
    last = store.facts(pipeline).last
    if last is None:
        return
    noted = _noted(store, pipeline)
    for sink in sinks:
        if not isinstance(sink, Targeting) or sink.name not in last.sinks:
            continue
        if noted is not None and sink.name not in noted:
            continue  # accepted, whatever it is
        now, was = sink.target_now(pipeline), None if noted is None else noted[sink.name]
        if was is not None and was.name != now.name:
            continue  # by the sink's own settings, which name another one
        _refuse_lost(pipeline, sink.name, last.epoch, was, now)
        may_be_emptied = not now.storage or (was is not None and was.storage != now.storage)
        if may_be_emptied and sink.is_empty(pipeline) and (rows := _rows(store, pipeline, sink.name)):
            yield Finding(
                Level.CAUTION,
                f"{now.name} is empty, and pipeline {pipeline!r} has written at least {rows:,} rows there: somebody"
                f" emptied it, or deleted them all. The pipeline goes on after them. To begin anew instead,"
                f" {remedies().begin_anew()}",
            )


def _refuse_lost(pipeline: str, sink: str, epoch: int, was: Target | None, now: Target) -> None:
    """Raise DataLoss for a target that is missing, or another one than it was. `epoch` is the last that is decided."""
    ways_out = (
        f"to go on without them, {remedies().recover(accept_targets=True)} once; to begin anew,"
        f" {remedies().begin_anew()}"
    )
    if not now.is_there:
        raise DataLoss(
            "target-missing",
            f"{now.name} of sink {sink!r} is missing, and the rows of pipeline {pipeline!r} up to epoch {epoch} were"
            f" written there. Nothing was made or written. Restore it, with its rows; {ways_out}",
        )
    if was is not None and was.identity and now.identity and was.identity != now.identity:
        raise DataLoss(
            "target-made-anew",
            f"{now.name} of sink {sink!r} is not the one that the rows of pipeline {pipeline!r} were written to up to"
            f" epoch {epoch}: it was dropped and made anew (it was {was.identity}, and is {now.identity}). Nothing was"
            f" written. If it has those rows, restored or moved, or {ways_out}",
        )


def note_targets(store: CheckpointStore, generation: Generation, sinks: Iterable[Sink]) -> None:
    """Once the sinks are open: what their targets are now, for the next start to compare."""
    now = {sink.name: sink.target_now(generation.pipeline) for sink in sinks if isinstance(sink, Targeting)}
    if now and now != _noted(store, generation.pipeline):
        text = json.dumps({name: [each.name, each.identity, each.storage] for name, each in now.items()})
        store.note(generation, _PIN, text)


def accept_targets(store: CheckpointStore, generation: Generation) -> None:
    """On the user's word, whatever the targets are at the next start."""
    store.note(generation, _PIN, json.dumps({}))


def _noted(store: CheckpointStore, pipeline: str) -> Mapping[str, Target] | None:
    """By the names of the sinks; None where no start has noted any."""
    text = pinned(store, pipeline, _PIN)
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    return {sink: Target(name, True, identity, storage) for sink, (name, identity, storage) in found.items()}


def _rows(store: CheckpointStore, pipeline: str, sink: str) -> int:
    """How many rows went to the sink in the epochs that the store still knows."""
    return sum(c.rows for record in store.history(pipeline) for c in record.manifest if c.sink == sink)

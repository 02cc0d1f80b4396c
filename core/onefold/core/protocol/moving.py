"""Moves a pipeline's positions: an epoch without rows, from where the last one ended to where an operator wants it.

The chain stays a chain, ledger rows only go forward, and whoever reads the epochs later (`covered`) knows which records
were passed over and which came twice. A move works under a generation of its own, so a driver that lives is fenced.
Each of its steps leaves a pipeline that starts by itself: `Anchor` has a new checkpoint begin where the last epoch
ended, so that the checkpoint may go (`SetAside`); the decision has it begin where the operator wants. A crash before
the decision has moved nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onefold.core.contract import MOVED, Decided, EpochRecord, Generation, Repeats
from onefold.core.errors import ConfigError
from onefold.core.moves import MoveNote, come_again, count
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effect_retry import Protocol
from onefold.core.protocol.effect_retry import retry as _retry
from onefold.core.protocol.effects import (
    Anchor,
    AskRepeats,
    EpochRequest,
    OpenEpoch,
    ReadMoves,
    ReadStore,
    SetAside,
    StoreFacts,
)
from onefold.core.protocol.epoch import complete, decide
from onefold.core.protocol.misfits import check_movable, would_double

__all__ = ["move", "standing"]


def standing(facts: StoreFacts) -> Positions | None:
    """Where the last decided epoch ends, or where the first one begins; None for a pipeline that never started."""
    return facts.last.range.end if facts.last is not None else facts.frozen


def move(
    generation: Generation, store_id: str, sinks: tuple[str, ...], to: Positions, note: MoveNote
) -> Protocol[EpochRecord]:
    """Move the positions, under the generation of a start that has resolved all that could be resolved.

    Raises ConfigError where an epoch must run again first, or where a sink would have records twice: then nothing was
    changed.
    """
    facts: StoreFacts = yield from _retry(ReadStore())
    base = check_movable(generation.pipeline, standing(facts), to)
    if facts.begun is not None:
        raise ConfigError(
            "move-beside-epoch",
            f"epoch {facts.begun.epoch} of pipeline {generation.pipeline!r} was begun, and parts of it may show in"
            f" {', '.join(facts.begun.write_through)}: it must run again as it was. Nothing was moved. Start the"
            " pipeline once, let it finish that epoch, and stop it; then move",
        )
    moves: Sequence[EpochRecord] = yield from _retry(ReadMoves())
    new = []
    for sink in sinks:
        if count(come_again(facts.frozen or base, moves, base, to, sink)):
            repeats: Repeats = yield from _retry(AskRepeats(sink))
            if repeats is Repeats.DOUBLED:
                raise would_double(generation.pipeline, sink)
            if repeats is Repeats.NEW:
                new.append(sink)
    after = facts.last.epoch if facts.last is not None else 0
    yield from _retry(Anchor(generation, base))
    yield from _retry(SetAside(after))
    request = EpochRequest(
        range=Range(base, to),
        query_id=MOVED,
        batch_id=-1,
        fingerprint=replace(note, new=tuple(new)).to_text(),
        sinks=sinks,
    )
    record: EpochRecord = yield from _retry(OpenEpoch(generation, request, after))
    decided: Decided = yield from decide(generation, store_id, record, ())
    yield from complete(generation, store_id, decided)
    return decided.record

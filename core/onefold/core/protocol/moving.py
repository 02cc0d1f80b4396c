"""Moves a pipeline's positions: an epoch without rows, from where the last one ended to where an operator wants it.

The chain stays a chain, ledger rows only go forward, and whoever reads the epochs later (`covered`) knows which records
were passed over and which came twice. A move works under a generation of its own, so a driver that lives is fenced.
Each of its steps leaves a pipeline that starts by itself: `Anchor` has a new checkpoint begin where the last epoch
ended, so that the checkpoint may go (`SetAside`); the decision has it begin where the operator wants. A crash before
the decision has moved nothing.

A savepoint is restored by a move whose manifest names the state that was made of it: one decision switches positions
and state together. So nothing is half restored, and the old side is fenced, whatever runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onefold.core.contract import MOVED, Decided, EpochRecord, Generation
from onefold.core.moves import MoveNote, Repeats, come_again, count
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import (
    Anchor,
    AskRepeats,
    EpochRequest,
    Protocol,
    ReadMoves,
    ReadStore,
    SetAside,
    StoreFacts,
)
from onefold.core.protocol.effects import retry as _retry
from onefold.core.protocol.epoch import decide, finish, open_epoch, prepare
from onefold.core.protocol.request_checks import (
    check_movable,
    check_resolved,
    check_restorable,
    must_run_again,
    would_double,
)


def chain_end(facts: StoreFacts) -> Positions | None:
    """Where the last decided epoch ends, or where the first one begins; None for a pipeline that never started."""
    if facts.last is not None:
        return facts.last.range.end
    return None if facts.frozen is None else facts.frozen.with_setting(None)


def move(
    generation: Generation,
    store_id: str,
    sinks: tuple[str, ...],
    to: Positions,
    note: MoveNote,
    with_state: bool = False,
) -> Protocol[EpochRecord]:
    """Move the positions, under the generation of a start that has resolved all that could be resolved. `with_state`
    asks for what is kept of the records before `to`, as writers prepare it: of a savepoint.

    Raises ConfigError where an epoch must run again first, or where a sink would have records twice: then nothing was
    changed.
    """
    facts: StoreFacts = yield from _retry(ReadStore())
    if with_state:
        base = check_restorable(generation.pipeline, chain_end(facts), to)
    else:
        base = check_movable(generation.pipeline, chain_end(facts), to)
    if facts.begun is not None:
        raise must_run_again(facts.begun)
    moves: Sequence[EpochRecord] = yield from _retry(ReadMoves())
    new = []
    for sink in sinks if to.of_records() != base.of_records() else ():
        if count(come_again(facts.frozen or base, moves, base, to, sink)):
            repeats: Repeats = yield from _retry(AskRepeats(sink))
            if repeats is Repeats.DOUBLED:
                raise would_double(generation.pipeline, sink)
            if repeats is Repeats.NEW:
                new.append(sink)
    yield from _retry(Anchor(generation, base))
    yield from _retry(SetAside(facts.last.epoch if facts.last is not None else 0))
    note = replace(note, new=tuple(new))
    return (yield from _write(generation, store_id, sinks, Range(base, to), note, facts, with_state))


def change_sinks(
    generation: Generation, store_id: str, sinks: tuple[str, ...], note: MoveNote
) -> Protocol[EpochRecord]:
    """Have the chain go on with these sinks, from where it stands: a move to the same place. Those that the last epoch
    did not name begin there, or go on under another name, as the note says. The checkpoint stays.

    Raises ConfigError where an epoch must run again first: then nothing was changed.
    """
    facts: StoreFacts = yield from _retry(ReadStore())
    last = check_resolved(generation.pipeline, facts)
    begin = tuple(sink for sink in sinks if sink not in last.sinks and sink not in dict(note.renamed))
    span = Range(last.range.end, last.range.end)
    return (yield from _write(generation, store_id, sinks, span, replace(note, new=begin), facts))


def _write(
    generation: Generation,
    store_id: str,
    sinks: tuple[str, ...],
    span: Range,
    note: MoveNote,
    facts: StoreFacts,
    with_state: bool = False,
) -> Protocol[EpochRecord]:
    """The epoch itself, after the last decided one."""
    request = EpochRequest(range=span, query_id=MOVED, batch_id=-1, fingerprint=note.to_text(), sinks=sinks)
    record = yield from open_epoch(generation, request, facts)
    manifest = (yield from prepare(record)) if with_state else ()
    decided: Decided = yield from decide(generation, store_id, record, manifest)
    yield from finish(generation, store_id, decided)
    return decided.record

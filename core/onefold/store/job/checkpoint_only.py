"""What only a query's own checkpoint has: positions of sources without topics, which are numbers of that checkpoint,
and Spark's state. Not simulated: its tests run a real state store."""

from __future__ import annotations

import hashlib

from onefold.core.errors import CheckpointMismatch
from onefold.core.moves import MoveNote
from onefold.core.positions import Positions, Relation
from onefold.core.protocol.effects import EpochRequest, Protocol, ReadFile, ReadStore, StoreFacts, retry
from onefold.core.values.remedies import remedies
from onefold.store.checkpoint_store import KEEP_EPOCHS

QUERY = "#query"  # beside positions that only mean something within one query's checkpoint


def within(query_id: str, positions: Positions) -> Positions:
    """The positions, marked as those of a query where they only count within it."""
    if not any(_is_of_query(name) for name, _ in positions.items):
        return positions
    return Positions.of({**dict(positions.items), QUERY: query_id}, positions.marks)


def others_start(pipeline: str, query_id: str, end: Positions) -> Protocol[dict[str, int | str]]:
    """Where a query's first batch starts in its other sources: before everything. Raises CheckpointMismatch for a new
    checkpoint of a pipeline that has written, since its positions there are unknown."""
    nowhere: dict[str, int | str] = {name: -1 for name, _ in end.items if _is_of_query(name)}
    if nowhere:
        facts: StoreFacts = yield from retry(ReadStore())
        last = facts.last
        if last is not None and dict(last.range.end.items).get(QUERY) != query_id:
            raise CheckpointMismatch(
                "checkpoint-directory-new",
                f"pipeline {pipeline!r} has written {last.epoch} epochs, and this checkpoint directory is new. The"
                " positions of this query's sources are numbers of their checkpoint, so where a new one begins is not"
                " known. Nothing was written. Restore the checkpoint directory, or"
                f" {remedies().begin_anew(empties=True)}",
            )
    return nowhere


def files_of(root: str, end: Positions) -> Protocol[str]:
    """A digest of the files that file sources read up to `end`; empty where there is no file source.

    A file source's position is a number of the checkpoint's own: a restored copy gives it again, to other files.
    """
    digest = hashlib.sha256()
    found = False
    for name, number in end.items:
        source, _, kind = name.partition("/")
        if kind == "logOffset" and source.startswith("#"):
            found = True
            log = f"{root}/sources/{source[1:]}/{number}"
            text = (yield from retry(ReadFile(log))) or (yield from retry(ReadFile(f"{log}.compact")))
            digest.update((text or "").encode())
    return digest.hexdigest()[:16] if found else ""


def _is_of_query(name: str) -> bool:
    """`#0/logOffset`; the position of a source of onefold's own, `#name/`, counts everywhere."""
    return name.startswith("#") and not name.endswith("/")


def check_state(stateful: bool | None, request: EpochRequest) -> Protocol[None]:
    """Raises CheckpointMismatch where a stateful query's first batch goes on without its state."""
    if stateful is True and request.batch_id == 0:
        _check_is_whole((yield from retry(ReadStore())), request)


def _check_is_whole(facts: StoreFacts, first: EpochRequest) -> None:
    """The ledger has the positions, but not the state that a query had built up to there."""
    last, begin = facts.last, first.range.start
    if last is None or begin.relation_to(end := last.range.end.of_records()) is not Relation.SAME:
        return  # a replay from the very beginning, or a mismatch that the protocol explains
    if facts.frozen is not None and begin.relation_to(facts.frozen) is Relation.SAME:
        return  # nothing but empty batches so far
    if (last.query_id, last.batch_id) == (first.query_id, 0) and last.range.is_empty:
        return
    if last.is_move and MoveNote.of(last).state is not None:
        return  # it comes with a savepoint
    by_records = (
        " start with the starting_offsets that the pipeline first had and the same max_offsets_per_trigger, which runs"
        " all batches from its first position through the state again and writes none of them twice (as long as the"
        f" store still knows them: it keeps {KEEP_EPOCHS:,}); or"
    )
    raise CheckpointMismatch(
        "state-missing",
        f"this query keeps state, and it would go on at epoch {last.epoch}'s end without the state of the records"
        " before, which is in the checkpoint directory only. Nothing was written. Restore that directory; or"
        f"{by_records if end == last.range.end else ''} {remedies().begin_anew(empties=True)}",
    )

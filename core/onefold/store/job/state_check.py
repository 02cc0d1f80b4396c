"""Refuses a stateful query that would go on without its state. Not simulated: its tests run a real state store."""

from __future__ import annotations

from onefold.core.errors import CheckpointMismatch
from onefold.core.positions import Relation
from onefold.core.protocol.effects import EpochRequest, Protocol, ReadStore, StoreFacts, retry
from onefold.core.values.remedies import remedies
from onefold.store.checkpoint_store import KEEP_EPOCHS

__all__ = ["check_state"]


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

"""How long a pipeline's epochs take, as the checkpoint store has it."""

from __future__ import annotations

from onefold.store.checkpoint_store import CheckpointStore

__all__ = ["slowest_decision_s"]


def slowest_decision_s(store: CheckpointStore, pipeline: str) -> float | None:
    """The longest that one of the epochs that the store still knows took from its opening to its decision.

    One that writes through counts from its first opening on, also where a crash lies between. None before the first.
    """
    longest = "SELECT max(decided_at_ms - opened_at_ms) AS ms FROM onefold_epochs WHERE pipeline = %(pipeline)s"
    with store.database.transaction() as transaction:
        (found,) = transaction.rows(longest, {"pipeline": pipeline})
    return None if found.ms is None else int(found.ms) / 1000

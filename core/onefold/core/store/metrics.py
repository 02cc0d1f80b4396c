"""How long a pipeline's epochs take, as the checkpoint store has it."""

from __future__ import annotations

import sqlalchemy as sa

from onefold.core.store.checkpoint_store import CheckpointStore
from onefold.core.store.tables import epochs

__all__ = ["slowest_decision_s"]


def slowest_decision_s(store: CheckpointStore, pipeline: str) -> float | None:
    """The longest that one of the epochs that the store still knows took from its opening to its decision.

    One that writes through counts from its first opening on, also where a crash lies between. None before the first.
    """
    longest = sa.func.max(epochs.c.decided_at_ms - epochs.c.opened_at_ms)
    with store.database.transaction() as connection:
        found = connection.execute(sa.select(longest).where(epochs.c.pipeline == pipeline)).scalar_one()
    return None if found is None else int(found) / 1000

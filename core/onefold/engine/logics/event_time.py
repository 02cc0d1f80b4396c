"""The clocks of an operator in a subtask: kept with its state, and the same in every one of its subtasks."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.engine.state.state_backend import StateKind, StateSpec, StateTables
from onefold.flow.time.clocks import Clocks
from onefold.flow.time.watermarks import Watermarks

__all__ = ["CLOCKS", "kept_clocks"]

CLOCKS = "$clocks"  # a name that no user's state has


def kept_clocks(uid: str, backend: StateTables, watermarks: Mapping[str, Watermarks]) -> Clocks:
    """After each restore of the backend; from here on its snapshots have them. A restore takes those of any subtask."""
    spec = StateSpec(uid, CLOCKS, StateKind.CLOCKS)
    earlier = backend.earlier(spec)
    clocks = Clocks(watermarks, [(*row,) for row in earlier[0]] if earlier else ())
    backend.operator(spec, clocks.as_rows)
    return clocks

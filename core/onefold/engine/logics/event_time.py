"""The clocks of an operator in a subtask: kept with its state, and the same in every one of its subtasks, but where
barriers have overtaken what an epoch says of time: there it is that of an earlier epoch."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.engine.state.state_backend import StateKind, StateSpec, StateTables
from onefold.flow.time.clocks import Clocks, Times
from onefold.flow.time.watermarks import Watermarks

CLOCKS = "$clocks"  # a name that no user's state has


def kept_clocks(uid: str, backend: StateTables, watermarks: Mapping[str, Watermarks]) -> Clocks:
    """After each restore of the backend; from here on its snapshots have them."""
    spec = StateSpec(uid, CLOCKS, StateKind.CLOCKS)
    earlier = backend.earlier(spec)
    clocks = Clocks(watermarks, [(*row,) for row in earlier[0]] if earlier else ())
    backend.operator(spec, clocks.as_rows)
    return clocks


class ProcessingClocks(Clocks):
    """Of an operator whose time is the epochs' own."""

    def __init__(self) -> None:
        super().__init__({})

    def advance(self, times: Times, now_ms: int) -> None:
        del times
        self.watermark_us = now_ms * 1_000

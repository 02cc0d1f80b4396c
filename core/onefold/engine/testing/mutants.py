"""Ways to break the engine, each of which the simulator must notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from onefold.core.source import Part
from onefold.engine.dataflow.inbound import Inbound
from onefold.engine.dataflow.items import Acknowledge, Barrier, Effect
from onefold.engine.dataflow.subtask import Phase, Subtask
from onefold.engine.logics.processing import ProcessingLogic
from onefold.engine.testing.model_fleet import FleetSubject

__all__ = ["MUTANTS", "OF_ORDER"]


class _FrozenLate(Subtask):
    """Sends the barrier on, and takes a batch of the next epoch before it freezes the state."""

    def step(self) -> Iterator[Effect]:
        match self.phase:
            case Phase.FREEZING:
                self.phase = Phase.FORWARDING
            case Phase.PREPARING if self._state is not None:
                for channel, queue in enumerate(self.inbound._queues):
                    if queue and isinstance(queue[0], pa.RecordBatch):
                        yield from self._sent(self._operators.take(queue.popleft(), self.channels[channel].port))
                self._frozen = self._state.backend.freeze(self._task.epoch)
                yield from super().step()
            case _:
                yield from super().step()


class _NotStored(Subtask):
    """Acknowledges what its sinks have prepared, while its state is still being stored."""

    def acknowledged(self) -> Acknowledge | None:
        done, self._prepared = self._prepared, None
        if self.storing is not None and self.storing.done():
            self.storing = None
        return done


class _NotHeldBack(Inbound):
    """Takes what comes behind a channel's barrier before the other channels have delivered theirs."""

    def take(self) -> tuple[int, pa.RecordBatch | Part] | None:
        for channel, queue in enumerate(self._queues):
            while queue and not (isinstance(queue[0], Barrier) and channel in self._at_barrier):
                item = queue.popleft()
                if not isinstance(item, Barrier):
                    return channel, item
                self._at_barrier.add(channel)
        return None

    @property
    def has_ready(self) -> bool:
        fronts = [(queue[0], channel) for channel, queue in enumerate(self._queues) if queue]
        return any(not (isinstance(item, Barrier) and channel in self._at_barrier) for item, channel in fronts)


class _ByArrival(Inbound):
    """Takes channels as what comes on them comes, also where an epoch must be the same when it runs again."""

    def __init__(self, turns: Sequence[int]) -> None:
        super().__init__(len(turns))


def _forget_timers(subtask: Subtask) -> None:
    for logic in subtask._operators._logics.values():
        if isinstance(logic, ProcessingLogic) and logic._handle.timers is not None:
            logic._handle.timers._keys.clear()


def _all_groups(index: int, parallelism: int, max_parallelism: int) -> Sequence[int]:
    del index, parallelism
    return range(max_parallelism)


MUTANTS = {
    "the barrier goes on before the state is frozen": FleetSubject(subtask=_FrozenLate),
    "an epoch is acknowledged before its state is stored": FleetSubject(subtask=_NotStored),
    "a channel is not held back": FleetSubject(inbound=_NotHeldBack),
    "timers are not restored": FleetSubject(spoil=_forget_timers),
    "a key group is restored twice": FleetSubject(groups=_all_groups),
}
# Wrong at several points together, and before a sink that writes through.
OF_ORDER = {"channels are taken by arrival": FleetSubject(in_order=_ByArrival)}

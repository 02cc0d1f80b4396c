"""How long the epochs of a pipeline took, step by step, as its hosts report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from onefold.daemon.hosting.messages import Finished
from onefold.store.epoch_figures import EpochSteps, OperatorAcks

_KEPT = 1000  # epochs, which is what a store keeps
_OPERATORS_KEPT = 100  # epochs whose operators are kept: each has some bytes a subtask


class EpochTimes:
    """One thread reports, others ask. It goes on when hosts change."""

    def __init__(self) -> None:
        self._steps: dict[int, EpochSteps] = {}  # the oldest first
        self._operators: dict[int, tuple[OperatorAcks, ...]] = {}
        self._sums: Mapping[str, float] = {}

    def take(self, finished: Iterable[Finished]) -> None:
        sums = Counter(self._sums)
        for each in finished:
            self._steps[each.epoch], self._operators[each.epoch] = each.steps, each.operators
            sums.update(each.steps.known())
        self._sums = sums
        for epoch in list(self._steps)[:-_KEPT]:
            del self._steps[epoch]
        for epoch in list(self._operators)[:-_OPERATORS_KEPT]:
            del self._operators[epoch]

    def of(self, epoch: int) -> EpochSteps | None:
        """None of one that was finished before this daemon was started."""
        return self._steps.get(epoch)

    def operators(self, epoch: int) -> tuple[OperatorAcks, ...]:
        """What its subtasks have acknowledged it with; nothing of the epochs before the last hundred."""
        return self._operators.get(epoch, ())

    @property
    def sums(self) -> Mapping[str, float]:
        """Seconds since the daemon was started, by step; none before the first epoch."""
        return self._sums

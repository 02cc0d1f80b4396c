"""The head of a chain that reads a source. A worker reads; what it has read comes here."""

from __future__ import annotations

from collections.abc import Iterator

from onefold.core.checks import require
from onefold.core.contract import TaskId
from onefold.core.source import Part
from onefold.core.writing.bad_records import Policy
from onefold.engine.logics.logic import Input, Output

__all__ = ["BAD", "ReadingLogic"]

BAD = "bad"  # the side output of what could not be read


class ReadingLogic:
    """Gives the rows of a source's parts, and bad records to the side output. `policy` is None where the first bad one
    ends the flow: its reader does that."""

    def __init__(self, policy: Policy | None) -> None:
        self._policy = policy
        self._bad = 0

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        require(isinstance(batch, Part) and port == 0, "a source gives parts")
        if batch.bad.num_rows:
            self._bad += batch.bad.num_rows
            yield BAD, batch.bad
        yield None, batch.rows

    def flush(self, task: TaskId) -> Iterator[Output]:
        """Raises BadRecord where this subtask alone has too many."""
        if self._policy is not None:
            self._policy.refuse(task, self._bad)
        return iter(())

    def bad_of_epoch(self) -> int:
        """How many records of the epoch could not be read; counts anew from here."""
        bad, self._bad = self._bad, 0
        return bad

    def close(self) -> None:
        return

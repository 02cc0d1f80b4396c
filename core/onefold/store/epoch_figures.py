"""What is told of an epoch: how long its steps took, what its subtasks have acknowledged, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSteps:
    """Seconds: together, from the end of the epoch before to the end of this one.

    wait_s     until there are records, or the epoch's interval is over, or somebody resumes; on Spark its planning too
    open_s     the store opens the epoch, and what earlier ones have left is removed
    run_s      the records are read, processed and written
    prepare_s  the slowest worker prepares its sinks' work and stores its state; None on Spark, where it is in `run_s`
    decide_s   the prepared work is verified, and the store decides; of a sink whose rows are part of that, all is here
    commit_s   each sink commits
    """

    wait_s: float
    open_s: float
    run_s: float
    prepare_s: float | None
    decide_s: float
    commit_s: float

    def with_prepare(self, took_s: float) -> EpochSteps:
        """Where `run_s` has that in it."""
        prepare_s = min(took_s, self.run_s)
        return replace(self, run_s=self.run_s - prepare_s, prepare_s=prepare_s)

    def known(self) -> dict[str, float]:
        """Those that are measured, by their names without the unit."""
        found = ((each.name.removesuffix("_s"), getattr(self, each.name)) for each in fields(self))
        return {name: took_s for name, took_s in found if took_s is not None}


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a subtask has acknowledged an epoch with.

    at_s          when: seconds since 1970
    aligned_s     seconds from the first of its inputs' barriers to the last
    held_bytes    that had come by then on the inputs that waited
    prepared_s    seconds in which it prepared its sinks' work and stored its state
    state_bytes   of its state, about
    stored_bytes  that were written of it for this epoch
    how           "aligned", "unaligned", "switched" (after the timeout), or "not aligned" (at least once)
    flight_bytes  of records that the epoch's barriers have overtaken
    """

    at_s: float
    aligned_s: float
    held_bytes: int
    prepared_s: float
    state_bytes: int
    stored_bytes: int
    how: str = "aligned"
    flight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OperatorAcks:
    """Operators that run together, and the acknowledgements of their subtasks: one a worker, None before it has."""

    names: tuple[str, ...]
    subtasks: tuple[Acknowledged | None, ...]


@dataclass(frozen=True, slots=True)
class RunningEpoch:
    """An epoch that began to write at a moment (seconds since 1970), and at which step it is. `at` has for each worker
    the operator in whose code it was just now."""

    epoch: int
    since_s: float
    step: str
    operators: tuple[OperatorAcks, ...] = ()
    at: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A run of an epoch was given up at a moment (seconds since 1970), and why."""

    epoch: int
    at_s: float
    why: str

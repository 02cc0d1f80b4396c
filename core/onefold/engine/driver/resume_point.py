"""Where a flow resumes: the end of its last decided epoch, and the snapshots that this epoch made its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from onefold.core.checks import present
from onefold.core.contract import EpochRecord
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Started
from onefold.core.values.remedies import remedies
from onefold.engine.state import STATE

__all__ = ["Kept", "ResumePoint", "check_workers", "resume_point", "with_workers"]

_WORKERS = "+"  # between a job's fingerprint and how many workers its epochs take to run again as they were

Kept = Callable[[EpochRecord], tuple[str, ...]]
"""The snapshots that the state's own notes name for an epoch, by its time too; none where they know no such epoch."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The positions and the snapshots from which the next epoch goes on. `until` is where it must end, where one that
    writes through was begun; `epoch` is the last decided one, 0 before the first."""

    at: Positions
    epoch: int = 0
    handles: tuple[str, ...] = ()
    until: Positions | None = None

    @classmethod
    def after(cls, record: EpochRecord) -> ResumePoint:
        handles = tuple(c.handle for c in record.manifest if c.sink == STATE)
        return cls(record.range.end.of_records(), record.epoch, handles)


def resume_point(facts: StoreFacts, started: Started, kept: Kept | None) -> ResumePoint:
    """Where the next epoch begins, and how. Raises CheckpointMismatch where the flow keeps state, and the last epoch
    has none of it: one that was adopted from the ledgers has no manifest, and the state's own notes tell."""
    if facts.last is None:
        begin = present(started.start, "a start finds where a first epoch begins")
        return ResumePoint(begin, until=started.until)
    found = ResumePoint.after(facts.last)
    if kept is not None and not found.handles:
        found = replace(found, handles=kept(facts.last))
    if kept is not None and not found.handles:
        raise CheckpointMismatch(
            "state-missing",
            f"this flow keeps state, and epoch {facts.last.epoch}, from whose end on it would go on, has none: its"
            " positions were moved, or it ran without state. Nothing was written. To begin anew,"
            f" {remedies().begin_anew(empties=True)}",
        )
    begun = facts.begun
    return found if begun is None else ResumePoint(found.at, found.epoch, found.handles, begun.range.end)


def with_workers(fingerprint: str, workers: int) -> str:
    """The fingerprint of epochs that give the same rows again only with as many workers."""
    return f"{fingerprint}{_WORKERS}{workers}"


def check_workers(facts: StoreFacts, workers: int) -> None:
    """Raise ConfigError where an epoch was begun that has to run again with another number of workers."""
    begun = facts.begun
    job, _, _ = begun.fingerprint.partition("/") if begun is not None else ("", "", "")
    needed = job.rpartition(_WORKERS)[2] if _WORKERS in job else ""
    if begun is not None and needed.isdecimal() and int(needed) != workers:
        raise ConfigError(
            "worker-count",
            f"epoch {begun.epoch} of flow {begun.pipeline!r} was begun by {needed} workers, parts of it may show in"
            f" {', '.join(begun.write_through)}, and other rows would come of it with workers={workers}. Start the flow"
            f" with workers={needed} until that epoch is complete; then with any other number",
        )

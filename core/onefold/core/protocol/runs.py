"""Batch runs: the chain's positions are the names of the runs, one after the other.

The chain of such a pipeline begins at the run without a name, and each run's epoch ends at the run's own name. So
the protocol handles a run like any range. In addition no name is decided twice: the store checks that in the decision's
own transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts

NAME_LENGTH_MAX = 200
_RUN = "#run"
NO_RUN = Positions.of({_RUN: ""})


@dataclass(frozen=True, slots=True)
class DecidedRun:
    """A run whose rows are decided: written, or finished by the next start. The store keeps its name for good."""

    run: str
    epoch: int
    rows: int


def check_name(run: str) -> None:
    """Raise ConfigError for a text that cannot name a run."""
    if not isinstance(run, str) or not run.isprintable() or not 0 < len(run.strip()) == len(run) <= NAME_LENGTH_MAX:
        raise ConfigError(
            "option-value",
            f"run={run!r} must name this run, the same whenever it is tried again and never again for another (a"
            f" schedule's date): 1 to {NAME_LENGTH_MAX} printable characters, no space at either end",
        )


def run_of(positions: Positions) -> str | None:
    """The name of the run that ends at these positions; empty for NO_RUN, None for any other source's."""
    name = dict(positions.items).get(_RUN)
    return name if isinstance(name, str) else None


def next_range(facts: StoreFacts, run: str) -> Range:
    """The range of a run that was not decided yet, behind all that were.

    Raises ConfigError for a pipeline whose epochs are a streaming query's, CheckpointMismatch where another run that
    writes through was begun.
    """
    if any(run_of(positions) is None for positions in _known(facts)):
        raise ConfigError(
            "batch-and-stream-mixed",
            f"run {run!r} was not written: a streaming query has this pipeline's name, and its positions and a batch's"
            " runs cannot be one chain. Give the batch job a pipeline name of its own",
        )
    if (record := facts.begun) is not None and (begun := run_of(record.range.end)) != run:
        raise CheckpointMismatch(
            "run-unfinished",
            f"run {run!r} was not written: run {begun!r} was begun as epoch {record.epoch}, and parts of it may"
            f" show in {', '.join(record.write_through)}. Run {begun!r} again first",
        )
    last = facts.last.range.end if facts.last else NO_RUN
    return Range(last, Positions.of({_RUN: run}))


def refuse_query(facts: StoreFacts, pipeline: str) -> None:
    """Raises ConfigError for a pipeline whose epochs are batch runs: a streaming query cannot continue them."""
    if any(run_of(positions) is not None for positions in _known(facts)):
        raise ConfigError(
            "batch-and-stream-mixed",
            f"pipeline {pipeline!r} writes batch runs (write_batch), and a streaming query's positions cannot be one"
            " chain with them. Give the query a pipeline name of its own",
        )


def _known(facts: StoreFacts) -> list[Positions]:
    records = [record for record in (facts.last, *facts.unfinished) if record is not None]
    return [record.range.end for record in records] + ([facts.frozen] if facts.frozen is not None else [])

"""Refuses batches and moves that only a user, or a source without ordered offsets, can bring. Not simulated."""

from __future__ import annotations

from onefold.core.contract import EpochRecord
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions, Relation
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.values.remedies import remedies


def check_is_from_this_start(facts: StoreFacts, request: EpochRequest, base: Positions) -> None:
    """Raise CheckpointMismatch where nothing was written yet and the batch starts elsewhere: it is of another start."""
    start = request.range.start
    if facts.last is None and start.relation_to(base) is not Relation.SAME:
        raise CheckpointMismatch(
            "batch-of-another-start",
            f"batch {request.batch_id} of query {request.query_id} starts elsewhere than this pipeline, which has"
            f" written nothing yet ({start.differences(base)}): the checkpoint, or a DataFrame of your own, is from"
            " another start. Nothing was written; start with a new, empty checkpoint directory, and a query of your own"
            " under another pipeline name",
        )


def check_has_order(request: EpochRequest, base: Positions) -> None:
    """Raise CheckpointMismatch where start and last end have no order: another topic of that name, or other sources."""
    start = request.range.start
    if start.relation_to(base) is Relation.UNORDERED:
        raise CheckpointMismatch(
            "positions-not-comparable",
            f"batch {request.batch_id} of query {request.query_id} does not start where the last epoch ended"
            f" ({start.differences(base)}), and of such positions nobody can tell which is later: the"
            " checkpoint is an older copy, or another pipeline's, or a topic was made anew. Nothing was written;"
            f" restore the checkpoint, or {remedies().begin_anew(empties=True)}",
        )


def check_movable(pipeline: str, base: Positions | None, to: Positions) -> Positions:
    """Where the pipeline stands, which is `base`. Raises ConfigError where it can't be moved from there to `to`."""
    if base is None:
        raise ConfigError(
            "never-started",
            f"pipeline {pipeline!r} was never started here, so there is no position to move. Give its source the"
            " starting_offsets at which it is to begin",
        )
    check_stateless(pipeline, base.of_records() != base)
    _check_of_topics(pipeline, base)
    if to.relation_to(base) is Relation.SAME:
        raise ConfigError("move-to-itself", f"pipeline {pipeline!r} stands there already: nothing was moved")
    return base


def check_restorable(pipeline: str, base: Positions | None, to: Positions) -> Positions:
    """Where the pipeline stands, which is `base`. Raises ConfigError where a savepoint of `to` cannot be restored
    there."""
    if base is None:
        raise ConfigError(
            "never-started",
            f"pipeline {pipeline!r} was never started here, and has nothing that a savepoint could take the place of:"
            " begin it with one (--as)",
        )
    if to.of_records().relation_to(base.of_records()) is not Relation.SAME:
        _check_of_topics(pipeline, base.of_records())
    return base


def _check_of_topics(pipeline: str, base: Positions) -> None:
    by_topic = {f"{topic}/{number}" for topic, numbers in base.topics().items() for number in numbers}
    if not by_topic or by_topic != {name for name, _ in base.items}:
        raise ConfigError(
            "positions-not-movable",
            f"the positions of pipeline {pipeline!r} are not the offsets of topics, and of others onefold does not know"
            f" which can be read. {_elsewhere()}",
        )


def check_stateless(pipeline: str, keeps_state: bool) -> None:
    """Raise ConfigError for a pipeline that keeps state, which the records before its positions have made."""
    if keeps_state:
        raise ConfigError(
            "state-not-movable",
            f"pipeline {pipeline!r} keeps state (of an aggregation, a join or a deduplication), which was made of the"
            f" records before its positions: at others it would be wrong. Nothing was moved. {_elsewhere()}",
        )


def must_run_again(begun: EpochRecord) -> ConfigError:
    return ConfigError(
        "move-beside-epoch",
        f"epoch {begun.epoch} of pipeline {begun.pipeline!r} was begun, and parts of it may show in"
        f" {', '.join(begun.write_through)}: it must run again as it was. Nothing was moved. Start the pipeline once,"
        " with the sinks that it had, let it finish that epoch, and stop it; then run the command again",
    )


def check_resolved(pipeline: str, facts: StoreFacts) -> EpochRecord:
    """The last epoch, with which the sinks may change. Raises ConfigError where there is none yet, or one must run
    again."""
    if facts.begun is not None:
        raise must_run_again(facts.begun)
    if facts.last is None:
        raise ConfigError(
            "never-started",
            f"pipeline {pipeline!r} has written no epoch yet: it may start with any sinks, and nothing was changed",
        )
    return facts.last


def would_double(pipeline: str, sink: str) -> ConfigError:
    return ConfigError(
        "move-would-double",
        f"sink {sink!r} of pipeline {pipeline!r} has records at and after the new positions already, and would have"
        " them twice. Nothing was moved. Empty what it writes to, which proves that it was rewound (TRUNCATE, or"
        " truncate of HBase's shell), then move; a topic cannot prove it: give the pipeline with another topic its own"
        " name",
    )


def by_batch_number(last: EpochRecord | None, query_id: str, batch_id: int, end: Positions) -> Relation | None:
    """How the end of a query's batch lies to the last epoch's where the positions have no order: of one query's
    batches the numbers have one. None where the positions tell."""
    is_another_source = any(name.startswith("#") for name, _ in end.items)
    if not is_another_source or last is None or last.query_id != query_id:
        return None
    if end.relation_to(last.range.end) is Relation.SAME:
        return None
    return Relation.AHEAD if batch_id > last.batch_id else Relation.BEHIND


def other_setting(settled: str | None, now: str | None) -> ConfigError:
    """The error for a setting that would be ignored."""
    return ConfigError(
        "starting-offsets-settled",
        f"starting_offsets={now!r} would be ignored: the pipeline's first start settled where it begins, by"
        f" starting_offsets={settled!r}, and it goes on from there. Put that back; or, to begin elsewhere,"
        f" {remedies().begin_anew()}",
    )


def _elsewhere() -> str:
    """What to do where positions cannot be moved."""
    return (
        f"To begin elsewhere, {remedies().begin_anew(empties=True)}, and give its source the starting_offsets of that"
        " place"
    )

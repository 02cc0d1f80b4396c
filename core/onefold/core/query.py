"""A pipeline that runs a streaming query: which epoch each of its batches is, by what the query's checkpoint says."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core import offset_log
from onefold.core.asking import Protocol, insist
from onefold.core.contract import EpochRecord
from onefold.core.effects import EpochRequest, ReadStore, StoreFacts
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.life import Life
from onefold.core.positions import Positions, Range, Relation
from onefold.core.protocol import Initial, Outcome, Started
from onefold.core.recovery import check_committed
from onefold.core.runs import refuse_query
from onefold.core.store import KEEP_EPOCHS

__all__ = ["Job", "QueryLife", "RunningQuery", "must_drain"]

QUERY = "#query"  # beside positions that only mean something within one query's checkpoint


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """One run of a streaming query."""

    query_id: str
    run_id: str
    root: str  # the resolved checkpoint root
    stateful: bool | None  # None where nobody can tell (Spark Connect)


@dataclass(frozen=True, slots=True)
class Job:
    """What is the same for all batches of a run, known once its sinks were opened."""

    fingerprint: str
    sinks: tuple[str, ...]
    write_through: tuple[str, ...] = ()


class QueryLife(Life):
    """A life and the one query that it works for."""

    query: RunningQuery | None = None
    _last_end: tuple[int, Positions] | None = None

    def start(self, initial: Initial | None) -> Protocol[Started]:
        self.query = None
        return (yield from super().start(initial))

    def check_checkpoint(self, root: str) -> Protocol[None]:
        """Before a query starts, also one that finds nothing new: what its checkpoint holds as done is on record."""
        committed = yield from offset_log.committed_end(root)
        if committed is not None:
            facts: StoreFacts = yield from insist(ReadStore())
            check_committed(facts, committed)

    def bind(self, query: RunningQuery) -> Protocol[bool]:
        """The run that the next batch belongs to: True if it is new. A new run, of this query or another, starts the
        protocol anew."""
        if self.query == query:
            return False
        refuse_query((yield from insist(ReadStore())), self.pipeline)
        if self.started is None or self.query is not None:
            yield from self.start(None)
        self.query, self._last_end = query, None
        return True

    def batch(self, batch_id: int, job: Job) -> Protocol[Outcome]:
        """One batch of the bound run, exactly once."""
        query = self.query
        assert query is not None, "a batch belongs to a run"
        span = yield from self._range(query, batch_id)
        files = yield from offset_log.files_of(query.root, span.end)
        request = EpochRequest(
            range=span,
            query_id=query.query_id,
            batch_id=batch_id,
            fingerprint=f"{job.fingerprint}/{files}" if files else job.fingerprint,
            sinks=job.sinks,
            write_through=job.write_through,
            continues=batch_id > 0,
        )
        if query.stateful is True and batch_id == 0:
            check_state_is_whole((yield from insist(ReadStore())), request)
        outcome = yield from self.run_epoch(request)
        self._last_end = (batch_id, span.end)
        return outcome

    def _range(self, query: RunningQuery, batch_id: int) -> Protocol[Range]:
        end = yield from offset_log.end_of(query.root, batch_id)
        if end is None:
            raise CheckpointMismatch(
                f"the checkpoint at {query.root} has no offsets/{batch_id}, though Spark runs that batch: something"
                " deletes files there. Stop it, and start with a new checkpoint and startingOffsets=ledger"
            )
        if self._last_end is not None and self._last_end[0] == batch_id - 1:
            return Range(self._last_end[1], _within(query, end))
        before = yield from offset_log.end_before(query.root, batch_id)
        start = (yield from self._first_start(query, batch_id, end)) if before is None else before
        return Range(_within(query, start), _within(query, end))

    def _first_start(self, query: RunningQuery, batch_id: int, end: Positions) -> Protocol[Positions]:
        start, topics = yield from offset_log.first_start(query.root, batch_id)
        if missing := sorted(end.topics().keys() - topics):
            raise ConfigError(
                f"batch {batch_id} was planned without a word of where it began in {', '.join(missing)}: by an earlier"
                " version of onefold, or by a source that Spark logs no start of. Start the query with a new, empty"
                " checkpoint directory, and read through the pipeline: pipeline.read(spark, KafkaSource(...))"
            )
        nowhere: dict[str, int | str] = {name: -1 for name, _ in end.items if name[0] == "#"}
        if nowhere:
            facts: StoreFacts = yield from insist(ReadStore())
            _check_no_other_query(facts.last, query, self.pipeline)
        return Positions.of({**nowhere, **dict(start.items)}, start.marks)


def must_drain(query: RunningQuery, outcome: Outcome) -> bool:
    """Whether a batch that was written before must run to nowhere: to skip a completed batch of a stateful query would
    break the state store's validation."""
    return outcome.replayed and query.stateful is not False


def check_state_is_whole(facts: StoreFacts, first: EpochRequest) -> None:
    """The ledger has the positions, but not the state that a query had built up to there."""
    last, begin = facts.last, first.range.start
    if last is None or begin.relation_to(last.range.end) is not Relation.SAME:
        return  # a replay from the very beginning, or a mismatch that the protocol explains
    if facts.frozen is not None and begin.relation_to(facts.frozen) is Relation.SAME:
        return  # nothing but empty batches so far
    if (last.query_id, last.batch_id) == (first.query_id, 0) and last.range.is_empty:
        return
    raise CheckpointMismatch(
        f"this query keeps state, and it would go on at epoch {last.epoch}'s end without the state of the records"
        " before, which is in the checkpoint directory only. Nothing was written. Restore that directory; or start"
        " with startingOffsets=earliest and the same maxOffsetsPerTrigger, which runs all batches from the"
        " pipeline's first position through the state again and writes none of them twice (as long as the store"
        f" still knows them: it keeps {KEEP_EPOCHS:,}); or start over under a new pipeline name, with an empty"
        " table"
    )


def _check_no_other_query(last: EpochRecord | None, query: RunningQuery, pipeline: str) -> None:
    """Sources other than Kafka count in their own way in each checkpoint: nobody could tell what is there."""
    if last is not None and dict(last.range.end.items).get(QUERY) != query.query_id:
        raise CheckpointMismatch(
            f"pipeline {pipeline!r} has written {last.epoch} epochs, and this checkpoint directory is new. The"
            " positions of this query's sources are numbers of their checkpoint, so where a new one begins is not"
            " known. Nothing was written. Restore the checkpoint directory, or start over under a new pipeline"
            " name, with an empty table"
        )


def _within(query: RunningQuery, positions: Positions) -> Positions:
    if not any(name.startswith("#") for name, _ in positions.items):
        return positions
    return Positions.of({**dict(positions.items), QUERY: query.query_id}, positions.marks)

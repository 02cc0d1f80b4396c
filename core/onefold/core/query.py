"""A pipeline that runs a streaming query: which epoch each of its batches is, by what the query's checkpoint says."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.core import offset_log
from onefold.core.asking import Protocol, insist
from onefold.core.contract import Decided, EpochRecord
from onefold.core.effects import EpochRequest, MarkDamaged, ReadStore, StoreFacts
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.life import Life
from onefold.core.positions import Positions, Range, Relation
from onefold.core.protocol import Initial, Outcome, Started
from onefold.core.recovery import Committed, check_committed
from onefold.core.runs import refuse_query
from onefold.core.store import KEEP_EPOCHS

__all__ = ["Job", "QueryLife", "Running", "RunningQuery", "must_drain"]

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


@dataclass(frozen=True, slots=True)
class Running:
    """Where the running batch starts and ends by what its own process holds in memory; None where nobody can tell."""

    start: Positions | None = None
    end: Positions | None = None


class QueryLife(Life):
    """A life and the one query that it works for."""

    query: RunningQuery | None = None
    _last_end: tuple[int, Positions] | None = None
    _returned: tuple[int, EpochRecord] | None = None

    def start(self, initial: Initial | None) -> Protocol[Started]:
        self.query = None
        return (yield from super().start(initial))

    def check_checkpoint(self, root: str, plans_ends: bool = True) -> Protocol[None]:
        """Before a query starts, also one that finds nothing new: what its checkpoint holds as done is on record. And
        an epoch that must run again is planned there already, if its source cannot plan a batch to a given end."""
        committed = yield from offset_log.last_committed(root)
        if committed is not None:
            facts: StoreFacts = yield from insist(ReadStore())
            end = _within(committed.query_id, committed.end)
            check_committed(facts, Committed(committed.query_id, committed.batch_id, end))
        until = self.started.until if self.started is not None else None
        if until is not None and not plans_ends:
            planned = yield from offset_log.last_planned(root)
            if planned is None or planned.relation_to(until) is not Relation.SAME:
                raise ConfigError(
                    f"an epoch was begun, and must run again exactly as it was, to {until.to_json()}; this checkpoint"
                    " has not planned it, and reader='spark' cannot plan a batch to a given end. Start once with"
                    " reader='onefold', a new, empty checkpoint directory and startingOffsets=ledger; then do the same"
                    " with reader='spark'"
                )

    def bind(self, query: RunningQuery) -> Protocol[bool]:
        """The run that the next batch belongs to: True if it is new. A new run, of this query or another, starts the
        protocol anew."""
        if self.query == query:
            return False
        refuse_query((yield from insist(ReadStore())), self.pipeline)
        if self.started is None or self.query is not None:
            yield from self.start(None)
        self.query, self._last_end, self._returned = query, None, None
        return True

    def request(self, batch_id: int, job: Job, running: Running | None = None) -> Protocol[EpochRequest]:
        """What one batch of the bound run asks for. `running` is what the runtime itself says of it, if it can."""
        query = self.query
        assert query is not None, "a batch belongs to a run"
        if self._returned is not None and self._returned[0] == batch_id:
            yield from self._refuse_rest_of(batch_id, self._returned[1])
        span = yield from self._range(query, batch_id, running or Running())
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
        return request

    def run(self, request: EpochRequest) -> Protocol[Outcome]:
        """That batch, exactly once."""
        outcome = yield from self.run_epoch(request)
        self._last_end = (request.batch_id, request.range.end)
        return outcome

    def returned(self, batch_id: int, outcome: Outcome) -> None:
        """The call for that batch is about to return to the job, which has no reason to make another one."""
        self._returned = batch_id, outcome.record

    def _refuse_rest_of(self, batch_id: int, record: EpochRecord) -> Protocol[None]:
        """A second call has other rows than the first: to call it a replay would lose them. The epoch is marked, since
        a start after that finds its range written."""
        assert self.started is not None, "the first call started"
        evidence = f"the epoch writer was called twice for batch {batch_id}; only the first call's rows are written"
        yield from insist(MarkDamaged(self.started.generation, Decided(record), evidence))
        raise ConfigError(
            f"the epoch writer was called a second time for batch {batch_id}, which is epoch {record.epoch} with the"
            " first call's rows: the second call's were not written, and the epoch is marked as damaged. Call it once"
            " for a batch, with all rows (or give each part a pipeline of its own); then write the missing rows by hand"
            f" and start once with Pipeline(..., accept_damage={record.epoch}), or start over under a new pipeline"
            " name, with an empty table and a new checkpoint directory"
        )

    def _range(self, query: RunningQuery, batch_id: int, running: Running) -> Protocol[Range]:
        end = yield from offset_log.end_of(query.root, batch_id)
        if end is None:
            raise CheckpointMismatch(
                f"the checkpoint at {query.root} has no offsets/{batch_id}, though Spark runs that batch: something"
                " deletes files there. Stop it, and start with a new checkpoint and startingOffsets=ledger"
            )
        _check_is_run(query, batch_id, end, running.end)
        if self._last_end is not None and self._last_end[0] == batch_id - 1:
            return Range(self._last_end[1], _within(query.query_id, end))
        before = yield from offset_log.end_before(query.root, batch_id)
        if before is not None:
            _check_is_run(query, batch_id, before, running.start)
        start = (yield from self._first_start(query, batch_id, end)) if before is None else before
        return Range(_within(query.query_id, start), _within(query.query_id, end))

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
        " with the startingOffsets that the pipeline first had and the same maxOffsetsPerTrigger, which runs all"
        " batches from its first position through the state again and writes none of them twice (as long as the store"
        f" still knows them: it keeps {KEEP_EPOCHS:,}); or start over under a new pipeline name, with an empty"
        " table"
    )


def _check_is_run(query: RunningQuery, batch_id: int, logged: Positions, running: Positions | None) -> None:
    """The file may be another process's by now: an object store replaces what is there."""
    if running is not None and logged != running:
        raise CheckpointMismatch(
            f"the checkpoint at {query.root} says otherwise of batch {batch_id} than the query that runs it"
            f" ({logged.differences(running)}): another process writes to that directory. Nothing of the batch was"
            " written. Stop that process, and start the query again"
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


def _within(query_id: str, positions: Positions) -> Positions:
    if not any(name.startswith("#") for name, _ in positions.items):
        return positions
    return Positions.of({**dict(positions.items), QUERY: query_id}, positions.marks)

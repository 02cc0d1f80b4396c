"""A pipeline that runs a streaming query: finds each batch's range in the query's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.core.checks import present
from onefold.core.contract import Decided, EpochRecord
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.moves import MoveNote
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import EpochRequest, MarkDamaged, Protocol, ReadMoves, ReadStore, StoreFacts, retry
from onefold.core.protocol.epoch import Initial, Outcome, Started, StoreCache
from onefold.core.protocol.moving import change_sinks, move
from onefold.core.protocol.recovery import Committed, check_committed
from onefold.core.protocol.runs import refuse_query
from onefold.core.values.remedies import remedies
from onefold.store.job import offset_log
from onefold.store.job.checkpoint_only import check_state, files_of, others_start, within
from onefold.store.job.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """One run of a streaming query."""

    query_id: str
    run_id: str
    root: str  # the resolved checkpoint root
    stateful: bool | None  # None where that is unknown (Spark Connect)
    clocks: tuple[str, ...] = ()  # by which a batch makes rows without new records: of positions.CLOCKS


@dataclass(frozen=True, slots=True)
class QueryJob:
    """What all batches of a run share, known once its sinks are open."""

    fingerprint: str
    sinks: tuple[str, ...]
    write_through: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """Where the running batch starts and ends, as the query's process has it in memory; None where that is unknown."""

    start: Positions | None = None
    end: Positions | None = None


class QueryLifecycle(Lifecycle):
    """A pipeline in one process, and the one streaming query that it runs."""

    HAS_CHECKPOINT = True
    query: RunningQuery | None = None
    _last_end: tuple[int, Positions] | None = None
    _returned: tuple[int, EpochRecord] | None = None

    def start(
        self, initial: Initial | None, adopt_ledger: bool = False, accept_damage: int | None = None
    ) -> Protocol[Started]:
        self.query = None
        return (yield from super().start(initial, adopt_ledger, accept_damage))

    def check_checkpoint(self, root: str) -> Protocol[None]:
        """Before a query starts, also one that finds nothing new: what its checkpoint holds as done is on record.

        Only then is swept what earlier lives left: an older copy of the store knows less than was decided."""
        yield from self._check_committed(root)
        if self.started is not None:
            yield from self.sweep()

    def before_move(self, root: str | None) -> Protocol[tuple[StoreFacts, Sequence[EpochRecord]]]:
        """Take over the pipeline, so that every other driver is fenced, and look where it stands and how it was moved
        before. `root` is its checkpoint, where that can be read."""
        yield from self.start(None)
        if root is not None:
            yield from self.check_checkpoint(root)
        facts: StoreFacts = yield from retry(ReadStore())
        moves: Sequence[EpochRecord] = yield from retry(ReadMoves())
        return facts, moves

    def move(
        self, to: Positions, note: MoveNote, sinks: tuple[str, ...] | None = None, with_state: bool = False
    ) -> Protocol[EpochRecord]:
        """Move the positions, under the generation of the last start, and go on with these sinks, by default all of
        the start's; `with_state` as writers prepare it."""
        started = present(self.started, "no move without a start")
        going_on = self.sinks if sinks is None else sinks
        return (yield from move(started.generation, started.store_id, going_on, to, note, with_state))

    def change_sinks(self, note: MoveNote) -> Protocol[EpochRecord]:
        """Have the chain go on with the sinks of today, under the generation of the last start."""
        started = present(self.started, "no change without a start")
        return (yield from change_sinks(started.generation, started.store_id, self.sinks, note))

    def bind(self, query: RunningQuery) -> Protocol[bool]:
        """The run that the next batch belongs to: True if it is new. A new run, of this query or another, starts the
        protocol anew."""
        if self.query == query:
            return False
        refuse_query((yield from retry(ReadStore())), self.pipeline)
        if self.started is None or self.query is not None:
            yield from self.start(None)
        if not self.is_swept:  # check_checkpoint was not called: the job started the query itself
            yield from self._check_committed(query.root)
            yield from self.sweep()
        self.query, self._last_end, self._returned = query, None, None
        return True

    def request(self, batch_id: int, job: QueryJob, running: Running | None = None) -> Protocol[EpochRequest]:
        """What one batch of the bound run asks for. `running` is what the runtime itself says of it, if it can."""
        query = present(self.query, "a batch belongs to a run")
        if self._returned is not None and self._returned[0] == batch_id:
            yield from self._refuse_rest_of(batch_id, self._returned[1])
        span = yield from self._range(query, batch_id, running or Running())
        files = yield from files_of(query.root, span.end)
        request = EpochRequest(
            range=span,
            query_id=query.query_id,
            batch_id=batch_id,
            fingerprint=f"{job.fingerprint}/{files}" if files else job.fingerprint,
            sinks=job.sinks,
            write_through=job.write_through,
            continues=batch_id > 0,
        )
        yield from check_state(query.stateful, request)
        return request

    def run(self, request: EpochRequest) -> Protocol[Outcome]:
        """That batch, exactly once."""
        outcome = yield from self.run_epoch(request)
        self._last_end = (request.batch_id, request.range.end)
        return outcome

    def returned(self, batch_id: int, outcome: Outcome) -> None:
        """Note that the call for that batch returns to the job: a second call for it is an error of the job."""
        self._returned = batch_id, outcome.record

    def _check_committed(self, root: str) -> Protocol[StoreFacts]:
        """What the checkpoint holds as done is on record; returns the record."""
        committed = yield from offset_log.last_committed(root)
        facts: StoreFacts = yield from retry(ReadStore())
        if committed is not None:
            end = within(committed.query_id, committed.end)
            check_committed(facts, Committed(committed.query_id, committed.batch_id, end))
        return facts

    def _refuse_rest_of(self, batch_id: int, record: EpochRecord) -> Protocol[None]:
        """A second call has other rows than the first: to call it a replay would lose them. The epoch is marked, since
        a start after that finds its range written."""
        generation = present(self.started, "the first call started").generation
        self._cache = StoreCache()  # complete it is not
        evidence = f"the epoch writer was called twice for batch {batch_id}; only the first call's rows are written"
        yield from retry(MarkDamaged(generation, Decided(record), evidence))
        raise ConfigError(
            "batch-written-twice",
            f"the epoch writer was called a second time for batch {batch_id}, which is epoch {record.epoch} with the"
            " first call's rows: the second call's were not written, and the epoch is marked as damaged. Call it once"
            " for a batch, with all rows (or give each part a pipeline of its own); then write the missing rows by hand"
            f" and {remedies().recover(accept_damage=record.epoch)}, or {remedies().begin_anew(empties=True)}",
        )

    def _range(self, query: RunningQuery, batch_id: int, running: Running) -> Protocol[Range]:
        end = yield from offset_log.end_of_running(query.root, batch_id, query.clocks)
        _check_is_run(query, batch_id, end, running.end)
        if self._last_end is not None and self._last_end[0] == batch_id - 1:
            return Range(self._last_end[1], within(query.query_id, end))
        before = yield from offset_log.end_before(query.root, batch_id, query.clocks)
        if before is not None:
            _check_is_run(query, batch_id, before, running.start)
        if before is None:
            start = yield from offset_log.first_start(query.root, batch_id, end)
            others = yield from others_start(self.pipeline, query.query_id, end)
            before = Positions.of({**others, **dict(start.items)}, start.marks)
        return Range(within(query.query_id, before), within(query.query_id, end))


def must_drain(query: RunningQuery, outcome: Outcome) -> bool:
    """Whether a batch that was written before must run to nowhere: to skip a completed batch of a stateful query would
    break the state store's validation."""
    return outcome.replayed and query.stateful is not False


def _check_is_run(query: RunningQuery, batch_id: int, logged: Positions, running: Positions | None) -> None:
    """The file may be another process's by now: an object store replaces what is there."""
    logged = logged.of_records()
    if running is not None and logged != running:
        raise CheckpointMismatch(
            "checkpoint-shared",
            f"the checkpoint at {query.root} says otherwise of batch {batch_id} than the query that runs it"
            f" ({logged.differences(running)}): another process writes to that directory. Nothing of the batch was"
            " written. Stop that process, and start the query again",
        )

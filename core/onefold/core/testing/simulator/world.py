"""A pipeline and all that it touches, in memory: processes that advance one effect at a time, and what outlives them.

The protocol, recovery, the driver, and what a query's batches are by its checkpoint, are the production code; Spark,
the store and the sinks are models. Whoever drives
a world says what strikes at which point; a point is a moment before, inside or after an effect.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Generator, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from onefold.core.checks import present, require
from onefold.core.contract import Committable, EpochRecord, EpochState, Generation, SinkKind, TaskId
from onefold.core.errors import BadRecord, Fenced, InDoubt, InternalError, OnefoldError, OutOfResources, Retriable
from onefold.core.invariants import ADOPTED, Evidence, Observation
from onefold.core.moves import MoveNote, covered, ranges
from onefold.core.positions import Positions, Range, Relation
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import (
    AcquireGeneration,
    Adopt,
    Complete,
    Decide,
    Effect,
    FindEpoch,
    ListFolder,
    OpenEpoch,
    Pause,
    ReadClock,
    ReadFile,
    ReadStore,
    StoreFacts,
    Verify,
)
from onefold.core.protocol.moving import chain_end
from onefold.core.testing.proof.subject import Subject
from onefold.core.testing.simulator.faults import AT_ONCE, MISHAPS, MOVES, RIVALS, Crash, Fault, Slept, can_follow
from onefold.core.testing.simulator.model_checkpoint import ROOT
from onefold.core.testing.simulator.models import PreparedRows
from onefold.core.testing.simulator.operator import Operator
from onefold.core.testing.simulator.process import (
    STATE,
    CommitBatch,
    PlanBatch,
    Process,
    RunAttempt,
    Step,
    Steps,
    importing,
    job_over,
    records_of,
    state_of,
    with_tasks,
)
from onefold.core.testing.simulator.scene import Scene
from onefold.core.values.remedies import SPARK_FLOW, in_words_of

RESTORE = "restored"  # why the positions were moved

PIPELINE = "model"
LIVES_MAX = 80  # the longest plans kill no more than half as many
CUTS: tuple[dict[str, int], ...] = ({"t/0": 2, "t/1": 1}, {"t/0": 2, "t/1": 3})  # where batches end, from the start on
OTHER_CUTS: tuple[dict[str, int], ...] = ({"t/0": 1, "t/1": 1}, {"t/0": 2, "t/1": 2}, CUTS[-1])
CLOCK_JUMP = 1000  # more than any run takes
EMPTY_AT = 0  # after this cut comes a batch without records


@dataclass
class Moment:
    """A step that is being taken, and its answer once it was."""

    process: Process
    step: Step
    answer: Any = None


class World(Scene):
    """Everything of one pipeline. `plan` says what strikes at which point (the first is 1).

    With `late`, the last sink is for dead letters: it may come late, and is off until it is turned on.

    Where `freezes` is off, the source is one whose start Spark logs itself, and the job calls the epoch writer of its
    own accord: nothing is frozen, and no checkpoint looked at before the first batch.

    With `idles`, so much time passes after each batch that its process completes the epoch by itself; with
    `long_tasks` it does so beside the tasks of the next.
    """

    def __init__(
        self,
        sinks: tuple[SinkKind, ...],
        plan: Mapping[int, Fault],
        subject: Subject,
        patience: int = 3,
        freezes: bool = True,
        late: bool = False,
        idles: bool = False,
        long_tasks: bool = False,
    ) -> None:
        super().__init__(sinks, subject, late, self.reached)
        self.freezes = freezes
        self.idles, self.long_tasks = idles, long_tasks
        self.plan = dict(plan)
        self.patience = patience
        self.kinds = sinks
        self._atomic = [sink for sink in self.sinks.values() if sink.kind is SinkKind.LAST_RESOURCE]
        self.steps: list[str] = []
        self.struck: Counter[tuple[Fault, str]] = Counter()
        self.lives = self.attempts = 0
        self.late_records: Counter[str] = Counter()
        self._now: Moment | None = None
        self._down: dict[str, int] = {}
        self._inherited: Generation | None = None
        self._sweeping: Iterator[Effect] | None = None
        self._observations: set[Observation] = set()
        self._spans: dict[str, Range] = {}  # of the epochs, by what was prepared of them
        self._looked_at: dict[str, object] = {}
        self._verified: set[str] = set()
        self._doubted: set[str] = set()
        self.operator = Operator(self)

    # Lives

    def rest(self) -> None:
        """Live until a life ends of its own accord: all is done, or somebody else has taken over."""
        with in_words_of(SPARK_FLOW):  # which tell the operator what helps
            while self.advance():
                pass

    def advance(self) -> bool:
        """One step of the process that runs, or of a new one. False once there is nothing to do for anybody."""
        if self.awake is None:
            if self.lives >= LIVES_MAX:
                self.complaints.append(f"no rest after {self.lives} lives")
                return False
            self.awake = self.begin()
        process = self.awake
        try:
            if self.step(process):
                return True
        except (Crash, Retriable, InDoubt):
            self.awake = None  # its supervisor starts it again
            return True
        except Slept:
            self.awake = None
            self.asleep.append(process)
            return True
        except Fenced as error:
            self.awake = None
            if self.operator.starts_again(error):
                return True
            newest = self.store.newest
            if process.generation and newest and newest.number <= process.generation.number:
                self.complaints.append(f"a life was fenced by nobody: {error}")
            return False
        except Exception as error:
            self.awake = None
            if self.operator.cures(error):
                return True
            self.complaints.append(f"a life ended with {type(error).__name__}: {error}")
            return False
        self.awake = None
        return self.operator.ends_trial()

    def begin(self) -> Process:
        self.lives += 1
        self._inherited, self._sweeping = self.store.newest, None
        sinks = self.operator.configured_sinks()
        last_resource = next((n for n, s in sinks.items() if s.kind is SinkKind.LAST_RESOURCE), None)
        driver = Coordinator(PIPELINE, self.store, sinks, self._pause, last_resource, self.checkpoint)
        driver.repeats, driver.set_aside = (lambda name: sinks[name].repeats(PIPELINE)), self.checkpoint.set_aside
        return Process(self._life(tuple(sinks)), driver, self.host)

    def step(self, process: Process) -> bool:
        """Let a process take one step. False once it has ended; raises what it died of."""
        if process.next is None:
            return False
        outer, now = self._now, Moment(process, process.next)
        host, self.host = self.host, process.host
        self._now = now
        name = type(now.step).__name__
        try:
            self.reached(f"before:{name}")
            now.answer = self._perform(process, now.step)
            self.reached(f"after:{name}")
        except OnefoldError as error:
            if isinstance(now.step, Decide):
                self._not_decided(now.step, error)
            process.fail(error)
        else:
            process.answer(now.answer)
        finally:
            self._now = outer
            if self.host is process.host:
                self.host = host
        return process.next is not None

    def _not_decided(self, decide: Decide, error: OnefoldError) -> None:
        """A decision that was merely refused is sent again after another look at the work, which may be gone by now."""
        handles = {c.handle for c in decide.manifest}
        if isinstance(error, InDoubt):
            self._doubted |= handles
        self._verified -= handles - self._doubted

    def wake(self, steps_max: int | None = None) -> None:
        """Whatever sleeps goes on to its end; or what has slept longest does, for so many steps."""
        awoken = len(self.asleep) if steps_max is None else 1
        self.operator.has_woken |= bool(self.asleep)
        sleepers, self.asleep = self.asleep[:awoken], self.asleep[awoken:]
        for sleeper in sleepers:
            try:
                if isinstance(sleeper, Process):
                    self._go_on(sleeper, steps_max)
                else:
                    sleeper()
            except InternalError as error:
                self.complaints.append(f"a sleeper woke and ended with InternalError: {error}")
            except (Crash, OnefoldError):
                pass

    def _go_on(self, process: Process, steps_max: int | None) -> None:
        taken = 0
        try:
            while self.step(process):
                taken += 1
                if steps_max is not None and taken >= steps_max:
                    raise Slept
        except Slept:
            self.asleep.append(process)

    def _life(self, names: tuple[str, ...]) -> Steps:
        """One process: recover, then run batches as Spark does, the last planned one again if it isn't committed."""
        operator, production = self.operator, self.subject.query
        life = production.QueryLifecycle(PIPELINE, names, self.late)
        if operator.move_to is not None:
            yield from self._move(life)
            return
        if operator.adopts or operator.accepts_damage is not None:  # pipeline.recover(...), then the query as usual
            yield from life.start(None, operator.adopts, operator.accepts_damage)
        if self.freezes or operator.on_trial:
            latest = Positions.of({"t/0": self.lives})  # the source has grown since the last life
            initial = self.subject.protocol.Initial(latest, operator.from_ledger, operator.starting_offsets)
            yield from life.start(initial if self.freezes else None)
            if operator.on_trial:
                return
            yield from life.check_checkpoint(ROOT)
        start = yield from self._start(life)
        until: Positions | None = life.started.until if life.started else None
        through = tuple(name for name in names if self.sinks[name].kind is SinkKind.WRITE_THROUGH)
        job = production.QueryJob(f"job/{operator.input}", names, through)
        run = production.RunningQuery("query", f"run-{self.lives}", ROOT, stateful=False)
        ends = self.checkpoint.offsets  # what Spark reads when it starts, and holds from then on
        while (batch := self._next_batch(start, ends)) is not None:
            begin = (
                ends[max(earlier)] if (earlier := [b for b in ends if b < batch]) else self.checkpoint.begun or start
            )
            if batch not in ends:
                end = self._end_of_next(begin, list(ends.values()))
                # As our source does: the batch that starts where a begun epoch did ends where that did.
                if until is not None and (not ends or begin == start != until):
                    end = until
                yield PlanBatch(batch, end, start)
                ends[batch] = end
            running = production.Running(begin, ends[batch])
            try:
                yield from self._batch(life, run, batch, job, running)
            except (Retriable, InDoubt):
                if self.freezes:
                    raise
                yield from self._batch(life, run, batch, job, running)  # the job's own code asks once more
            if operator.calls_twice:
                yield from self._batch(life, run, batch, job, running)
            if self.idles:
                with suppress(Retriable, InDoubt):  # it is tried again later
                    yield from life.complete()
            yield CommitBatch(batch)
        if life.is_swept:  # else nothing was ever compared
            yield from life.sweep()

    def _move(self, life: Any) -> Steps:
        """`onefold positions --set`: a process of its own."""
        facts, _ = yield from life.before_move(ROOT)
        stands = chain_end(facts)
        if self.operator.move_to is Fault.SINKS_WRITTEN and facts.last is not None:
            yield from life.change_sinks(MoveNote("operator"))
        if stands is None or self.operator.move_to is Fault.SINKS_WRITTEN:
            return
        if self.first_start is None:
            self.host.first_start = stands
        if self.operator.move_to is Fault.RESTORED:
            yield from with_tasks(
                life.move(stands, MoveNote("operator", RESTORE), with_state=True), partial(importing, self._two_phase)
            )
            return
        to = self.operator.moves_from(stands, present(self.source_end, "it has begun"))
        if to is not None:
            yield from life.move(to, MoveNote("operator"))

    def _start(self, life: Any) -> Generator[Step, Any, Positions]:
        """Where the source's first batch starts."""
        if self.freezes:
            frozen: Positions = life.started.start
            return frozen
        if self.operator.from_ledger:  # the user's own option for the source: recover, then look
            yield from life.start(None)
            facts: StoreFacts = yield ReadStore()
            if facts.last is not None:
                return facts.last.range.end
        return Positions.of({"t/0": 1})

    def _batch(self, life: Any, run: Any, batch: int, job: Any, running: Any) -> Steps:
        """The function that Spark calls for each batch."""
        yield from life.bind(run)
        request = yield from life.request(batch, job, running)
        outcome = yield from with_tasks(
            life.run(request), partial(job_over, Range(running.start, running.end)), partial(self._beside, life)
        )
        require(not self.subject.query.must_drain(run, outcome), "it keeps no state")
        life.returned(batch, outcome)

    def _beside(self, life: Any) -> Steps:
        """What its process does by itself while tasks run long."""
        if self.long_tasks and not life.is_at_rest:
            with suppress(Retriable, InDoubt, Fenced):
                yield from life.complete_beside()

    def _next_batch(self, start: Positions, ends: Mapping[int, Positions]) -> int | None:
        last = max(ends, default=None)
        if last is None:
            return 0 if start != self.source_end else None
        if last not in self.checkpoint.commits:
            return last
        if ends[last] == self.source_end:
            return None
        return last + self.operator.batch_step()

    def _end_of_next(self, begin: Positions, ends: list[Positions]) -> Positions:
        if self.first_start is None:
            self.host.first_start = begin
        if self.operator.topic_is_new:
            return Positions.of({"t/1": 1})
        cuts = self._cuts()
        if ends and ends[-1] == cuts[EMPTY_AT] != cuts[-1] and not any(a == b for a, b in pairwise(ends)):
            return begin
        return next((cut for cut in cuts if cut.relation_to(begin) is Relation.AHEAD), cuts[-1])

    def _cuts(self) -> tuple[Positions, ...]:
        return _cuts_after(self.first_start or Positions(), self.operator.cuts_anew, tuple(self.late_records.items()))

    @property
    def source_end(self) -> Positions | None:
        return self._cuts()[-1] if self.first_start else None

    def grow(self) -> None:
        """One record more, in an old partition or in one that is new."""
        self.late_records["t/0" if self.late_records.total() % 2 == 0 else "t/2"] += 1

    @property
    def store_is_behind(self) -> bool:
        complete = self.store.facts(PIPELINE).complete
        return complete is None or complete.range.end != self.source_end

    # Steps

    def _perform(self, process: Process, step: Step) -> Any:
        match step:
            case PlanBatch(batch, end, start):
                plan = self.checkpoint.plan if self.freezes else self.checkpoint.plan_of_sparks_own
                plan(batch, end, start)
                return None
            case CommitBatch(batch):
                self.checkpoint.commit(batch)
                return None
            case RunAttempt(record=record):
                if step.is_first:
                    self._check_alone(record)
                return self._attempt(step)
            case ReadClock():
                return self.store.now()
            case Pause():
                return process.driver.perform(step)
        self._answers(step)
        answer = process.driver.perform(step)
        if isinstance(step, AcquireGeneration):
            process.generation = answer
        if isinstance(step, Decide):
            self._check_decided(step.record)
        if isinstance(step, OpenEpoch | Decide) and step.completes is not None:
            self._check_completed(step.completes.record)
        if isinstance(step, FindEpoch) and answer is not None and not step.request.has_input_of(answer):
            self.complaints.append(f"epoch {answer.epoch} of another input is taken for what was asked for")
        if isinstance(step, Complete):
            self._check_ledgers(step.decided.record)
        if isinstance(step, Adopt) and self.operator.home is not None:
            process.host.first_start = self.operator.home.first_start
        if isinstance(step, Decide) and step.record.is_move:
            living = [p for p in self.asleep if isinstance(p, Process) and p.generation == step.generation]
            self.complaints += [
                f"epoch {step.record.epoch} moves positions under the generation of a driver that lives" for _ in living
            ]
        if isinstance(step, Verify):
            self._verified |= {c.handle for c in step.committables}
        return answer

    def _check_alone(self, record: EpochRecord) -> None:
        """Nothing of an earlier run of the same epoch is in this one's way."""
        if AT_ONCE.issuperset(self.plan.values()):
            held = {c.handle for sink in self.sinks.values() for c in sink.leftovers(record.generation)}
            mine = (record.generation, record.epoch)
            of = {h for h, w in self.written.items() if (w.committable.generation, w.committable.epoch) == mine}
            self.complaints += [
                f"a run of the writers begins beside {handle}, of the run before it" for handle in held & of
            ]

    def _check_decided(self, record: EpochRecord) -> None:
        """Its range is no other epoch's, of the same input."""
        others = [r for r in self.store.history() if self.store.moved < r.epoch < record.epoch and not r.is_move]
        same_batch = (record.query_id, record.batch_id)
        self.complaints += [
            f"epoch {record.epoch} is decided over the range of epoch {other.epoch}"
            for other in others
            if other.range == record.range
            and record.fingerprint.partition("/")[2] == other.fingerprint.partition("/")[2]
            and (not record.range.is_empty or (other.query_id, other.batch_id) == same_batch)
        ]

    def _check_completed(self, last: EpochRecord) -> None:
        complete = self.store.facts(PIPELINE).complete
        if complete is None or complete.epoch < last.epoch:
            self.complaints.append(f"an epoch is opened or decided beside epoch {last.epoch}, which is not complete")
        self._check_ledgers(last)

    def _check_ledgers(self, complete: EpochRecord) -> None:
        """An epoch becomes complete in the store: every sink says so already."""
        entries = {name: self.sinks[name].entry for name in complete.sinks if name in self.sinks}
        self.complaints += [
            f"epoch {complete.epoch} is complete, and sink {name!r} does not say so"
            for name, entry in entries.items()
            if entry is None or entry.epoch < complete.epoch
        ]

    def _answers(self, effect: Effect) -> None:
        """Whether the server that the effect needs is up."""
        if not self._down or isinstance(effect, ReadFile | ListFolder):
            return
        name = getattr(effect, "sink", "store")
        if self._down.get(name, 0) > self.lives:
            if isinstance(effect, Decide):
                raise InDoubt("simulated-silence", f"{name} is down")
            raise Retriable("simulated-refusal", f"{name} is down")

    def _attempt(self, attempt: RunAttempt) -> Committable | None:
        record = attempt.record
        self.attempts += 1
        task = TaskId(PIPELINE, record.generation, record.epoch, record.timestamp_ms, uuid.UUID(int=self.attempts))
        writer = self.sinks[attempt.sink].writer(task)
        if attempt.rows:
            writer.write(_batch(attempt.rows))
        committable = writer.prepare()
        if committable is not None:
            self.written[committable.handle] = PreparedRows(committable, attempt.rows)
            self._spans[committable.handle] = record.range
        return committable

    def _pause(self, pause: Pause, _: float) -> None:
        if pause.attempt > self.patience:
            raise pause.because

    # Points, and what strikes there

    def reached(self, name: str) -> None:
        for sink in self._atomic:
            if self._looked_at.get(sink.name) is not sink.committed:
                self._look(sink)
        self.steps.append(name)
        fault = self.plan.get(len(self.steps))
        if fault is not None and can_follow(fault, name, self.kinds):
            self.struck[fault, name] += 1
            self._strike(fault, name)

    def _strike(self, fault: Fault, point: str) -> None:
        if fault in RIVALS:
            self.operator.move(fault)
            raise Slept(point)
        if fault in MOVES:
            self.operator.stop_to_move(fault)
            # Rows that are written through after the sinks were emptied can be neither fenced nor seen: stop it first.
            writes_through = SinkKind.WRITE_THROUGH in self.kinds and fault is Fault.MOVED_BACK
            raise Crash(point) if writes_through else Slept(point)
        if fault in MISHAPS:
            self.operator.suffer(fault)
            if fault is Fault.STORE_GOES_BACK:
                return
            raise Crash(point)
        match fault:
            case Fault.CRASH:
                raise Crash(point)
            case Fault.RETRIABLE:
                raise Retriable("simulated-refusal", f"refused at {point}")
            case Fault.OUT_OF_RESOURCES:
                raise OutOfResources("simulated-shortage", f"nothing to spare at {point}")
            case Fault.IN_DOUBT:
                raise InDoubt("simulated-silence", f"no answer at {point}")
            case Fault.JOB_FAILS:
                raise Retriable("simulated-job-failure", f"the job failed at {point}")
            case Fault.BAD_RECORD:
                self.operator.bad_record = True
                raise BadRecord("simulated-bad-record", f"a record cannot be read at {point}")
            case Fault.SLEEP:
                raise Slept(point)
            case Fault.LATE:
                self._put_to_sleep()
                raise InDoubt("simulated-silence", f"no answer at {point}")
            case Fault.STRAGGLE:
                self._put_to_sleep()
            case Fault.ORPHAN:
                self._put_to_sleep()
                raise Crash(point)
            case Fault.ANOTHER_ATTEMPT | Fault.RETRIED_STAGE:
                self._attempt_again(fault)
            case Fault.WAKE:
                self.wake()
            case Fault.WAKE_ONE_STEP:
                self.wake(steps_max=1)
            case Fault.EXPIRE_ONE:
                self._lose_one()
            case Fault.EXPIRE | Fault.EMPTY_STAGE:
                self._lose(SinkKind.TWO_PHASE if fault is Fault.EXPIRE else SinkKind.LAST_RESOURCE)
            case Fault.SINK_DOWN | Fault.STORE_DOWN:
                self._down["sink-0" if fault is Fault.SINK_DOWN else "store"] = self.lives + 2
            case Fault.GROW:
                self.grow()
            case Fault.CLOCK_AHEAD | Fault.CLOCK_BACK:
                self.store.jump(CLOCK_JUMP if fault is Fault.CLOCK_AHEAD else -CLOCK_JUMP)
            case Fault.BACKUP:
                self.operator.back_up()
            case Fault.PLAN_REPLACED:
                self.operator.replaces_plan()
            case Fault.SWEEP | Fault.SWEEP_HALTS:
                self._sweep(to_its_end=fault is Fault.SWEEP)

    def _put_to_sleep(self) -> None:
        """The step that is about to be taken happens later, if ever."""
        now = present(self._now, "no step is being taken")
        process, step = now.process, now.step
        if isinstance(step, RunAttempt):
            self.asleep.append(lambda: self._attempt(step))
        else:
            if isinstance(step, PlanBatch | CommitBatch):
                raise InternalError("simulator-misused", "a step of Spark's own is never put to sleep")
            self.asleep.append(partial(process.driver.perform, step))

    def _attempt_again(self, fault: Fault) -> None:
        now = present(self._now, "no step is being taken")
        if not isinstance(now.step, RunAttempt):
            raise InternalError("simulator-misused", f"only a task has another attempt: {now.step}")
        again = self._attempt(now.step)
        if fault is Fault.RETRIED_STAGE:
            now.answer = again

    def _lose(self, kind: SinkKind) -> None:
        for sink in self.sinks.values():
            if sink.kind is kind:
                decidable = kind is SinkKind.TWO_PHASE and not self._verified.isdisjoint(sink.prepared)
                self.operator.expects_damage |= decidable
                sink.lose_prepared()

    def _lose_one(self) -> None:
        sink = next((s for s in self.sinks.values() if s.kind is SinkKind.TWO_PHASE and s.prepared), None)
        if sink is not None:
            oldest = next(iter(sink.prepared))
            self.operator.expects_damage |= oldest in self._verified
            sink.lose_prepared(oldest)

    def _sweep(self, to_its_end: bool) -> None:
        """The sweep on a timer, in the newest process, one effect at a time."""
        newest = self.store.newest
        if newest is None or newest == self._inherited:
            return
        self._sweeping = self._sweeping or self._sweep_steps(newest)
        next(self._sweeping, None)
        if to_its_end:
            deque(self._sweeping, maxlen=0)
            self._sweeping = None

    def _sweep_steps(self, generation: Generation) -> Iterator[Effect]:
        driver = Coordinator(PIPELINE, self.store, self.sinks, self._pause)
        protocol, answer = self.subject.protocol.sweep(generation, self.sinks), None
        with suppress(StopIteration):
            while True:
                effect = protocol.send(answer)
                answer = driver.perform(effect)
                yield effect

    # What is seen at the end

    def _look(self, sink: Any) -> None:
        """What a reader of the sink sees of its newest epoch just now."""
        self._looked_at[sink.name] = sink.committed
        if not sink.committed:
            return
        of_records = [work for work in sink.committed.values() if not any(row.startswith(STATE) for row in work.rows)]
        newest = max((work.committable.epoch for work in of_records), default=None)
        if newest is None:
            return
        parts = {w.committable.handle: len(w.rows) for w in of_records if w.committable.epoch == newest}
        rows = sum(parts.values())
        whole = sum(len(rows) for rows in records_of(self._spans[min(parts)]).values())
        self._observations.add(Observation(sink.name, newest, rows, whole))

    def evidence(self) -> Evidence:
        facts, begin = self.store.facts(PIPELINE), present(self.first_start, "evidence of a run that never began")

        moves = self.store.moves(PIPELINE)

        def records(last: EpochRecord | None) -> frozenset[Hashable]:
            end, known = (last.range.end, [r for r in moves if r.epoch <= last.epoch]) if last else (begin, [])
            spans = covered(begin, known, end, "sink-0")
            found = {r for span in ranges(spans, end) for rows in records_of(span).values() for r in rows}
            return frozenset(found | {state_of(move) for move in known if MoveNote.of(move).why == RESTORE})

        due = records(facts.complete)
        operator = self.operator
        astray = self.late if operator.are_letters_astray and not operator.has_dead_letters else ()
        sinks = [sink for sink in self.sinks.values() if sink.name not in astray]
        epochs = [
            replace(r, manifest=tuple(c for c in r.manifest if c.sink not in astray)) for r in self.store.history()
        ]
        there = [sink for sink in sinks if self.operator.has_dead_letters or sink.name not in self.late]
        adopted = max((r.epoch for r in epochs if r.query_id == ADOPTED), default=0)
        return Evidence(
            due=due,
            decided=due if facts.last == facts.complete else records(facts.last),
            shown={sink.name: self._shown(sink, due) for sink in sinks},
            initial=None if adopted else begin,
            epochs=tuple(r for r in epochs if r.epoch >= adopted),
            ledgers={sink.name: sink.entry for sink in sinks if sink.entry is not None and self._stands(sink, facts)},
            store_id=facts.store_id,
            leftovers=tuple(work.committable for sink in there for work in sink.prepared.values()),
            committed=tuple(
                work.committable
                for sink in sinks
                for work in sink.committed.values()
                if work.committable.epoch > adopted
            ),
            transitions=tuple(t for t in self.store.transitions if t.epoch > adopted),
            decisions=tuple(self.store.decisions),
            observations=tuple(self._observations),
            write_through=frozenset(name for name, sink in self.sinks.items() if sink.kind is SinkKind.WRITE_THROUGH),
        )

    @property
    def _two_phase(self) -> frozenset[str]:
        return frozenset(name for name, sink in self.sinks.items() if sink.kind is SinkKind.TWO_PHASE)

    def _stands(self, sink: Any, facts: StoreFacts) -> bool:
        """Whether a sink's ledger is to stand at the last epoch: one that may come late was maybe off then."""
        return sink.name not in self.late or (facts.complete is not None and sink.name in facts.complete.sinks)

    def _shown(self, sink: Any, due: frozenset[Hashable]) -> Counter[Hashable]:
        """How many times a reader sees each row. What a sink that came late rightly lacks is counted as seen; which of
        the rows before an adoption it should have, nobody knows any more."""
        shown: Counter[Hashable] = sink.shown()
        if sink.name not in self._two_phase:  # which has no state
            shown.update(row for row in due if str(row).startswith(STATE))
        if sink.name in self.late:
            epochs = self.store.history()
            complete = [r for r in epochs if r.state is EpochState.COMPLETE and r.query_id != ADOPTED]
            mine = [r.range for r in complete if sink.name in r.sinks]
            missed = due - {row for span in mine for rows in records_of(span).values() for row in rows}
            is_known = all(r.query_id != ADOPTED for r in epochs)
            shown.update(row for row in missed if is_known or row not in shown)
        return shown


@cache
def _cuts_after(start: Positions, anew: bool, late: tuple[tuple[str, int], ...]) -> tuple[Positions, ...]:
    """Where batches end, the last one with the records that came late."""
    begun = Counter(dict(start.items))
    cuts = [begun + Counter(cut) for cut in (OTHER_CUTS if anew else CUTS)]
    return tuple(Positions.of(cut) for cut in [*cuts, cuts[-1] + Counter(dict(late))])


@cache
def _batch(rows: tuple[str, ...]) -> pa.RecordBatch:
    return pa.record_batch({"id": list(rows)})

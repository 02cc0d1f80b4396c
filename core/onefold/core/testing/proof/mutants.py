"""Small wrong versions of the protocol and of recovery. The simulator must catch every one of them.

Each is a few nodes changed in the syntax tree that is simulated; a mutant whose nodes are no longer there is an error,
not a mutant that was caught. Mutants of the models alone are in `model_mutants`: they show what the simulator sees of
a sink or a store that errs, and count for nothing where the production code is meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onefold.core.checks import require
from onefold.core.testing.proof.patching import Patch
from onefold.core.testing.simulator.faults import Fault

PROTOCOL, RECOVERY, BINDING = (
    "onefold.core.protocol.epoch",
    "onefold.core.protocol.recovery",
    "onefold.core.protocol.binding",
)
MOVING = "onefold.core.protocol.moving"
QUERY, LIFECYCLE, OFFSETS = "onefold.store.job.query", "onefold.store.job.lifecycle", "onefold.store.job.offset_log"
MODELS, STORE = "onefold.core.testing.simulator.models", "onefold.core.testing.simulator.model_store"
TP, LR, WT, TT, AS = "two-phase", "last-resource", "write-through", "two-phase + two-phase", "two-phase, another source"
LATE, IDLE, AS_IDLE = "two-phase, late dead letters", "two-phase, idle", "two-phase, another source, idle"


@dataclass(frozen=True)
class Mutant:
    """What is wrong, the words that make it so, and where it shows: in which configurations, and, where one fault is
    not enough, what strikes first."""

    name: str
    patches: tuple[Patch, ...]
    configurations: tuple[str, ...] = (TP,)
    first: frozenset[Fault] = frozenset(Fault)
    test: str = ""  # the unit test that catches it, where no schedule does

    @property
    def is_of_models(self) -> bool:
        """Whether it changes no production code."""
        return {patch.module for patch in self.patches} <= {MODELS, STORE}


def _mutant(name: str, module: str, old: str, new: str, *configurations: str) -> Mutant:
    return Mutant(name, (Patch(module, old, new),), configurations or (TP,))


VERIFY = "yield Verify(sink, tuple(c for c in manifest if c.sink == sink))"
DECIDES = """
manifest = yield from prepare(record)
completes = ...
decided = yield from decide(generation, store_id, record, manifest, completes)
"""
DOUBT = """
try: ...
except InDoubt:
    raise
"""
TAKES_OVER = """
yield from self.start(None)
if root is not None: ...
"""
BORROWS = """
from onefold.core.contract import Generation
now: StoreFacts = yield from retry(ReadStore())
running = Generation(self.pipeline, now.generation, f"token-{now.generation}")
self.started = Started(running, now.store_id, None, 0, 0)
if root is not None: ...
"""
FINISHES = """
if record.state is EpochState.DECIDED:
    yield from finish(generation, store_id, Decided(record))
"""
COMMITS = "damage = yield from _commit_all(decided)"
SWEEPS_FROM = """
for sink in sinks:
    listed: tuple[Committable, ...] = tuple((yield from _retry(ListLeftovers(sink, generation.number))))
    ...
"""
BEGINS_ANYWHERE = """
if base is None:
    return True
"""
BEGINS_AHEAD = """
if base is None or batch.range.start.relation_to(base) is Relation.AHEAD:
    return True
"""

FIRST = {
    "a move without the fence": Fault.MOVED_AHEAD,
    "a move leaves the checkpoint where it is": Fault.MOVED_AHEAD,
    "a move back doubles records": Fault.MOVED_BACK,
    "what was written before a move back is taken for a replay": Fault.MOVED_BACK,
    "a new checkpoint begins where the pipeline did before it was moved": Fault.MOVED_AHEAD,
    "recovery looks for the rows of a move": Fault.MOVED_AHEAD,
    "the state of a restore is not committed": Fault.RESTORED,
    "a restore decides without its state": Fault.RESTORED,
    "a move passes an epoch over that must run again": Fault.MOVED_AHEAD,
    "doubt forgotten when a later try is merely refused": Fault.LATE,
    "a sweep takes what was decided": Fault.CRASH,
    "a fenced process sweeps its successor's work": Fault.SLEEP,
    "the generation from the store alone": Fault.BACKUP,
    "T is not compared": Fault.BACKUP,
    "where an epoch ends is not compared": Fault.CLOCK_BACK,
    "another store's binding is not compared": Fault.RIVAL,
    "an adoption sweeps nothing": Fault.RIVAL_ADOPTED,
    "a store that went back is taken for a newer generation": Fault.BACKUP,
    "an older generation writes the ledger, and announces": Fault.RIVAL_ADOPTED,
    "what a checkpoint has done is not looked at": Fault.BACKUP,
    "a sink's missing epochs are not missed": Fault.BACKUP,
    "a gap is taken for the next range": Fault.BACKUP,
    "the ledger row keeps the record's generation": Fault.BACKUP,
    "what was verified once is not verified again": Fault.RETRIABLE,
    "a fenced driver aborts what it prepared": Fault.IN_DOUBT,
    "a query that goes on from batches of which nobody knows is let in": Fault.BACKUP,
    "no query says that it goes on": Fault.BACKUP,
    "a checkpoint is not looked at": Fault.BACKUP,
    "an adoption with a sink that came late": Fault.DEAD_LETTERS,
}

_ALL: tuple[Mutant, ...] = (
    _mutant("no verify", PROTOCOL, VERIFY, "yield from ()"),
    _mutant(
        "decide before verify",
        PROTOCOL,
        DECIDES,
        """
        manifest = yield RunWriters(record)
        completes = committed
        decided = yield from decide(generation, store_id, record, manifest, completes)
        for sink in record.sinks:
            yield from _retry(Verify(sink, tuple(c for c in manifest if c.sink == sink)))
        """,
    ),
    Mutant(
        "commit before decide",
        (
            Patch(
                PROTOCOL,
                DECIDES,
                """
                manifest = yield from prepare(record)
                import dataclasses
                chosen = dataclasses.replace(record, state=EpochState.DECIDED, manifest=manifest)
                yield from _commit_all(Decided(chosen))
                completes = committed
                decided = yield from decide(generation, store_id, record, manifest, completes)
                """,
            ),
        ),
    ),
    _mutant(
        "abort after an ambiguous decide",
        PROTOCOL,
        DOUBT,
        """
        try: ...
        except InDoubt:
            yield from _abort_run(generation, record)
            raise
        """,
    ),
    _mutant(
        "run again after an ambiguous decide",
        PROTOCOL,
        DOUBT,
        """
        try: ...
        except InDoubt:
            yield from _abort_run(generation, record)
            if not runs_left:
                raise
        """,
    ),
    _mutant(
        "doubt forgotten when a later try is merely refused",
        PROTOCOL,
        "in_doubt = in_doubt or isinstance(error, InDoubt)",
        "in_doubt = isinstance(error, InDoubt)",
    ),
    _mutant(
        "a sweep passes its own generation over",
        PROTOCOL,
        SWEEPS_FROM,
        SWEEPS_FROM.replace("generation.number", "generation.number - 1"),
    ),
    _mutant(
        "abort after a failed commit",
        PROTOCOL,
        "unanswered[sink] = error",
        "unanswered[sink] = error\nyield Abort(sink, decided.of(sink))",
    ),
    Mutant(
        "resolve from today's configuration",
        (
            Patch(RECOVERY, "if missing: ...", "if missing and record.state is EpochState.DAMAGED: ..."),
            Patch(
                PROTOCOL,
                "yield from finish(generation, facts.store_id, decided)",
                """
                decided = Decided(__import__('dataclasses').replace(decided.record, sinks=sinks))
                yield from finish(generation, facts.store_id, decided)
                """,
            ),
        ),
        ("two-phase + two-phase",),
    ),
    _mutant(
        "a sweep takes the running epoch's work",
        RECOVERY,
        "c.generation != generation.number or c.epoch <= last",
        "c.generation != generation.number or c.epoch > 0",
    ),
    _mutant(
        "a sweep spares only what the store has as open",
        RECOVERY,
        "c.generation != generation.number or c.epoch <= last",
        "(c.epoch, c.generation) not in {(r.epoch, r.generation) for r in facts.unfinished}",
    ),
    _mutant(
        "a sweep takes what was decided",
        RECOVERY,
        "needed = {(c.sink, c.handle) for r in facts.unfinished for c in r.manifest}",
        "needed: set[tuple[str, str]] = set()",
    ),
    Mutant(
        "a fenced process sweeps its successor's work",
        (
            Patch(RECOVERY, "if facts.generation != generation.number:\n    return ()", ""),
            Patch(
                MODELS,
                "[... for work in self.prepared.values() if work.committable.generation <= up_to_generation]",
                "[... for work in self.prepared.values()]",
            ),
        ),
    ),
    _mutant("forget the leftovers", PROTOCOL, "if condemned: ...", "if condemned and not sinks: ..."),
    _mutant(
        "the generation from the store alone",
        PROTOCOL,
        "AcquireGeneration(above=max(seen, default=0))",
        "AcquireGeneration(above=min(0, *seen, 0))",
    ),
    Mutant(
        "another range over an open write-through epoch",
        (
            Patch(RECOVERY, "begun is not None and not request.is_again(begun)", "begun is not None and base is begun"),
            Patch(
                STORE,
                "record.state is EpochState.OPEN and request.is_again(record)",
                "record.state is EpochState.OPEN and (record.write_through or request.is_again(record))",
            ),
            Patch(
                STORE,
                "mine = replace(record, generation=generation.number)",
                "mine = replace(record, generation=generation.number, range=request.range)",
            ),
            Patch(
                MODELS,
                "(old.timestamp_ms, old.range) != (new.timestamp_ms, new.range)",
                "old.timestamp_ms != new.timestamp_ms",
            ),
            Patch(
                PROTOCOL,
                "return facts.begun.range.start, facts.begun.range.end",
                "return facts.begun.range.start, None",
            ),
        ),
        (WT,),
    ),
    _mutant(
        "a write-through epoch is not announced",
        PROTOCOL,
        "yield from _retry(Announce(sink, record))",
        "continue",
        WT,
    ),
    _mutant(
        "complete before commit",
        PROTOCOL,
        COMMITS,
        "yield from _retry(Complete(generation, decided))\n" + COMMITS,
    ),
    _mutant(
        "the ledger before commit",
        PROTOCOL,
        COMMITS,
        "yield from complete(generation, store_id, decided)\n" + COMMITS,
    ),
    _mutant(
        "damage in one sink leaves the others uncommitted",
        PROTOCOL,
        "damage = damage or error",
        "return damage or error",
        "two-phase + two-phase",
    ),
    _mutant(
        "damage passed over",
        PROTOCOL,
        "if damage is not None:\n    yield from _retry(MarkDamaged(generation, decided, ...))\n    ...",
        "if damage is decided:\n    yield from _retry(MarkDamaged(generation, decided, ...))\n    ...",
    ),
    _mutant(
        "initial positions not frozen",
        PROTOCOL,
        "return (facts.origin or frozen).with_setting(None), None",
        "return initial.positions, None",
    ),
    _mutant(
        "a decided epoch is skipped without finishing it",
        PROTOCOL,
        FINISHES,
        FINISHES.replace("DECIDED", "DECIDED and found is None", 1),
        "two-phase, another source",
    ),
    _mutant(
        "a ledger row must be newer, not as new",
        BINDING,
        "if row.epoch > new.epoch: ...",
        "if row.epoch >= new.epoch > 0: ...",
    ),
    _mutant(
        "the ledgers are not asked",
        RECOVERY,
        "check_ledger(facts, sink, ledger, sink in may_come_late)",
        "assert sink is not None, ledger",
    ),
    _mutant(
        "T is not compared",
        RECOVERY,
        "if record is None or record.timestamp_ms != self.timestamp_ms: ...",
        "if record is None: ...",
    ),
    Mutant(
        "a gap is taken for the next range",
        (
            Patch(  # what a checkpoint has done is looked at before the range
                RECOVERY,
                "relation in (Relation.AHEAD, Relation.UNORDERED)",
                "relation is Relation.UNORDERED",
            ),
            Patch(RECOVERY, BEGINS_ANYWHERE, BEGINS_AHEAD),
            Patch(STORE, "follows = begins_at(record, self._base(last))", "follows = True"),
            Patch(STORE, "not begins_at(request, self._base(last))", "False"),
        ),
        ("two-phase, another source",),
    ),
    Mutant(
        "an overlap is taken for the next range",
        (
            Patch(RECOVERY, "return relation is Relation.SAME", "return relation is not Relation.AHEAD"),
            Patch(STORE, "follows = begins_at(record, self._base(last))", "follows = True"),
            Patch(STORE, "not begins_at(request, self._base(last))", "False"),
        ),
    ),
    _mutant(
        "what a checkpoint has done is not looked at",
        RECOVERY,
        "relation in (Relation.AHEAD, Relation.UNORDERED)",
        "relation is Relation.UNORDERED",
    ),
    _mutant(
        "where an epoch ends is not compared",
        RECOVERY,
        "return self.end is None or self.end.relation_to(record.range.end) is Relation.SAME",
        "return True",
        WT,
    ),
    _mutant(
        "another store's binding is not compared",
        BINDING,
        "if foreign and not binding.takes_over: ...",
        "if foreign and not binding.store_id: ...",
    ),
    _mutant(
        "nobody looks at the bindings before a decision",
        PROTOCOL,
        "yield from _look(Binding(store_id, generation.number), _apart(record, manifest))",
        "yield from ()",
    ),
    _mutant(
        "an adoption fences nobody",
        PROTOCOL,
        "yield from _bind(Binding(facts.store_id, generation.number, takes_over=True), sinks)",
        "yield from ()",
    ),
    _mutant(
        "an adoption sweeps nothing",
        PROTOCOL,
        "yield from sweep(generation, sinks)\nnow = yield from _read_ledgers(sinks)",
        "now = yield from _read_ledgers(sinks)",
    ),
    _mutant(
        "an older generation writes the ledger, and announces",
        BINDING,
        "if foreign or row.generation > new.generation: ...",
        "if foreign: ...",
        WT,
    ),
    _mutant(
        "a store that went back is taken for a newer generation",
        BINDING,
        "if now < generation.number: ...",
        "if now < 0: ...",
    ),
    _mutant(
        "a sink's missing epochs are not missed",
        RECOVERY,
        "ledger is None or ledger.epoch < complete.epoch",
        "ledger is None and not sink",
    ),
    _mutant(
        "the ledger row keeps the record's generation",
        PROTOCOL,
        "LedgerEntry(epoch=record.epoch, generation=generation.number, timestamp_ms=..., positions=..., store_id=...)",
        "LedgerEntry(epoch=record.epoch, generation=record.generation, timestamp_ms=..., positions=..., store_id=...)",
        WT,
    ),
    _mutant(
        "no sweep after the epochs",
        LIFECYCLE,
        "removed = yield from sweep(started.generation, self.sinks)",
        "removed = yield from sweep(started.generation, () if self.is_swept else self.sinks)",
    ),
    _mutant(
        "the last epoch of a run is not completed",
        LIFECYCLE,
        "yield from self.complete()",
        "",
    ),
    _mutant(
        "an epoch is completed whose ledgers are not written",
        PROTOCOL,
        "if damage is not None: ...\nyield from _write_ledgers(generation, store_id, decided.record)",
        "if damage is not None: ...\nyield from ()",
    ),
    _mutant(
        "the next epoch is decided before the last one is committed",
        PROTOCOL,
        "yield from _commit(generation, store_id, decided)\nfacts = ...",
        "facts = ...",
    ),
    _mutant(
        "the last epoch is not completed before the store is asked",
        PROTOCOL,
        "committed = (yield from complete_last(generation, cache)).committed",
        "committed = None",
        AS,
    ),
    _mutant(
        "what is to be completed is forgotten where the next epoch fails",
        LIFECYCLE,
        "cache, self._cache = self._cache, StoreCache(None, self._cache.committed)",
        "cache, self._cache = self._cache, StoreCache()",
        AS,
    ),
    _mutant(
        "no sweep at the start",
        LIFECYCLE,
        "removed = yield from sweep(started.generation, self.sinks)",
        "removed = yield from sweep(started.generation, ())",
    ),
    _mutant(
        "a sweep before the checkpoint was asked",
        PROTOCOL,
        "position, until = None, None",
        "yield from sweep(generation, sinks)\nposition, until = None, None",
        "last-resource, late dead letters",
    ),
    _mutant(
        "what was verified once is not verified again",
        PROTOCOL,
        "if attempt and not in_doubt: ...",
        "if attempt < 0: ...",
    ),
    _mutant(
        "no abort before the writers run again",
        PROTOCOL,
        "try: ...\nexcept Retriable:\n    yield from _abort_run(generation, record)\n    ...",
        "try: ...\nexcept Retriable: ...",
    ),
    _mutant(
        "a fenced driver aborts what it prepared",
        PROTOCOL,
        "try: ...\nexcept (Fenced, CheckpointMismatch):\n    raise",
        "try: ...\nexcept (Fenced, CheckpointMismatch):\n    yield from _abort_run(generation, record)\n    raise",
    ),
    _mutant(
        "a query that goes on from batches of which nobody knows is let in",
        RECOVERY,
        "if facts.last is None and request.continues and not is_at_base: ...",
        "if facts.last and request.continues and not is_at_base: ...",
        AS_IDLE,
    ),
    _mutant(
        "no query says that it goes on",
        QUERY,
        "batch_id > 0",
        "False",
        AS_IDLE,
    ),
    _mutant(
        "a checkpoint is not looked at",
        QUERY,
        "if committed is not None: ...",
        "if committed is not None and not root: ...",
    ),
    _mutant(
        "only manifests name sinks",
        RECOVERY,
        "{*record.sinks, *(c.sink for c in record.manifest)}",
        "{*(c.sink for c in record.manifest)}",
        TT,
    ),
    _mutant(
        "an adoption beside what is half written",
        RECOVERY,
        "if beyond or later: ...",
        "if beyond and later: ...",
    ),
    _mutant(
        "no second look after finishing",
        PROTOCOL,
        "facts = yield from _retry(ReadStore())\n"
        "yield from _resolve(generation, facts, sinks, may_come_late=may_come_late)",
        "yield from ()",
        TT,
    ),
    _mutant(
        "a sweep spares all of its own generation",
        RECOVERY,
        "c.generation != generation.number or c.epoch <= last",
        "c.generation != generation.number",
    ),
    _mutant(
        "an epoch that writes through is opened in the driver's memory alone",
        PROTOCOL,
        "if request.write_through: ...",
        "if facts is None: ...",
        WT,
    ),
    _mutant(
        "the next decision does not complete the epoch before",
        PROTOCOL,
        "completes = None if record.write_through else committed",
        "completes = None",
    ),
    _mutant(
        "an epoch's number is that of the last one",
        PROTOCOL,
        "return request.opened(generation, number + 1, ...)",
        "return request.opened(generation, max(number, 1), ...)",
    ),
    _mutant(
        "T of an epoch in memory is the clock alone",
        PROTOCOL,
        "max(newest_ms + 1, now_ms)",
        "now_ms",
    ),
    _mutant(
        "the first batch ends where it likes",
        PROTOCOL,
        "return facts.begun.range.start, facts.begun.range.end",
        "return facts.begun.range.start, None",
        WT,
    ),
    _mutant(
        "a sink that came late is held against epochs that it missed",
        RECOVERY,
        "since, complete = complete.epoch, None",
        "since = complete.epoch",
        LATE,
    ),
    _mutant(
        "no sink may come late",
        RECOVERY,
        "check_ledger(facts, sink, ledger, sink in may_come_late)",
        "check_ledger(facts, sink, ledger)",
        LATE,
    ),
    _mutant(
        "an adoption with a sink that came late",
        RECOVERY,
        "len(accounts) != 1 or len(entries) != len(ledgers)",
        "len(accounts) != 1",
        LATE,
    ),
    _mutant("a move without the fence", QUERY, TAKES_OVER, BORROWS),
    _mutant("a move leaves the checkpoint where it is", MOVING, "yield from _retry(SetAside(...))", ""),
    _mutant(
        "a move back doubles records",
        MOVING,
        "if repeats is Repeats.DOUBLED: ...",
        "if repeats is None: ...",
    ),
    _mutant(
        "what was written before a move back is taken for a replay",
        RECOVERY,
        "if found is not None and found.epoch > facts.moved: ...",
        "if found is not None: ...",
    ),
    _mutant(
        "a new checkpoint begins where the pipeline did before it was moved",
        PROTOCOL,
        "return (facts.origin or frozen).with_setting(None), None",
        "return frozen.with_setting(None), None",
    ),
    _mutant(
        "recovery looks for the rows of a move",
        PROTOCOL,
        "waiting = tuple((sink for sink in record.sinks if not record.is_move or decided.of(sink)))",
        "waiting = record.sinks",
        WT,
    ),
    _mutant(
        "the state of a restore is not committed",
        PROTOCOL,
        "waiting = tuple((sink for sink in record.sinks if not record.is_move or decided.of(sink)))",
        "waiting = tuple((sink for sink in record.sinks if not record.is_move))",
        TP,
    ),
    _mutant(
        "a restore decides without its state",
        MOVING,
        "decided: Decided = yield from decide(generation, store_id, record, manifest)",
        "decided: Decided = yield from decide(generation, store_id, record, ())",
        TP,
    ),
    _mutant(
        "a move passes an epoch over that must run again",
        MOVING,
        "if facts.begun is not None: ...",
        "if facts.begun is facts: ...",
        WT,
    ),
)

require(FIRST.keys() <= {mutant.name for mutant in _ALL}, "FIRST names mutants that there are")
MUTANTS = tuple(replace(m, first=frozenset({FIRST[m.name]})) if m.name in FIRST else m for m in _ALL)


def _unit(name: str, module: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, (Patch(module, old, new),), test=test)


# No schedule shows these, because something else refuses as well, or because it takes more faults than the bound has:
# a unit test catches each.
UNIT_MUTANTS: tuple[Mutant, ...] = (
    _unit(  # what a store of another id has not decided is refused anyway; only two stores that live make a difference
        "the store's id is not compared",
        RECOVERY,
        "if ledger is not None and is_foreign(ledger, facts.store_id): ...",
        "if ledger is not None and ledger.epoch < 0: ...",
        "test_recovery.py::test_two_stories_stop_the_start",
    ),
    _unit(  # the sink itself refuses to begin that epoch otherwise
        "an announcement does not show",
        RECOVERY,
        "begun is not None and begun.epoch > ledger.epoch",
        "begun is not None and begun.epoch < 0",
        "test_recovery.py::test_an_announcement_that_the_store_does_not_explain_stops_the_start",
    ),
    _unit(  # it is refused anyway, as one that lost its rows
        "a new sink is not called new",
        RECOVERY,
        "if complete is not None and is_late and not may_come_late: ...",
        "if complete is not None and not complete.sinks: ...",
        "test_recovery.py::test_two_stories_stop_the_start",
    ),
    _unit(  # a sink that is behind has members beyond its ledger, for which the adoption is refused anyway
        "an adoption of sinks that disagree",
        RECOVERY,
        "len(accounts) != 1 or len(entries) != len(ledgers)",
        "len(accounts) > 9",
        "test_recovery.py::test_no_adoption_where_the_destinations_disagree",
    ),
    _unit(  # two starts of a write-through sink whose traces are newer than the older store that follows
        "the generation of an announcement does not count",
        PROTOCOL,
        "[entry.generation, ..., *told]",
        "[entry.generation, ...]",
        "test_protocol.py::test_start_takes_a_generation_above_one_that_only_an_announcement_shows",
    ),
    _unit(
        "a sink that was left out beside an older store is put back",
        RECOVERY,
        "_check_left_out(complete, sink, ledger)",
        "pass",
        "test_recovery.py::test_a_sink_that_was_left_out_while_the_store_went_back_is_not_put_back",
    ),
    _unit(  # the store refuses what does not start at its last end, but not a range that goes back
        "what is known is taken for a range that follows",
        PROTOCOL,
        "facts is None or not cache.is_followed_by(request)",
        "facts is None",
        "test_protocol.py::test_a_range_that_does_not_follow_is_not_opened_on_what_is_known",
    ),
    _unit(  # its writers run at most three times more, and what they prepare is its successor's to sweep
        "a run that failed does not ask the store before it runs again",
        PROTOCOL,
        "if facts.generation != generation.number: ...",
        "if facts.generation < 0: ...",
        "test_protocol.py::test_a_driver_that_was_taken_over_writes_no_second_time",
    ),
    _unit(  # of a query's batches none is asked for again in one process once it was decided
        "positions that do not grow are taken for new",
        PROTOCOL,
        "if request.range.end.relation_to(request.range.start) is not Relation.AHEAD: ...",
        "if request.range.end is None: ...",
        "test_protocol.py::test_positions_that_do_not_grow_may_come_again_and_so_the_store_is_asked",
    ),
    _unit(  # its query ends there, and the next start does not complete what is damaged
        "an epoch of which a second call was refused is completed",
        QUERY,
        "self._cache = StoreCache()  # complete it is not",
        "",
        "test_query.py::test_a_second_call_for_a_batch_marks_its_epoch_and_nothing_completes_that",
    ),
    _unit(
        "what a sink that was left out shows half written is passed over",
        RECOVERY,
        "half or ...",
        "...",
        "test_recovery.py::test_a_sink_that_was_left_out_while_the_store_went_back_is_not_put_back",
    ),
    _unit(
        "where a sink that was left out stands is not compared",
        RECOVERY,
        "complete.range.end.relation_to(theirs) is Relation.BEHIND",
        "complete.range.end.relation_to(theirs) is None",
        "test_recovery.py::test_a_sink_that_was_left_out_while_the_store_went_back_is_not_put_back",
    ),
    _unit(  # it takes a destination that goes back to before an adoption, which is then made once more
        "an adoption takes what it has just bound for its own history",
        PROTOCOL,
        "_written_under(ledgers[sink], now[sink])",
        "now[sink]",
        "test_protocol.py::test_an_adoption_takes_over_what_another_store_wrote_though_its_own_had_gone_further",
    ),
    _unit(  # what is prepared grows no older in the simulator while somebody waits
        "after a wait for a ledger nothing is verified again",
        PROTOCOL,
        "attempt += 1\nyield Pause(attempt, deciding, error)\ncontinue",
        "yield Pause(attempt, deciding, error)\ncontinue",
        "test_protocol.py::test_what_grew_old_while_a_ledger_could_not_be_read_is_written_again_not_decided",
    ),
    _unit(  # a call that fails after its epoch, within a process that goes on: Spark's own query never asks again
        "the last end of another batch",
        QUERY,
        "self._last_end is not None and self._last_end[0] == batch_id - 1",
        "self._last_end is not None",
        "test_query.py::test_a_batch_whose_call_never_returned_is_the_same_range_when_it_is_asked_again",
    ),
    _unit(  # a start from the ledger beside a checkpoint that is not new
        "a first batch starts where the process does",
        QUERY,
        "before = Positions.of({**others, **dict(start.items)}, start.marks)",
        "before = (self.started and self.started.start) or start",
        "test_query.py::test_a_first_batch_starts_where_its_query_began_not_where_the_ledger_stands_by_now",
    ),
    _unit(  # a simulated process runs one query
        "a new run under the old generation",
        QUERY,
        "if self.started is None or self.query is not None: ...",
        "if self.started is None: ...",
        "test_query.py::test_each_run_of_a_query_works_under_a_generation_of_its_own",
    ),
    _unit(  # it is refused, and a new checkpoint is a way out
        "batch numbers that skip are not seen",
        OFFSETS,
        "return (yield from end_of(root, max(earlier), clocks))",
        "return None",
        "test_query.py::test_batch_numbers_that_skip_go_on_where_the_last_planned_one_ended",
    ),
    _unit(  # the two fence each other once more, and nothing is lost
        "a successor is taken over in doubt",
        LIFECYCLE,
        "if fenced is not None: ...",
        "if fenced is None: ...",
        "test_query.py::test_a_process_in_doubt_does_not_take_over_from_its_successor",
    ),
    _unit(  # a destination that goes back under a live driver
        "a driver goes on with a destination that forgot its start",
        BINDING,
        "if row.generation < mine.generation: ...",
        "if row.generation < 0: ...",
        "test_protocol.py::test_nobody_decides_who_no_longer_has_every_sink",
    ),
    _unit(  # a store that has forgotten its older epochs
        "an adoption does not know epochs that were pruned for its own",
        RECOVERY,
        "if record is None and is_own and shown.epoch < last: ...",
        "if record is None and is_own and shown.epoch < 0: ...",
        "test_recovery.py::test_an_epoch_that_the_store_has_forgotten_is_no_other_history",
    ),
    _unit(  # a checkpoint that has lost what it committed, beside an older copy of the store
        "a batch beyond the recorded end continues it",
        RECOVERY,
        BEGINS_ANYWHERE,
        BEGINS_AHEAD,
        "test_recovery.py::test_gaps_overlaps_and_truncated_topics_are_refused",
    ),
)

# Equivalent, and therefore in no list:
# - what a driver knows of the store outlives an epoch that failed: the compare-and-set of Decide refuses what is not
#   so any more.
# - the generations of a ledger's members do not count: whoever meets members of a generation that the store does not
#   know meets an epoch that it never decided, and is refused.
# - a zombie's Complete is not fenced (in the model store): it comes after the zombie's own commits and ledger rows,
#   which are true, or refused as fenced.

"""Small wrong versions of protocol, recovery, store and sinks. The simulator must catch every one of them.

Each is a few words changed in the source that is simulated; a mutant whose words are no longer there is an error, not
a mutant that was caught.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onefold.core.testing.faults import Fault
from onefold.core.testing.subject import Patch

__all__ = ["MUTANTS", "Mutant"]

PROTOCOL, RECOVERY, BINDING = "onefold.core.protocol", "onefold.core.recovery", "onefold.core.binding"
MODELS, STORE = "onefold.core.testing.models", "onefold.core.testing.model_store"
TP, LR, WT = "two-phase", "last-resource", "write-through"


@dataclass(frozen=True)
class Mutant:
    """What is wrong, the words that make it so, and where it shows: in which configurations, and, where one fault is
    not enough, what strikes first."""

    name: str
    patches: tuple[Patch, ...]
    configurations: tuple[str, ...] = (TP,)
    first: frozenset[Fault] = frozenset(Fault)


def _mutant(name: str, module: str, old: str, new: str, *configurations: str) -> Mutant:
    return Mutant(name, (Patch(module, old, new),), configurations or (TP,))


VERIFY = "        yield Verify(sink, tuple(c for c in manifest if c.sink == sink))\n"
DECIDES = """            manifest = yield from _prepare(record)
            decided = yield from _decide(generation, store_id, record, manifest)
"""
DOUBT = """        except InDoubt:
            raise  # it may have been decided: no abort, no sweep, no rerun
"""
COMMITS = "    damage = yield from _commit_all(decided)\n"
LISTS = """        listed: tuple[Committable, ...] = tuple((yield from _insist(ListLeftovers(sink, generation.number))))
        if not listed:
            continue
        facts: StoreFacts = yield from _insist(ReadStore())
"""

SWEEPS_FROM = """    for sink in sinks:
        listed: tuple[Committable, ...] = tuple((yield from _insist(ListLeftovers(sink, generation.number))))
"""

FIRST = {
    "doubt forgotten when a later try is merely refused": Fault.LATE,
    "a task rolls another attempt back": Fault.STRAGGLE,
    "a sweep takes what was decided": Fault.CRASH,
    "a fenced process sweeps its successor's work": Fault.SLEEP,
    "a sweep reads the store before it lists": Fault.SWEEP_HALTS,
    "the generation from the store alone": Fault.BACKUP,
    "T is not compared": Fault.BACKUP,
    "where an epoch ends is not compared": Fault.CLOCK_BACK,
    "another store's binding is not compared": Fault.RIVAL,
    "an adoption sweeps nothing": Fault.RIVAL_ADOPTED,
    "a store that went back is taken for a newer generation": Fault.BACKUP,
    "the input that a range stands for is not compared": Fault.BACKUP,
    "an older generation writes the ledger, and announces": Fault.RIVAL_ADOPTED,
    "what a checkpoint has done is not looked at": Fault.BACKUP,
    "an epoch is opened on its range alone": Fault.LATE,
    "a sink's missing epochs are not missed": Fault.BACKUP,
    "a gap is taken for the next range": Fault.BACKUP,
    "a fenced process decides": Fault.SLEEP,
}

_ALL: tuple[Mutant, ...] = (
    _mutant("no verify", PROTOCOL, VERIFY, "        yield from ()\n"),
    _mutant(
        "decide before verify",
        PROTOCOL,
        DECIDES,
        """            manifest = yield RunWriters(record)
            decided = yield from _decide(generation, store_id, record, manifest)
            for sink in record.sinks:
                yield from _insist(Verify(sink, tuple(c for c in manifest if c.sink == sink)))
""",
    ),
    Mutant(
        "commit before decide",
        (
            Patch(
                PROTOCOL,
                DECIDES,
                """            manifest = yield from _prepare(record)
            import dataclasses
            chosen = dataclasses.replace(record, state=EpochState.DECIDED, manifest=manifest)
            yield from _commit_all(Decided(chosen))
            decided = yield from _decide(generation, store_id, record, manifest)
""",
            ),
        ),
    ),
    _mutant("match by batch id", STORE, "record.range == request.range and", "record.batch_id == request.batch_id and"),
    _mutant(
        "abort after an ambiguous decide",
        PROTOCOL,
        DOUBT,
        """        except InDoubt:
            yield from _abort_run(generation, record)
            raise
""",
    ),
    _mutant(
        "run again after an ambiguous decide",
        PROTOCOL,
        DOUBT,
        """        except InDoubt:
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
        "                unanswered[sink] = error\n",
        "                unanswered[sink] = error\n                yield Abort(sink, decided.of(sink))\n",
    ),
    _mutant(
        "a task rolls another attempt back",
        MODELS,
        "        self.prepared[work.committable.handle] = work\n",
        """        for handle, other in list(self.prepared.items()):
            if (other.committable.epoch, other.rows) == (work.committable.epoch, work.rows):
                del self.prepared[handle]
        self.prepared[work.committable.handle] = work
""",
    ),
    _mutant(
        "merge without counts",
        MODELS,
        """        self.verify(manifest)
        prepared, committed = dict(self.prepared), dict(self.committed)
        for committable in manifest:
            committed""",
        """        prepared, committed = dict(self.prepared), dict(self.committed)
        for committable in manifest:
            if committable.handle not in prepared:
                continue
            committed""",
        LR,
    ),
    _mutant(
        "a merge that shows part by part before the decision",
        MODELS,
        "            committed[committable.handle] = prepared.pop(committable.handle)\n",
        """            committed[committable.handle] = prepared.pop(committable.handle)
            self.committed = dict(committed)
            self.reached("inside:Merge")
""",
        LR,
    ),
    Mutant(
        "resolve from today's configuration",
        (
            Patch(RECOVERY, "        if missing:\n", "        if missing and record.state is EpochState.DAMAGED:\n"),
            Patch(
                PROTOCOL,
                "        yield from _finish(generation, facts.store_id, decided)\n    for record in resolution.give_up",
                "        decided = Decided(__import__('dataclasses').replace(decided.record, sinks=sinks))\n"
                "        yield from _finish(generation, facts.store_id, decided)\n    for record in resolution.give_up",
            ),
        ),
        ("two-phase + two-phase",),
    ),
    _mutant(
        "a sweep takes the running epoch's work",
        RECOVERY,
        "    running = {(r.epoch, r.generation) for r in facts.unfinished if r.generation == generation.number}\n",
        "    running: set[tuple[int, int]] = set()\n",
    ),
    _mutant(
        "a sweep takes what was decided",
        RECOVERY,
        "    needed = {(c.sink, c.handle) for r in facts.unfinished for c in r.manifest}\n",
        "    needed: set[tuple[str, str]] = set()\n",
    ),
    Mutant(
        "a fenced process sweeps its successor's work",
        (
            Patch(RECOVERY, "    if facts.generation != generation.number:\n        return ()\n", ""),
            Patch(MODELS, "            if work.committable.generation <= up_to_generation\n", ""),
        ),
    ),
    _mutant(
        "a sweep reads the store before it lists",
        PROTOCOL,
        LISTS,
        """        facts: StoreFacts = yield from _insist(ReadStore())
        listed: tuple[Committable, ...] = tuple((yield from _insist(ListLeftovers(sink, generation.number))))
        if not listed:
            continue
""",
    ),
    _mutant("forget the leftovers", PROTOCOL, "        if condemned:\n", "        if condemned and not sinks:\n"),
    _mutant(
        "the generation from the store alone",
        PROTOCOL,
        "AcquireGeneration(above=max(seen, default=0))",
        "AcquireGeneration(above=min(0, *seen, 0))",
    ),
    _mutant(
        "another T on a replay",
        STORE,
        "mine = replace(record, generation=generation.number)",
        "mine = replace(record, generation=generation.number, timestamp_ms=record.timestamp_ms + 1)",
        WT,
    ),
    Mutant(
        "another range over an open write-through epoch",
        (
            Patch(RECOVERY, "rerun is not None and not request.is_again(rerun)", "rerun is not None and base is rerun"),
            Patch(STORE, "and request.is_again(record):", "and (record.write_through or request.is_again(record)):"),
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
                "        return begun.range.start, begun.range.end\n",
                "        return begun.range.start, None\n",
            ),
        ),
        (WT,),
    ),
    _mutant(
        "an open write-through epoch is given up",
        RECOVERY,
        "if r.state is EpochState.OPEN and not r.write_through),",
        "if r.state is EpochState.OPEN),",
        WT,
    ),
    _mutant(
        "a write-through epoch is not announced",
        PROTOCOL,
        "            yield from _insist(Announce(sink, record))\n",
        "            continue\n",
        WT,
    ),
    _mutant(
        "complete before commit",
        PROTOCOL,
        COMMITS,
        "    yield from _insist(Complete(generation, decided))\n" + COMMITS,
    ),
    _mutant(
        "the ledger before commit",
        PROTOCOL,
        COMMITS,
        "    yield from _complete(generation, store_id, decided)\n" + COMMITS,
    ),
    _mutant(
        "damage in one sink leaves the others uncommitted",
        PROTOCOL,
        "                damage = damage or error\n",
        "                return damage or error\n",
        "two-phase + two-phase",
    ),
    _mutant(
        "damage in one part leaves the others uncommitted",
        MODELS,
        "                gone.append(committable.handle)\n",
        "                gone.append(committable.handle)\n                break\n",
    ),
    _mutant(
        "damage passed over",
        PROTOCOL,
        "    if damage is not None:\n        yield from _insist(MarkDamaged",
        "    if damage is decided:\n        yield from _insist(MarkDamaged",
    ),
    _mutant(
        "initial positions not frozen",
        PROTOCOL,
        "    return (yield from _insist(Freeze(generation, initial.positions))), None\n",
        "    yield from _insist(Freeze(generation, initial.positions))\n    return initial.positions, None\n",
    ),
    _mutant(
        "a decided epoch is skipped without finishing it",
        PROTOCOL,
        "            if record.state is EpochState.DECIDED:  #",
        "            if record.state is EpochState.DECIDED and found is None:  #",
        "two-phase, another source",
    ),
    _mutant(
        "the adopted position is ahead",
        STORE,
        "range=Range(entry.positions, entry.positions),",
        "range=Range(*2 * (Positions.of((name, int(at) + 1) for name, at in entry.positions.items),)),",
    ),
    _mutant(
        "a ledger row must be newer, not as new",
        BINDING,
        "    if row.epoch > new.epoch:\n",
        "    if row.epoch >= new.epoch > 0:\n",
    ),
    _mutant(
        "a commit that is not the same when repeated",
        MODELS,
        "            elif committable.handle not in self.committed:\n",
        "            else:\n",
    ),
    _mutant(
        "a fenced process decides",
        STORE,
        "        if generation != self.newest:\n",
        "        if self.newest is None:\n",
    ),
    _mutant(
        "the ledgers are not asked",
        RECOVERY,
        "        check_ledger(facts, sink, ledger)\n",
        "        assert sink is not None, ledger\n",
    ),
    _mutant(
        "T is not compared",
        RECOVERY,
        "        if record is None or record.timestamp_ms != self.timestamp_ms:\n",
        "        if record is None:\n",
    ),
    Mutant(
        "a gap is taken for the next range",
        (
            Patch(
                RECOVERY,
                "        case Relation.SAME:\n            return Next()\n",
                "        case Relation.SAME | Relation.AHEAD:\n            return Next()\n",
            ),
            Patch(
                STORE,
                'is not Relation.SAME:\n            raise CheckpointMismatch(f"not at',
                'is Relation.BEHIND:\n            raise CheckpointMismatch(f"not at',
            ),
            Patch(
                STORE,
                "record.range.start.relation_to(last.range.end) is Relation.SAME",
                "record.range.start.relation_to(last.range.end) is not Relation.BEHIND",
            ),
        ),
        ("two-phase, another source",),
    ),
    Mutant(
        "an overlap is taken for the next range",
        (
            Patch(
                RECOVERY,
                "        case Relation.SAME:\n            return Next()\n",
                "        case Relation.SAME | Relation.BEHIND:\n            return Next()\n",
            ),
            Patch(
                STORE,
                'is not Relation.SAME:\n            raise CheckpointMismatch(f"not at',
                'is Relation.AHEAD:\n            raise CheckpointMismatch(f"not at',
            ),
            Patch(
                STORE,
                "record.range.start.relation_to(last.range.end) is Relation.SAME",
                "record.range.start.relation_to(last.range.end) is not Relation.AHEAD",
            ),
        ),
    ),
    _mutant(
        "what a checkpoint has done is not looked at",
        RECOVERY,
        "in (Relation.AHEAD, Relation.UNORDERED):",
        "is Relation.UNORDERED:",
    ),
    _mutant(
        "an epoch is opened on its range alone",
        STORE,
        "        if (last.epoch if last else 0) != after:\n",
        "        if after < 0:\n",
    ),
    _mutant(
        "where an epoch ends is not compared",
        RECOVERY,
        "        return self.end is None or self.end.relation_to(record.range.end) is Relation.SAME\n",
        "        return True\n",
        WT,
    ),
    _mutant(
        "another store's binding is not compared",
        BINDING,
        "    if foreign and not binding.takes_over:\n",
        "    if foreign and not binding.store_id:\n",
    ),
    _mutant(
        "nobody looks at the bindings before a decision",
        PROTOCOL,
        "            yield from _look(Binding(store_id, generation.number), record.sinks)\n",
        "            yield from ()\n",
    ),
    _mutant(
        "an adoption fences nobody",
        PROTOCOL,
        "    yield from _bind(Binding(facts.store_id, generation.number, takes_over=True), sinks)\n",
        "    yield from ()\n",
    ),
    _mutant(
        "an adoption sweeps nothing",
        PROTOCOL,
        "    yield from sweep(generation, sinks)\n    entry = adoption(",
        "    entry = adoption(",
    ),
    _mutant(
        "an older generation writes the ledger, and announces",
        BINDING,
        "    if foreign or row.generation > new.generation:\n",
        "    if foreign:\n",
        WT,
    ),
    _mutant(
        "a store that went back is taken for a newer generation",
        BINDING,
        "    if now < generation.number:\n",
        "    if now < 0:\n",
    ),
    _mutant(
        "the input that a range stands for is not compared",
        STORE,
        "record.range == request.range and request.has_input_of(record):",
        "record.range == request.range:",
    ),
    _mutant(
        "a sink's missing epochs are not missed",
        RECOVERY,
        "(ledger is None or ledger.epoch < complete.epoch):",
        "(ledger is None and not sink):",
    ),
)

assert FIRST.keys() <= {mutant.name for mutant in _ALL}
MUTANTS = tuple(replace(m, first=frozenset({FIRST[m.name]})) if m.name in FIRST else m for m in _ALL)

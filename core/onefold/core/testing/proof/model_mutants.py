"""Model sinks and a model store with a mistake in them: what the simulator sees of a sink or a store that errs.

They show which rules of the contract the invariants rest on; no production code is changed in any of them.
"""

from __future__ import annotations

from dataclasses import replace

from onefold.core.checks import require
from onefold.core.testing.proof.mutants import LR, MODELS, STORE, TP, WT, Mutant
from onefold.core.testing.proof.patching import Patch
from onefold.core.testing.simulator.faults import Fault


def _mutant(name: str, module: str, old: str, new: str, *configurations: str) -> Mutant:
    return Mutant(name, (Patch(module, old, new),), configurations or (TP,))


FIRST = {
    "a change of sinks forgets what was written before it": Fault.SINKS_WRITTEN,
    "a task rolls another attempt back": Fault.STRAGGLE,
    "an epoch is opened on its range alone": Fault.LATE,
    "a fenced process decides": Fault.SLEEP,
    "a decision compares neither number nor chain": Fault.BACKUP,
    "a write-through sink forgets to ask whether it was written whole": Fault.BACKUP,
    "the input that a range stands for is not compared": Fault.BACKUP,
}

_ALL: tuple[Mutant, ...] = (
    _mutant(
        "match by batch id",
        STORE,
        "... and record.range == request.range and ...",
        "... and record.batch_id == request.batch_id and ...",
    ),
    _mutant(
        "a task rolls another attempt back",
        MODELS,
        "self.prepared[work.committable.handle] = work",
        """
        for handle, other in list(self.prepared.items()):
            if (other.committable.epoch, other.rows) == (work.committable.epoch, work.rows):
                del self.prepared[handle]
        self.prepared[work.committable.handle] = work
        """,
    ),
    _mutant(
        "merge without counts",
        MODELS,
        """
        self.verify(manifest)
        prepared, committed = dict(self.prepared), dict(self.committed)
        for committable in manifest: ...
        """,
        """
        prepared, committed = dict(self.prepared), dict(self.committed)
        for committable in manifest:
            if committable.handle not in prepared:
                continue
            ...
        """,
        LR,
    ),
    _mutant(
        "a merge that shows part by part before the decision",
        MODELS,
        "committed[committable.handle] = prepared.pop(committable.handle)",
        """
        committed[committable.handle] = prepared.pop(committable.handle)
        self.committed = dict(committed)
        self.reached("inside:Merge")
        """,
        LR,
    ),
    _mutant(
        "another T on a replay",
        STORE,
        "mine = replace(record, generation=generation.number)",
        "mine = replace(record, generation=generation.number, timestamp_ms=record.timestamp_ms + 1)",
        WT,
    ),
    _mutant(
        "T is the clock alone",
        STORE,
        "max(self.now(), *(r.timestamp_ms + 1 for r in self.epochs.values()), 0)",
        "max(self.now(), 0)",
        WT,
    ),
    _mutant(
        "damage in one part leaves the others uncommitted",
        MODELS,
        "gone.append(committable.handle)",
        "gone.append(committable.handle)\nbreak",
    ),
    _mutant(
        "the adopted position is ahead",
        STORE,
        "Range(entry.positions, entry.positions)",
        "Range(*2 * (Positions.of((name, int(at) + 1) for name, at in entry.positions.items),))",
    ),
    _mutant(
        "a commit that is not the same when repeated",
        MODELS,
        "if committable.handle not in self.committed: ...",
        "...",
    ),
    _mutant(
        "a fenced process decides",
        STORE,
        "if generation != self.newest: ...",
        "if self.newest is None: ...",
    ),
    Mutant(
        "an epoch is opened on its range alone",
        (
            Patch(STORE, "if (last.epoch if last else 0) != after: ...", "if after < 0: ..."),
            Patch(STORE, "if found is not None and found.epoch > self.moved: ...", "if after < 0: ..."),
        ),
        ("write-through, idle",),
    ),
    _mutant(
        "an opening does not complete the epoch before",
        STORE,
        "if completes is not None:\n    self.complete(generation, completes, now_ms)\ntimestamp_ms = ...",
        "timestamp_ms = max(self.now(), *(r.timestamp_ms + 1 for r in self.epochs.values()), 0)",
        WT,
    ),
    _mutant(
        "a decision does not complete the epoch before",
        STORE,
        "if completes is not None:\n    self.complete(generation, completes, now_ms)\nnewest = ...",
        "newest = present(self.newest, 'a decision without a generation')",
    ),
    _mutant(
        "an epoch is decided beside any that is decided",
        STORE,
        "last is None or last.state is EpochState.COMPLETE or last.epoch == completed",
        "True",
        "two-phase, idle",
    ),
    Mutant(
        "a decision compares neither number nor chain",
        (
            Patch(STORE, "(last.epoch if last else 0) == record.epoch - 1 and ...", "record.epoch > 0"),
            Patch(STORE, "follows = begins_at(record, self._base(last))", "follows = True"),
        ),
        (WT,),
    ),
    _mutant(
        "a write-through sink forgets to ask whether it was written whole",
        MODELS,
        "committables and not told.is_written",
        "committables and told is None",
        WT,
    ),
    _mutant(
        "the input that a range stands for is not compared",
        STORE,
        "... and record.range == request.range and request.has_input_of(record)",
        "... and record.range == request.range",
    ),
    _mutant(
        "a change of sinks forgets what was written before it",
        STORE,
        "if record.is_move and not record.range.is_empty: ...",
        "if record.is_move: ...",
    ),
)

require(FIRST.keys() <= {mutant.name for mutant in _ALL}, "FIRST names mutants that there are")
MODEL_MUTANTS = tuple(replace(m, first=frozenset({FIRST[m.name]})) if m.name in FIRST else m for m in _ALL)

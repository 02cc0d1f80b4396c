"""The promises of the contract, one sentence each, and the book that says how often each was checked."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from onefold.core.errors import ConfigError

TEXT_MAX = 1200


class Promise(enum.Enum):
    """What is promised, by which call. The sentence is what a broken promise is reported with."""

    # of every sink
    GUARANTEE = "guarantee: it says the same before and after open, in every process, and of every committable"
    PICKLES = "pickling: sinks, tasks and committables reach another process as they are"
    OPEN_AGAIN = "open, recover: after a crash in one of them, the next one works"
    PREPARED_AS_ASKED = (
        "prepare: the committable names the sink, its kind, the task's generation and epoch, and the rows"
    )
    PREPARE_DURABLE = "prepare: after it returns, a crash of the process loses nothing"
    PREPARE_NOTHING = "prepare: None if nothing was written, and nothing is left"
    UNDECIDED_UNSEEN = "nothing that is undecided is ever visible"
    SWEPT = "leftovers, abort: what a killed writer left is found by name, and one sweep removes it"
    WRITER_ABORT = "writer's abort: it undoes its own attempt, before prepare, and never another's"
    ATTEMPTS_APART = "attempts: of two that both prepared, only the one that the manifest names becomes visible"
    LEFTOVERS_EXACT = "leftovers: what is prepared for this pipeline and sink up to that generation, and nothing else"
    VERIFY = "verify: passes while all are there, and raises WorkLost for what is gone"
    ABORT_IDEMPOTENT = "abort: repeated, by any process, after a crash at any step, the named work is gone"
    ABORT_ONLY_NAMED = "abort: never touches another attempt's, epoch's, generation's or pipeline's work"
    COMMIT_ONCE = "commit: repeated, by any process, after a crash at any step, every row is visible once"
    COMMIT_ONLY_NAMED = "commit: never touches a newer epoch's or generation's work, nor another pipeline's"
    ATOMIC_EPOCH = "atomic epoch: a reader never sees part of an epoch"
    SHARED_OUT = "writers: rows shared out as the sink asks, and otherwise in any way, are all visible once"
    LEDGER_EQUAL = "ledger: what was recorded comes back equal, in any process; None if there was nothing"
    MEMBERS = "ledger: whatever is visible shows there, as a member beyond its row or below it, also before any row"
    BOUND = (
        "bind: the ledger row is that store's and generation's, and stands where it stood; CheckpointMismatch where"
        " another store has it and is not taken over, Fenced where a newer generation has it, and nothing changes"
    )
    BOUND_DURABLE = "bind: whole or not at all when the process is killed, and durable once it has returned"
    FENCES = "write_ledger, announce: Fenced once a newer generation or another store has bound the ledger row"
    LEDGER_FORWARD = (
        "write_ledger: epoch and generation only grow, each by itself; Fenced otherwise, and nothing changes"
    )
    LEDGER_DURABLE = "write_ledger: whole or not at all when the process is killed, and durable once it has returned"

    # of two-phase sinks
    COMMIT_DAMAGED = "commit: raises Damaged if a part never can become visible"

    # of write-through sinks
    SHOWN_ONCE = "prepare: once an epoch was written by any attempt, however often, a reader sees each of its rows once"
    WRITTEN_AGAIN = "writers: an epoch cut off anywhere is written again, under the same T, and is as if written once"
    ANNOUNCED = "announce: what was announced shows in the ledger, in any process, and write_ledger leaves it there"
    ANNOUNCE_FORWARD = (
        "announce: Fenced where a newer one is there, CheckpointMismatch where the same epoch has another T or range"
    )
    ANNOUNCE_DURABLE = "announce: whole or not at all when the process is killed, and durable once it has returned"
    NOTED_WHOLE = "seal: notes that the epoch was written whole, at any moment it is killed at; again is fine"
    COPY_DAMAGED = "commit: Damaged where the destination does not know that the epoch was begun or written whole"
    NOTHING_TO_UNDO = "abort, leftovers: nothing is listed, and nothing is taken back"

    # of last-resource sinks
    SHARES_STORE = "shares_store: tells the store of its own database from any other"
    MERGE_COUNTS = "merge: raises WorkLost where fewer rows are there than the manifest says, and nothing is decided"
    MERGE_ROLLED_BACK = "merge: is part of the store's transaction, and goes back with it, whole"
    MERGE_FENCED = "merge: raises Fenced where the ledger is beyond it, and nothing is decided"
    MERGE_ATOMIC = "merge: rows, ledger row and decision take effect together, whatever moment a crash comes at"

    # of sources
    SOURCE_PICKLES = "source: it and its splits reach another process as they are"
    SOURCE_INITIAL = "initial: the same however often it is asked, by any planner; and what was frozen, once it is"
    SOURCE_END = "end: goes on to all there is, which is latest; equal to the start where nothing came"
    SOURCE_CUT = "cut: the partitions of which the last end left something that was there, and no others"
    SOURCE_BEHIND = "behind, unit: above 0 until all there is was read, then 0, by partitions that the source covers"
    SOURCE_SCHEMA = "read: rows have arrow_schema, and bad records BAD_COLUMNS"
    SOURCE_SPLITS = "splits: cover a range without gap or overlap, and name partitions that the source covers"
    SOURCE_REPLAY = "read: a split gives the same rows in the same order, however often, and in any process"
    SOURCE_RESTART = "splits: a range that was planned before a restart is split and read as before"
    SOURCE_UNTIL = "until: nothing beyond it is planned, and is_done says so there and not before"
    SOURCE_BAD = "bad records: fail raises BadRecord; else they come beside all the others, up to bad_records_max"
    SOURCE_ONCE = (
        "read once: splits are of the source as it is when they are planned, and of one moment if it says so; once they"
        " were read, nothing comes any more"
    )
    SOURCE_LOST = "read, splits: DataLoss where records of a planned range are gone"

    # of aggregators
    AGGREGATOR_PICKLES = "aggregator: it reaches another process as it is"
    AGGREGATOR_CUTS = "add, merge: one result, however rows are cut and states merged, and all are of their types"


class BrokenPromise(AssertionError):
    """Which promise is broken, in which call, struck where, what was expected, and what was seen instead."""

    def __init__(self, promise: Promise, call: str, crash: str, expected: str, seen: str) -> None:
        expected, seen = (t if len(t) <= TEXT_MAX else f"{t[:TEXT_MAX]} ..." for t in (expected, seen))
        self.promise, self.call, self.crash, self.expected, self.seen = promise, call, crash, expected, seen
        lines = [promise.value, f"in        {call}", f"expected  {expected}", f"seen      {seen}"]
        if crash:
            lines.insert(2, f"crash     {crash}")
        super().__init__("\n  ".join(lines))


class ProcessEnded(ConfigError):
    """A process of the kit's own has ended, so that nothing is shown."""

    def __init__(self) -> None:
        super().__init__(
            "kit-process-ended",
            "a process of the conformance kit's own has ended before it answered. Put the call of check_sink or"
            ' check_source under `if __name__ == "__main__":`, since such a process imports the script'
            " again; where that is there, what the process says on standard error tells more",
        )


@dataclass(slots=True)
class Struck:
    """How many processes were killed at one call: before it, inside it, and after it had answered."""

    before: int = 0
    inside: int = 0
    after: int = 0
    steps: int = 0  # the most steps (lines and returns of the subject's own code) that the call was seen to take


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What was checked, and how often; every count is above 0. `str` of it is for people."""

    subject: str
    promises: Mapping[Promise, int]
    strikes: Mapping[str, Struck]
    seconds: float

    @property
    def crashes(self) -> int:
        return sum(s.before + s.inside + s.after for s in self.strikes.values())

    def __str__(self) -> str:
        lines = [
            f"{self.subject}: {len(self.promises)} promises held in {sum(self.promises.values())} checks"
            f"{f'; {self.crashes} processes killed' if self.strikes else ''}, in {self.seconds:.1f} s",
        ]
        if self.strikes:  # a source is read in other processes, of which none is killed
            lines += ["", f"  {'killed':16}{'before':>8}{'inside':>8}{'after':>8}"]
        lines += [f"  {call:16}{s.before:8}{s.inside:8}{s.after:8}" for call, s in self.strikes.items()]
        lines += ["", *(f"  {count:4} x  {promise.value}" for promise, count in self.promises.items())]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckedPromise:
    """One promise while it is checked: in which call, and where its process was killed ("" if it wasn't)."""

    promise: Promise
    call: str
    crash: str = ""

    def expect(self, holds: bool, expected: str, seen: object) -> None:
        if not holds:
            raise BrokenPromise(self.promise, self.call, self.crash, expected, str(seen))

    def expect_raises(self, error: type[Exception], call: Callable[..., object], expected: str) -> None:
        """`call()` must raise exactly this error of onefold's tree, or one below it."""
        try:
            answer = call()
        except error:
            return
        except Exception as other:
            seen = f"it raised {_text(other)}"
            raise BrokenPromise(self.promise, self.call, self.crash, expected, seen) from other
        raise BrokenPromise(self.promise, self.call, self.crash, expected, f"it returned {answer!r}")


@dataclass(slots=True)
class Book:
    """Counts what was checked and struck, so that a kit that checked nothing can't pass."""

    checked: Counter[Promise] = field(default_factory=Counter)
    strikes: dict[str, Struck] = field(default_factory=dict)

    @contextmanager
    def holding(self, promise: Promise, call: str, crash: str = "") -> Iterator[CheckedPromise]:
        """A block that checks one promise. An error that the contract doesn't allow there breaks it too."""
        try:
            yield CheckedPromise(promise, call, crash)
        except (BrokenPromise, ProcessEnded):
            raise
        except Exception as error:
            expected = "no error"
            raise BrokenPromise(promise, call, crash, expected, f"it raised {_text(error)}") from error
        self.checked[promise] += 1

    def struck(self, call: str) -> Struck:
        return self.strikes.setdefault(call, Struck())


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

"""How far an exploration goes: what may strike after what, and within which stretch of the run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from onefold.core.testing.simulator.faults import BACKUPS, MOVES, RIVALS, Fault

MANY = 1000


class Window(enum.Enum):
    RECOVERY = "up to the next batch that is committed"
    REST = "up to the end of the run"


@dataclass(frozen=True)
class Rule:
    """After such faults, these again: at points of these names (any, if none is named), in pipelines of that size,
    where the first struck before so many batches were done, and at such a point (any, if none is named). `sparse`
    leaves out the points after an effect, which are the same moments as those before the next one, seen from the
    outside."""

    after: tuple[frozenset[Fault], ...]
    faults: tuple[Fault, ...]
    window: Window
    at: frozenset[str] = frozenset()
    first_at: frozenset[str] = frozenset()
    size_max: int = MANY
    batches_max: int = MANY
    sparse: bool = False
    late: bool = False  # only in pipelines whose dead letters come late; the others only in those without


@dataclass(frozen=True)
class Bound:
    name: str
    rules: tuple[Rule, ...]

    def after(self, faults: tuple[Fault, ...]) -> list[Rule]:
        return [rule for rule in self.rules if len(rule.after) == len(faults) and _all_in(faults, rule.after)]


def _late(after: tuple[frozenset[Fault], ...], faults: tuple[Fault, ...], window: Window, **limits: Any) -> Rule:
    return Rule(after, faults, window, late=True, **limits)


def _all_in(faults: tuple[Fault, ...], allowed: tuple[frozenset[Fault], ...]) -> bool:
    return all(fault in some for fault, some in zip(faults, allowed, strict=True))


DIES = frozenset({Fault.CRASH})
FAILS = frozenset({Fault.JOB_FAILS})
SLEEPS = frozenset({Fault.SLEEP, Fault.LATE, Fault.STRAGGLE, Fault.ORPHAN})
ZOMBIES = frozenset({Fault.SLEEP, Fault.ORPHAN})
LANDS, REFUSES = frozenset({Fault.LATE}), frozenset({Fault.JOB_FAILS, Fault.BAD_RECORD})
ASLEEP = frozenset({Fault.SLEEP})
ASKED_AGAIN = frozenset({Fault.RETRIABLE})
COPIES = frozenset({Fault.BACKUP})
HALTS = frozenset({Fault.SWEEP_HALTS})
LOSES = frozenset({Fault.EXPIRE})
UNANSWERED = frozenset({Fault.IN_DOUBT, Fault.LATE})
ADOPTS = frozenset({Fault.OLD_STORE_ADOPTED, Fault.NEW_STORE_ADOPTED})
RESTORES = tuple(sorted(BACKUPS, key=lambda fault: fault.value))
AGAIN = (Fault.CRASH, Fault.RETRIABLE, Fault.IN_DOUBT, Fault.EXPIRE, Fault.EMPTY_STAGE, Fault.SWEEP)
ADOPTION = frozenset({"before:Bind", "after:Bind", "before:Adopt", "after:Adopt"})
JUMPS = frozenset({Fault.CLOCK_AHEAD, Fault.CLOCK_BACK})
BACK, FORKED = frozenset({Fault.CLOCK_BACK}), frozenset({Fault.OLD_DATABASE_CUT_ANEW})
DECIDES = frozenset({"before:Decide"})
# An epoch is opened in the store where it writes through; else its driver only looks at its clock.
OPENS = frozenset({"before:OpenEpoch", "before:ReadClock"})
REMOVALS = OPENS | {"before:ListLeftovers", "before:Abort"}
DECIDING, COMMITTING = frozenset({"before:Decide", "after:Decide"}), frozenset({"before:Commit"})
# An epoch that is committed is complete in the store from the next decision or opening on, or when its process idles.
WRITES_LEDGER, COMPLETES = frozenset({"before:WriteLedger"}), frozenset({"before:CommitBatch", "before:Complete"})
COMMITS = frozenset({"before:CommitBatch"})
LETTERS = frozenset({Fault.DEAD_LETTERS})
SLEEPERS = (Fault.SLEEP, Fault.LATE, Fault.STRAGGLE, Fault.ORPHAN)
OLDER = frozenset({Fault.OLD_DATABASE})
STARTS = frozenset({"before:AcquireGeneration"})
PREPARED = frozenset({"after:RunAttempt"})
READS_STORE, READS_LEDGER = frozenset({"before:ReadStore"}), frozenset({"before:ReadLedger"})
ABORTS = frozenset({"before:Abort", "inside:Abort", "after:Abort"})
DAMAGES = frozenset(f"{when}:{step}" for when in ("before", "after") for step in ("MarkDamaged", "AcceptDamage"))
NEW_STORES = (Fault.NEW_STORE, Fault.NEW_STORE_ADOPTED)
# One moment of an epoch's each state: planned, begun, decided, committed.
MOMENTS = OPENS | DECIDES | COMMITTING | COMPLETES
# One moment of all that a process does, where each later point would be too many.
STATES = MOMENTS | {"before:AcquireGeneration", "before:Bind", "before:RunAttempt", "before:WriteLedger"} | COMMITS

# An older store goes on while the dead letters, which are ahead of it, are left out; then they are put back.
OLDER_STORE = frozenset({Fault.OLD_STORE})
LEFT_OUT = (
    _late((COPIES,), (Fault.DEAD_LETTERS,), Window.REST, first_at=DECIDES, at=MOMENTS),
    _late((COPIES, LETTERS), (Fault.OLD_STORE,), Window.REST, first_at=DECIDES, at=MOMENTS),
    _late((COPIES, LETTERS, OLDER_STORE), (Fault.DEAD_LETTERS,), Window.RECOVERY, first_at=DECIDES, at=STARTS),
    _late((COPIES, LETTERS, OLDER_STORE, LETTERS), (Fault.DEAD_LETTERS,), Window.REST, first_at=DECIDES, at=OPENS),
)
FORKS = frozenset({"before:Decide"}) | COMPLETES

# The store of a living driver goes back to before its epoch was opened, or to before the pipeline.
GOES_BACK = Rule(
    (COPIES,), (Fault.STORE_GOES_BACK,), Window.REST, first_at=STARTS | OPENS, at=COMPLETES, size_max=2, batches_max=1
)

# An operator moves the positions of a pipeline that lives, as nobody should: the move is struck at every step, and its
# zombie wakes at every later one.
MOVED = (
    Rule((MOVES,), (Fault.CRASH,), Window.RECOVERY, first_at=STATES, size_max=1, batches_max=1),
    Rule((MOVES,), (Fault.RETRIABLE, Fault.IN_DOUBT), Window.RECOVERY, first_at=COMPLETES, size_max=1, batches_max=1),
    Rule((MOVES,), (Fault.SLEEP, Fault.LATE), Window.RECOVERY, first_at=COMPLETES, size_max=1, batches_max=1),
    Rule((MOVES,), (Fault.WAKE,), Window.REST, first_at=MOMENTS, size_max=1, batches_max=1),
    # A process that goes on after the move asks the store only once: its successor asks again, from where it was.
    Rule((MOVES,), (Fault.CRASH,), Window.REST, first_at=MOMENTS, at=COMMITS, size_max=1),
    Rule((MOVES,), (Fault.CRASH,), Window.RECOVERY, first_at=MOMENTS, size_max=2, batches_max=1, sparse=True),
)

ONE_FAULT = Bound("one fault", ())
DEFAULT = Bound(
    "default",
    (
        # What sleeps wakes at any later point; a zombie also where its successor has died in between.
        Rule((SLEEPS,), (Fault.WAKE,), Window.REST, size_max=1, batches_max=1),
        Rule((SLEEPS,), (Fault.WAKE,), Window.RECOVERY, first_at=STATES, size_max=1),
        Rule((SLEEPS,), (Fault.WAKE,), Window.RECOVERY, first_at=STATES, batches_max=1),
        Rule((ZOMBIES,), (Fault.CRASH,), Window.RECOVERY, first_at=STATES, size_max=1, batches_max=1, sparse=True),
        Rule((ZOMBIES, DIES), (Fault.WAKE,), Window.RECOVERY, size_max=1, batches_max=1),
        # The decision that is asked again is refused before the lost one lands.
        Rule((LANDS,), (Fault.RETRIABLE,), Window.RECOVERY, at=DECIDES, size_max=1, batches_max=1),
        Rule((LANDS, ASKED_AGAIN), (Fault.WAKE,), Window.RECOVERY, size_max=1, batches_max=1),
        # What was verified is gone when the decision is asked again.
        Rule((ASKED_AGAIN,), (Fault.EXPIRE, Fault.EMPTY_STAGE), Window.RECOVERY, first_at=DECIDES, batches_max=1),
        # The decision was made, its driver does not know, and is told by its successor's store that it is fenced.
        Rule((UNANSWERED, ASLEEP), (Fault.WAKE,), Window.RECOVERY, first_at=DECIDING, at=COMMITTING, batches_max=1),
        # The job asks again in the same process, and fails, before the lost one lands.
        Rule((LANDS,), (Fault.JOB_FAILS, Fault.BAD_RECORD), Window.RECOVERY, size_max=2, batches_max=1),
        Rule((LANDS, REFUSES), (Fault.WAKE,), Window.RECOVERY, at=REMOVALS, size_max=2, batches_max=1),
        Rule((HALTS,), (Fault.SWEEP,), Window.REST, size_max=1, batches_max=1),
        # Recovery is struck at every point, too.
        Rule((DIES,), (Fault.CRASH,), Window.RECOVERY, size_max=1, batches_max=1),
        Rule((DIES,), AGAIN, Window.RECOVERY, first_at=STATES, size_max=1, batches_max=1, sparse=True),
        Rule((DIES,), (Fault.CRASH,), Window.RECOVERY, first_at=STATES, size_max=2, batches_max=1, sparse=True),
        Rule((DIES,), (Fault.SLEEP, Fault.LATE), Window.RECOVERY, first_at=STATES, size_max=1, batches_max=1),
        Rule((FAILS,), (Fault.JOB_FAILS,), Window.RECOVERY, size_max=1),
        Rule((FAILS, FAILS), (Fault.JOB_FAILS,), Window.RECOVERY, size_max=1),
        Rule(
            (UNANSWERED,),
            (Fault.EMPTY_STAGE, Fault.BAD_RECORD, Fault.SLEEP),
            Window.RECOVERY,
            first_at=DECIDING,
            size_max=2,
            batches_max=1,
        ),
        Rule(
            (LOSES,),
            (Fault.CRASH, Fault.IN_DOUBT, Fault.RETRIABLE),
            Window.RECOVERY,
            first_at=STATES,
            size_max=1,
            batches_max=1,
        ),
        # Older copies, taken at each state of an epoch and brought back at every later point.
        Rule((COPIES,), RESTORES, Window.REST, first_at=STATES, size_max=1, batches_max=1),
        Rule((COPIES,), RESTORES, Window.REST, first_at=MOMENTS, at=STATES, size_max=2, batches_max=2),
        Rule((COPIES,), RESTORES, Window.REST, first_at=MOMENTS, at=STATES, batches_max=1),
        GOES_BACK,
        Rule((ADOPTS,), (Fault.CRASH, Fault.IN_DOUBT), Window.RECOVERY, first_at=STATES, at=ADOPTION),
        Rule((COPIES, ADOPTS), (Fault.CRASH,), Window.RECOVERY, at=ADOPTION, size_max=1, batches_max=1),
        Rule((COPIES, OLDER), (Fault.STORE_BACK,), Window.REST, at=COMMITS, size_max=1),
        # Two stores are alive: the first one's process goes on at any step of the second one's, which may die as well.
        Rule((RIVALS,), (Fault.WAKE,), Window.REST, size_max=1, batches_max=1),
        Rule((RIVALS,), (Fault.WAKE_ONE_STEP,), Window.RECOVERY, first_at=STATES, size_max=1, batches_max=1),
        Rule((RIVALS,), (Fault.WAKE,), Window.RECOVERY, first_at=MOMENTS, batches_max=1),
        Rule((RIVALS,), (Fault.CRASH,), Window.RECOVERY, first_at=MOMENTS, at=ADOPTION, batches_max=1),
        # The clock jumps, and where it is behind, two histories count T up alike.
        Rule(
            (JUMPS,),
            (Fault.CLOCK_AHEAD, Fault.CLOCK_BACK),
            Window.RECOVERY,
            first_at=STATES,
            size_max=1,
            batches_max=1,
            sparse=True,
        ),
        Rule((BACK,), (Fault.BACKUP,), Window.REST, at=COMMITS, size_max=1, batches_max=1),
        Rule((BACK, COPIES), (Fault.OLD_DATABASE_CUT_ANEW,), Window.REST, at=FORKS, size_max=1, batches_max=1),
        Rule((BACK, COPIES, FORKED), (Fault.STORE_BACK,), Window.REST, at=FORKS, size_max=1, batches_max=1),
        # A ledger row two generations newer than the older copy of the store.
        Rule((COPIES,), (Fault.CRASH,), Window.RECOVERY, at=WRITES_LEDGER, batches_max=1),
        Rule((COPIES, DIES), (Fault.CRASH,), Window.RECOVERY, at=WRITES_LEDGER, batches_max=1),
        Rule((COPIES, DIES, DIES), (Fault.OLD_STORE,), Window.RECOVERY, at=COMPLETES, batches_max=1),
        # Dead letters come: their first epoch is cut short, zombies from before and after wake, copies are older.
        _late((LETTERS,), (*AGAIN, *SLEEPERS), Window.RECOVERY, batches_max=2, sparse=True),
        _late((LETTERS, SLEEPS), (Fault.WAKE,), Window.RECOVERY, first_at=MOMENTS, at=MOMENTS, batches_max=2),
        _late((LETTERS, DIES), (Fault.CRASH,), Window.RECOVERY, first_at=MOMENTS, at=MOMENTS, batches_max=2),
        _late((SLEEPS,), (Fault.DEAD_LETTERS,), Window.RECOVERY, first_at=MOMENTS, at=MOMENTS),
        _late((SLEEPS, LETTERS), (Fault.WAKE,), Window.RECOVERY, first_at=MOMENTS, at=MOMENTS),
        _late((COPIES,), (Fault.DEAD_LETTERS,), Window.REST, first_at=MOMENTS, at=MOMENTS),
        _late((COPIES, LETTERS), RESTORES, Window.REST, first_at=MOMENTS, at=MOMENTS),
        _late((LETTERS,), (Fault.BACKUP, Fault.DEAD_LETTERS), Window.REST, first_at=MOMENTS, at=MOMENTS),
        _late((LETTERS, COPIES), RESTORES, Window.REST, first_at=MOMENTS, at=MOMENTS),
        # They go and come again; or a store that knows nothing is taken in the place of one that knew them.
        _late((LETTERS, LETTERS), (Fault.CRASH, Fault.DEAD_LETTERS), Window.REST, first_at=MOMENTS, at=MOMENTS),
        _late((LETTERS,), (*NEW_STORES, Fault.NEW_CHECKPOINT), Window.REST, first_at=COMPLETES, at=MOMENTS),
        _late((LETTERS, ADOPTS), (Fault.CRASH,), Window.RECOVERY, at=ADOPTION),
        *LEFT_OUT[2:],
        *MOVED,
    ),
)
# As little as reaches every crash point and branch: so that a change cannot leave one unreached without a word.
SHORT = Bound(
    "short",
    (
        Rule((DIES,), (Fault.CRASH,), Window.RECOVERY, first_at=DECIDING, size_max=1, batches_max=1),
        Rule((FAILS,), (Fault.CRASH,), Window.RECOVERY, at=ABORTS, size_max=1, batches_max=1),
        Rule((LOSES,), (Fault.CRASH,), Window.RECOVERY, at=DAMAGES, size_max=1, batches_max=1),
        Rule((ADOPTS,), (Fault.CRASH,), Window.RECOVERY, at=ADOPTION, size_max=1, batches_max=1),
        Rule(
            (UNANSWERED,),
            (Fault.BAD_RECORD, Fault.EMPTY_STAGE),
            Window.RECOVERY,
            first_at=DECIDES,
            size_max=2,
            batches_max=1,
        ),
        Rule(
            (ZOMBIES,), (Fault.WAKE, Fault.WAKE_ONE_STEP), Window.RECOVERY, first_at=DECIDES, size_max=1, batches_max=1
        ),
        Rule((DIES,), (Fault.SLEEP,), Window.RECOVERY, first_at=PREPARED, at=READS_STORE, size_max=1),
        Rule((COPIES,), (Fault.OLD_DATABASE,), Window.REST, first_at=COMPLETES, at=READS_LEDGER, size_max=2),
        Rule((FAILS,), (Fault.JOB_FAILS,), Window.RECOVERY, size_max=1, batches_max=1),
        Rule((FAILS, FAILS), (Fault.JOB_FAILS,), Window.RECOVERY, size_max=1, batches_max=1),
        Rule((UNANSWERED,), (Fault.SLEEP,), Window.RECOVERY, first_at=DECIDES, size_max=2, batches_max=1),
        Rule((UNANSWERED, ASLEEP), (Fault.WAKE,), Window.RECOVERY, first_at=DECIDES, at=COMMITTING, size_max=2),
        Rule((COPIES,), RESTORES, Window.REST, first_at=MOMENTS, at=DECIDES | COMMITS, size_max=1, batches_max=1),
        Rule((COPIES,), RESTORES, Window.REST, first_at=COMPLETES, at=DECIDES, size_max=2, batches_max=1),
        GOES_BACK,
        Rule((COPIES, OLDER), (Fault.STORE_BACK,), Window.REST, first_at=DECIDES, at=COMMITS, size_max=1),
        _late((LETTERS,), (Fault.CRASH, Fault.DEAD_LETTERS), Window.REST, first_at=MOMENTS, at=COMMITS),
        _late((LETTERS, LETTERS), (Fault.DEAD_LETTERS,), Window.REST, first_at=MOMENTS, at=COMMITS),
        _late((LETTERS,), NEW_STORES, Window.REST, first_at=COMPLETES, at=COMMITS),
        *LEFT_OUT,
        Rule((MOVES,), (Fault.CRASH,), Window.RECOVERY, first_at=COMPLETES, size_max=1, batches_max=1),
    ),
)
DEEP = Bound(
    "deep",
    (
        *DEFAULT.rules,
        Rule((SLEEPS,), (Fault.WAKE, Fault.WAKE_ONE_STEP), Window.REST),
        Rule((SLEEPS | RIVALS, frozenset({Fault.WAKE_ONE_STEP})), (Fault.WAKE,), Window.RECOVERY, batches_max=1),
        Rule((SLEEPS,), AGAIN, Window.RECOVERY),
        Rule((SLEEPS, DIES), (Fault.WAKE,), Window.RECOVERY),
        Rule((DIES,), AGAIN, Window.RECOVERY),
        Rule((DIES, frozenset({Fault.SLEEP, Fault.LATE})), (Fault.WAKE,), Window.RECOVERY, batches_max=1),
        Rule((DIES, DIES), AGAIN, Window.RECOVERY, batches_max=1),
        Rule((COPIES,), RESTORES, Window.REST),
    ),
)
BOUNDS = {bound.name: bound for bound in (ONE_FAULT, SHORT, DEFAULT, DEEP)}

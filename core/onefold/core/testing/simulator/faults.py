"""What can strike a simulated pipeline, and where."""

from __future__ import annotations

import enum

from onefold.core.contract import SinkKind


class Crash(BaseException):
    """The process dies here: nothing in it runs on, and nothing it has not written survives."""


class Slept(BaseException):
    """The process stops here, and another starts in its place; this one may go on at any later step."""


class Fault(enum.Enum):
    CRASH = "crash"
    RETRIABLE = "error without effect"
    OUT_OF_RESOURCES = "out of resources"  # a server has no slot or disk to spare: no effect, and it takes a while
    IN_DOUBT = "lost"  # before: the request; after: the answer
    LATE = "lands later"  # the request is given up for lost, and takes effect at a later step
    SLEEP = "sleep"  # the process is paused or cut off, and its successor starts
    WAKE = "wake"  # whatever sleeps goes on: a process to its end, a late request, a late writer
    WAKE_ONE_STEP = "wake for one step"
    ANOTHER_ATTEMPT = "another attempt"  # two attempts of a task prepare; the driver takes the first
    RETRIED_STAGE = "retried stage"  # two attempts of a task prepare; the driver takes the second
    STRAGGLE = "straggle"  # an attempt is given up and another taken; it may prepare at any later step
    ORPHAN = "orphan"  # the driver dies, its writer lives on and may prepare at any later step
    JOB_FAILS = "job fails"  # the writers' job fails with some tasks prepared
    BAD_RECORD = "bad record"  # the writers' job fails for a reason that asking again does not cure
    EXPIRE = "expire"  # work that a two-phase sink had prepared is gone: expired, or rolled back by somebody
    EXPIRE_ONE = "expire one"  # only the oldest transaction of the first such sink is
    EMPTY_STAGE = "empty stage"  # the crash of a last-resource sink's server emptied its stage
    SINK_DOWN = "sink down"  # the first sink is away until the second start from here
    STORE_DOWN = "store down"  # the store answers nothing until the second start from here
    CLOCK_AHEAD = "clock ahead"  # the store's clock jumps ahead
    CLOCK_BACK = "clock back"  # it jumps back, behind all that it has said
    GROW = "grow"  # the topic gets a record, and at the second time a partition
    SWEEP = "sweep"  # the sweep on a timer runs in the same process, or the one that waits goes on to its end
    SWEEP_HALTS = "sweep halts"  # the sweep on a timer starts, and waits after its first effect
    BACKUP = "backup"  # somebody copies the checkpoint, the store and the sinks
    OLD_CHECKPOINT = "old checkpoint"  # the process dies, and starts again over the older copy
    OLD_STORE = "old store"
    OLD_STORE_ADOPTED = "old store, adopted"  # and the operator decides for the destination, not for the newer store
    STORE_GOES_BACK = "store goes back"  # and the process lives: a replica is promoted that had not caught up
    OLD_SINK = "old sink"
    OLD_DATABASE = "old database"  # store and sinks alike
    OLD_DATABASE_CUT_ANEW = "old database, cut anew"  # and what is read again comes in other batches
    OTHER_INPUT = "other input"  # it starts over the older copy, whose ranges stand for other files from here on
    NEW_CHECKPOINT = "new checkpoint"  # the process dies, and its checkpoint directory is deleted
    OTHER_CUT = "other cut"  # the process dies, and a batch that was planned is planned anew over another range
    OTHER_CUT_NEW_CHECKPOINT = "other cut, new checkpoint"
    BATCHES_SKIPPED = "batches skipped"  # the process dies, and Spark's batch numbers go on further up
    PLAN_REPLACED = "plan replaced"  # on an object store, another process's late write replaces the batch's plan
    TOPIC_ANEW = "topic made anew"  # the process dies, and the next batch ends before it starts
    OTHER_START = "other start"  # the process dies, and starts with other starting offsets
    FROM_LEDGER = "from the ledger"  # the process dies, and starts from where the ledger stands
    SECOND_CALL = "second call"  # the process dies, and the job calls the epoch writer twice for its next batch
    NEW_STORE = "new store"  # the process dies, and starts with an empty store
    NEW_STORE_ADOPTED = "new store, adopted"  # and the operator decides for the destination
    STORE_BACK = "store back"  # after an older database was used for a while, the newer store comes back, alone
    RIVAL = "rival"  # the process sleeps, and another host starts the pipeline, with a store and checkpoint of its own
    RIVAL_ADOPTED = "rival, adopted"  # and where it is refused, its operator has it adopt the destination
    SINK_REMOVED = "sink removed"  # the process dies, and starts without its last sink
    SINK_ADDED = "sink added"  # the process dies, and starts with one sink more
    # The process is paused, and an operator moves the positions: skips a record, or empties the sinks and goes back.
    MOVED_AHEAD = "moved ahead"
    MOVED_BACK = "moved back"
    SINKS_WRITTEN = "sinks written anew"  # or writes the sinks into the record, as where they changed
    RESTORED = (
        "restored"  # or restores a savepoint of where it stands: two-phase sinks prepare what state is made of it
    )
    DEAD_LETTERS = "dead letters on or off"  # the process dies, and starts with its sink for dead letters, or without

    @property
    def is_error(self) -> bool:
        """Whether the protocol sees an error, and may ask again."""
        return self in (Fault.RETRIABLE, Fault.OUT_OF_RESOURCES, Fault.IN_DOUBT, Fault.LATE)


BACKUPS = frozenset(
    {
        *(Fault.OLD_CHECKPOINT, Fault.OLD_STORE, Fault.OLD_STORE_ADOPTED, Fault.STORE_GOES_BACK),
        *(Fault.OLD_SINK, Fault.OLD_DATABASE, Fault.OLD_DATABASE_CUT_ANEW, Fault.OTHER_INPUT),
    }
)
MISHAPS = BACKUPS | {
    Fault.NEW_CHECKPOINT,
    Fault.OTHER_CUT,
    Fault.OTHER_CUT_NEW_CHECKPOINT,
    Fault.BATCHES_SKIPPED,
    Fault.TOPIC_ANEW,
    Fault.OTHER_START,
    Fault.FROM_LEDGER,
    Fault.SECOND_CALL,
    Fault.NEW_STORE,
    Fault.NEW_STORE_ADOPTED,
    Fault.STORE_BACK,
    Fault.SINK_REMOVED,
    Fault.SINK_ADDED,
    Fault.DEAD_LETTERS,
}
# What these leave is there when the process that they struck goes on or starts again: its own sweep finds all of it.
AT_ONCE = frozenset(
    {
        *(Fault.CRASH, Fault.RETRIABLE, Fault.IN_DOUBT, Fault.OUT_OF_RESOURCES),
        *(Fault.ANOTHER_ATTEMPT, Fault.RETRIED_STAGE, Fault.JOB_FAILS, Fault.BAD_RECORD),
    }
)
RIVALS = frozenset({Fault.RIVAL, Fault.RIVAL_ADOPTED})
MOVES = frozenset({Fault.MOVED_AHEAD, Fault.MOVED_BACK, Fault.SINKS_WRITTEN, Fault.RESTORED})
TRIALS = frozenset({Fault.SINK_REMOVED, Fault.SINK_ADDED})
SPARK = frozenset({"PlanBatch", "CommitBatch"})
READS = frozenset({"ReadStore", "ReadLedger", "ReadFile", "ListFolder", "FindEpoch", "ListLeftovers", "Verify"})


def can_follow(fault: Fault, point: str, sinks: tuple[SinkKind, ...]) -> bool:
    """Whether `fault` can happen at `point`, after others."""
    match fault:
        case Fault.WAKE | Fault.WAKE_ONE_STEP:
            # After one step is before the next; and an open merge holds the pipeline's row, for which others wait.
            return not point.startswith("after:") and point != "inside:Merge"
        case Fault.OLD_SINK:  # a last-resource sink and the store are one database
            return point.startswith("before:") and any(kind is not SinkKind.LAST_RESOURCE for kind in sinks)
        case Fault.OLD_DATABASE_CUT_ANEW:
            # A batch that both histories cut alike is decided in each, over the same records: where T is the same too,
            # nothing tells one from the other, and nothing needs to but an audit of who committed which part.
            return point.startswith("before:") and set(sinks) == {SinkKind.WRITE_THROUGH}
        case Fault.STORE_BACK:
            return point.startswith("before:") and SinkKind.LAST_RESOURCE not in sinks
        case _ if fault in BACKUPS:
            return point.startswith("before:")
        case _:
            return applies(fault, point, sinks)


def applies(fault: Fault, point: str, sinks: tuple[SinkKind, ...]) -> bool:
    """Whether `fault` can happen at `point`, in the first place. `WAKE` and what needs a backup follow another."""
    when, _, step = point.partition(":")
    is_call = step not in SPARK and step not in ("RunAttempt", "ReadClock", "Pause")  # that raises what it waits for
    match fault:
        case Fault.CRASH:
            return True
        case Fault.RETRIABLE:
            return is_call and (when == "before" or step in ("Merge", "Commit", "Abort"))
        case Fault.OUT_OF_RESOURCES:
            return point in ("before:RunAttempt", "before:Verify", "before:Decide")
        case Fault.IN_DOUBT:
            return is_call and step not in READS and step != "Merge"
        case Fault.LATE:
            return is_call and when == "before" and step not in READS
        case Fault.ANOTHER_ATTEMPT | Fault.RETRIED_STAGE:
            return point == "after:RunAttempt"
        case Fault.STRAGGLE | Fault.ORPHAN | Fault.JOB_FAILS:
            return point == "before:RunAttempt"
        case Fault.BAD_RECORD:  # a writer cannot read it, or the merge is refused for it
            return point in ("before:RunAttempt", "inside:Merge")
        case Fault.EXPIRE | Fault.EXPIRE_ONE:
            return when == "before" and SinkKind.TWO_PHASE in sinks
        case Fault.EMPTY_STAGE:
            return when == "before" and SinkKind.LAST_RESOURCE in sinks
        case Fault.SINK_REMOVED:
            return when == "before" and len(sinks) > 1
        case Fault.RESTORED:
            return when == "before" and SinkKind.TWO_PHASE in sinks
        case Fault.RIVAL | Fault.RIVAL_ADOPTED | Fault.MOVED_AHEAD | Fault.MOVED_BACK | Fault.SINKS_WRITTEN:
            return when == "before"
        case Fault.SLEEP | Fault.SINK_DOWN | Fault.STORE_DOWN | Fault.SWEEP | Fault.SWEEP_HALTS:
            return when == "before"
        case Fault.GROW | Fault.BACKUP | Fault.PLAN_REPLACED | Fault.CLOCK_AHEAD | Fault.CLOCK_BACK:
            return when == "before"
        case Fault.NEW_CHECKPOINT | Fault.OTHER_CUT | Fault.OTHER_CUT_NEW_CHECKPOINT | Fault.BATCHES_SKIPPED:
            return when == "before"
        case Fault.OTHER_START | Fault.FROM_LEDGER | Fault.SECOND_CALL:
            return when == "before"
        case Fault.TOPIC_ANEW | Fault.NEW_STORE | Fault.NEW_STORE_ADOPTED | Fault.SINK_ADDED | Fault.DEAD_LETTERS:
            return when == "before"
        case _:
            return False

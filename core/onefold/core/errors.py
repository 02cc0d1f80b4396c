"""Everything onefold raises on purpose.

    OnefoldError
    ├── ConfigError            a setting is wrong or does not fit the servers: mend it, start again
    │   └── SchemaMismatch     the rows and the destination's table do not fit together
    ├── Retriable              nothing took effect: the same call may be sent again
    │   ├── OutOfResources     a server has no slot, connection or disk to spare: it takes a while until it has
    │   └── WorkLost           prepared work is gone before the decision: the epoch's writers must run again
    ├── InDoubt                the call may or may not have taken effect: only asking again can tell
    └── Terminal               asking again cannot help
        ├── Fenced             a newer generation of this pipeline exists: this process must stop for good
        ├── CheckpointMismatch Spark's checkpoint, the store and the sinks tell different stories
        ├── DataLoss           records are gone, or were passed over, before they reached the destination
        ├── Damaged            an epoch was decided, and a part of it can no longer be committed
        ├── BadRecord          a source record cannot be read as its schema says
        └── InternalError      a rule of onefold's own was broken: a defect, in onefold or in a connector

Every message says what happened, to which epoch, partition or transaction, and what to do.
"""

__all__ = [
    "BadRecord",
    "CheckpointMismatch",
    "ConfigError",
    "Damaged",
    "DataLoss",
    "Fenced",
    "InDoubt",
    "InternalError",
    "OnefoldError",
    "OutOfResources",
    "Retriable",
    "SchemaMismatch",
    "Terminal",
    "WorkLost",
    "exit_code",
]


class OnefoldError(Exception):
    """The root of the tree above. `exit_code` is what a process that dies of it should return."""

    exit_code = 1


class ConfigError(OnefoldError):
    exit_code = 2


class SchemaMismatch(ConfigError):
    pass


class Retriable(OnefoldError):
    exit_code = 75  # sysexits' EX_TEMPFAIL: a supervisor may start the process again


class OutOfResources(Retriable):
    pass


class WorkLost(Retriable):
    pass


class InDoubt(OnefoldError):
    exit_code = 75


class Terminal(OnefoldError):
    exit_code = 70


class Fenced(Terminal):
    exit_code = 73  # its own: supervisors must not restart on it


class CheckpointMismatch(Terminal):
    exit_code = 76


class DataLoss(Terminal):
    exit_code = 77


class Damaged(Terminal):
    exit_code = 78


class BadRecord(Terminal):
    exit_code = 65


class InternalError(Terminal):
    pass


def exit_code(error: BaseException) -> int:
    """The exit status for a process that ends with `error`."""
    return error.exit_code if isinstance(error, OnefoldError) else 1

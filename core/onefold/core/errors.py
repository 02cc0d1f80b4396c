"""Everything onefold raises on purpose.

    OnefoldError
    ├── ConfigError            a setting is wrong or does not fit the servers: correct it and start again
    │   └── SchemaMismatch     the rows and the destination's table do not fit together
    ├── Retriable              nothing took effect: the same call may be sent again
    │   ├── OutOfResources     a server, or this machine, has nothing to spare: wait longer
    │   └── WorkLost           prepared work is gone before the decision: the epoch's writers must run again
    ├── InDoubt                the call may or may not have taken effect: only a second call can tell
    └── Terminal               a second call cannot help
        ├── Fenced             a newer generation of this pipeline exists: this process must stop for good
        ├── CheckpointMismatch the query's checkpoint, the store and the sinks do not agree about what was written
        ├── DataLoss           records were deleted or skipped before they reached the destination
        ├── Damaged            an epoch was decided, and a part of it can no longer be committed
        ├── BadRecord          a source record cannot be read as its schema says
        └── InternalError      an internal check failed: a defect of onefold or of a connector

Every message says what happened, to which epoch, partition or transaction, and what to do. Every error has a code,
which names the situation in one to four words and does not change when the message does (docs/errors.md).
"""

from typing import Self


class OnefoldError(Exception):
    """The root of the tree above. `exit_code` is the exit status of a process that ends with this error.

    The text of an error is its message and, in brackets, its code: `... is the broker up? [kafka-unreachable]`. An
    error that quotes another one quotes its `message`, so that a text has one code, at its end."""

    exit_code = 1

    def __init__(self, code: str, message: str, /) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        behind = "\n" if "\n" in self.message else " "  # and not stuck to the last row of a table
        return f"{self.message}{behind}[{self.code}]"

    def reworded(self, message: str) -> Self:
        """The same error with another message, which says where it happened."""
        return type(self)(self.code, message)

    def retyped(self, kind: type["OnefoldError"]) -> "OnefoldError":
        """The same error as one of another class, which says how it is handled here."""
        return kind(self.code, self.message)


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


def kind_of(error: OnefoldError) -> str:
    """The name of its class in the tree above, by which `named` makes it in another process."""
    return next(str(each.__name__) for each in type(error).__mro__ if each is globals().get(each.__name__))


def named(kind: str, code: str, message: str) -> OnefoldError | None:
    """The error of a class in the tree above; None where there is no such class."""
    found = globals().get(kind)
    return found(code, message) if isinstance(found, type) and issubclass(found, OnefoldError) else None


def exit_code(error: BaseException) -> int:
    """The exit status for a process that ends with `error`."""
    return error.exit_code if isinstance(error, OnefoldError) else 1

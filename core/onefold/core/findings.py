"""What checks and examinations of a pipeline's servers find. They change nothing on the servers.

A start runs the checks before it makes anything, and raises the first error that they find (`passed`). `onefold doctor`
runs the same checks, and prints all that they find.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar, runtime_checkable

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.contract import Committable, Committer, Guarantee
from onefold.core.errors import Damaged, DataLoss, OnefoldError
from onefold.core.invariants import AtomicEpoch, NoLoss, ResolveOnce

T = TypeVar("T")

THIS_MACHINE = "this machine"  # where files are


class Level(enum.Enum):
    FINE = "fine"
    CAUTION = "caution"  # the guarantee holds, and the operator should know
    UNCHECKED = "unchecked"  # a start checks it, and what it needs for that is not known here
    PROBLEM = "problem"  # it breaks the guarantee, or keeps the pipeline from starting


@dataclass(frozen=True, slots=True)
class Making:
    """One thing that the first start makes or alters. `where` is the database, the brokers or the machine, and
    `statement` does it there: SQL, or a command of the system's own shell."""

    where: str
    statement: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `breaks` names the invariants that it breaks, and `error` is what a start raises for it. `makes` is
    what the first start makes or alters, in its order."""

    level: Level
    says: str
    breaks: tuple[str, ...] = ()
    error: OnefoldError | None = None
    makes: tuple[Making, ...] = ()

    def __post_init__(self) -> None:
        is_problem = self.level is Level.PROBLEM
        require(is_problem or not (self.breaks or self.error), f"only a problem breaks anything ({self.says})")

    @classmethod
    def of(cls, error: OnefoldError, *breaks: str) -> Self:
        """The problem that a start raises this error for."""
        if isinstance(error, DataLoss | Damaged):
            breaks = (NoLoss.name,) if isinstance(error, DataLoss) else (NoLoss.name, ResolveOnce.name)
        return cls(Level.PROBLEM, str(error), breaks, error)

    @classmethod
    def making(cls, says: str, where: str, statements: Iterable[str]) -> Self:
        """Something that is not there yet, or not as it has to be, and that the first start mends."""
        return cls(Level.FINE, says, makes=tuple(Making(where, statement) for statement in statements))


Checks = Generator[Finding, None, T]  # a problem is yielded or raised; the value is what the checks found out


def passed(checks: Checks[T]) -> T:
    """The value of checks that find no error. Raises the first error, as a start does."""
    while True:
        try:
            error = next(checks).error
        except StopIteration as end:
            value: T = end.value
            return value
        if error is not None:
            checks.throw(error)


def tried(check: Callable[[], object]) -> Iterator[Finding]:
    """The problem that the check raises, where others can be checked all the same."""
    try:
        check()
    except OnefoldError as error:
        yield Finding.of(error)


@runtime_checkable
class Checked(Protocol):
    """A sink whose start can be checked without one."""

    def checks(self, pipeline: str, schema: pa.Schema | None) -> Checks[Committer | None]:
        """What `recover` and `open` check before they make anything, in their order. What needs the rows is UNCHECKED
        without a `schema`.

        The value is a committer for reading only, as `recover` gives it: None where there is no ledger yet. Raises what
        asking a server raises.
        """
        ...


@runtime_checkable
class Examined(Protocol):
    """A sink that can examine what else its guarantee rests on than what a start checks."""

    def examine(self, pipeline: str, deciding_s: float | None) -> Iterable[Finding]:
        """Without changing anything. `deciding_s`: the longest that one of the pipeline's recent epochs took from its
        opening to its decision, where that is known. Raises what asking a server raises."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Prepared work that is neither committed nor aborted. `costs` says what it holds up, and what ends it."""

    committable: Committable
    age_s: float
    costs: str


@runtime_checkable
class Holding(Protocol):
    """A sink that can list what is prepared of it, and since when."""

    def held(self, pipeline: str) -> Iterable[Held]:
        """Without changing anything. Raises what asking a server raises."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """What a sink writes to, as its server shows it: a table or a topic, which `name` says too.

    `identity` is another one once it was dropped and made anew, `storage` once it was emptied at once, or rewritten.
    Either is empty where the server does not tell.
    """

    name: str
    is_there: bool = True
    identity: str = ""
    storage: str = ""


@runtime_checkable
class Targeting(Protocol):
    """A sink that can look at what it writes to."""

    def target_now(self, pipeline: str) -> Target:
        """Without changing anything. Raises what asking a server raises."""
        ...

    def is_empty(self, pipeline: str) -> bool:
        """Whether the target has no rows at all; False where nobody can tell. Asked of one that is there."""
        ...


def not_promised(guarantee: Guarantee) -> dict[str, str]:
    """The named invariants that a sink with this guarantee does not give, and why. It gives all others."""
    return {} if guarantee.atomic_epoch else {AtomicEpoch.name: "readers may see an epoch part by part"}

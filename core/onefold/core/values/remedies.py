"""The ways out that errors name, in the words of what runs the pipeline: each must be one that can be followed there.

A context variable, as for the log's fields: a rule of the protocol is the same for every runtime, and knows none.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

# How all begins anew, where it is not known what runs the pipeline.
RESET = "start over by `onefold reset --rows` of the pipeline, or under another name with empty tables"


@dataclass(frozen=True, slots=True)
class Remedies:
    """`call` is how `recover` is called, with a place for its argument: an option where it `is_command`. `goes_on` is
    how to start, once, exactly where the destination stands, `again` how to start where nothing is complete, and `anew`
    how all begins anew, with a place for the option that empties the tables. `another` is what helps where a checkpoint
    of Spark's does not fit, with a place for its directory, empty where there is none. `directory` is the checkpoint's,
    once it is known."""

    call: str
    goes_on: str
    again: str
    anew: str
    another: str
    directory: str = "the directory"
    is_command: bool = False

    def recover(self, **way: object) -> str:
        """How to take this one way out: `call writer.recover(accept_damage=7)`."""
        [(name, value)] = way.items()
        if not self.is_command:
            return self.call.format(f"{name}={value}")
        option = f"--{name.replace('_', '-')}"
        return self.call.format(option if value is True else f"{option} {value}")

    def begin_anew(self, *, empties: bool = False) -> str:
        """`empties`: where the rows that are there are to go, too."""
        return self.anew.format(" --rows" if empties else "")

    @property
    def other(self) -> str:
        return self.another.format(self.directory)

    @property
    def adopt(self) -> str:
        """What to do where the destination is right, and the store is lost or older."""
        return (
            f"{self.recover(adopt_ledger=True)}, then {self.goes_on}: the pipeline resumes exactly where the"
            " destination stands"
        )

    @property
    def back(self) -> str:
        """What to do where only the store that the destinations had knows the rest."""
        return (
            "go back to the store that they had, with the checkpoint that belongs to it, and"
            f" {self.recover(adopt_ledger=True)} there: it finishes what it had begun"
        )

    @property
    def other_checkpoint(self) -> str:
        """The further way where an epoch must run again; empty where there is none."""
        return self.other and f"; or, where only the checkpoint is another, {self.other}"


_BEGIN_ANEW = "give the writer another name, empty tables, and a new, empty checkpoint directory"
WRITER = Remedies(  # it has no source whose positions could be set: only the query's own checkpoint goes on
    call="call writer.recover({})",
    goes_on="start the query with the checkpoint directory that belongs to it",
    again="start the query with a new checkpoint directory",
    anew=_BEGIN_ANEW,
    another=f"put the query's own checkpoint directory back; or begin anew: {_BEGIN_ANEW}",
)
SPARK_FLOW = Remedies(
    call="call flow.recover(spark=spark, checkpoint=..., {})",
    goes_on="start with a new checkpoint directory and starting_offsets='ledger'",
    again="start with a new checkpoint directory",
    anew="give the flow another name, empty tables, and a new checkpoint directory",
    another=(
        "start the query with a new, empty checkpoint directory and starting_offsets='ledger' (in a pipeline's file"
        " under [[sources]]): it resumes exactly where the destination stands. Where {} holds no more than a start that"
        " failed so, remove it first"
    ),
)
FLOW = Remedies(
    call="call flow.recover(checkpoint=..., {})",
    goes_on="start the flow again",
    again="start the flow again",
    anew="give the flow another name and empty tables",
    another="",
)

_remedies: ContextVar[Remedies | None] = ContextVar("onefold_remedies", default=None)


def by_command(named: str, runtime: Remedies) -> Remedies:
    """Those of a pipeline that commands know by this name, on that runtime."""
    name = shlex.quote(named).replace("{", "{{").replace("}", "}}")
    recover, reset = f"run `onefold recover {name} {{}}`", f"run `onefold reset {name}{{}}`"
    return replace(runtime, call=recover, anew=reset, is_command=True)


def by_program(runtime: Remedies) -> Remedies:
    """Those of a pipeline that a program runs, on that runtime."""
    return replace(runtime, call="call pipeline.recover({})")


def remedies(otherwise: Remedies = FLOW) -> Remedies:
    """Of the pipeline that this thread is at."""
    return _remedies.get() or otherwise


@contextmanager
def in_words_of(told: Remedies | None) -> Iterator[None]:
    """The ways that errors of the block name are these."""
    before = _remedies.set(told)
    try:
        yield
    finally:
        _remedies.reset(before)

"""Which points of a call are struck: one undisturbed run to count its steps, then one process for each point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from onefold.core.checks import require
from onefold.core.errors import ConfigError, InDoubt, Retriable, WorkLost
from onefold.core.testing.conformance.call_processes import NEVER, Call, CallOutcome, Point, Processes, When
from onefold.core.testing.conformance.promises import Book


@dataclass(slots=True)
class Strike:
    """One run of the call in question. `crash` says where its process was killed."""

    striker: Striker
    call: str
    point: Point
    crash: str = ""
    outcome: CallOutcome = field(default_factory=CallOutcome)
    was_run: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether the caller heard that the call was done: then it must be, whatever happens next."""
        return not self.outcome.struck and self.outcome.error is None

    def run(self, call: Call) -> CallOutcome:
        """The call in its process. It stays unanswered after Retriable and InDoubt; other errors raise."""
        require(not self.was_run, "each strike has one call")
        self.was_run, self.outcome = True, self.striker.processes.run(call, self.point)
        count = self.striker.book.struck(self.call)
        count.steps = max(count.steps, self.outcome.steps)
        if self.point.when is When.BEFORE:
            count.before += 1
            self.crash = "before the call"
        elif self.outcome.struck:
            count.inside += 1
            self.crash = f"inside it, {self.outcome.struck}"
        elif self.point.when is When.NEVER:
            self.crash = "none in the call: it had returned, and its process had ended"
        else:
            count.after += 1
            self.crash = "after it had returned"
        error = self.outcome.error
        if error is not None and (isinstance(error, WorkLost) or not isinstance(error, Retriable | InDoubt)):
            raise error
        return self.outcome


@dataclass(frozen=True, slots=True)
class Striker:
    """`steps_max` bounds the points inside each call, spread evenly; `moments` strike by a timer, in C code too."""

    processes: Processes
    book: Book
    steps_max: int
    moments: int

    def each(self, call: str) -> Iterator[Strike]:
        """The undisturbed run, then every strike. The caller builds its scenario around `strike.run`."""
        calm = Strike(self, call, NEVER)
        yield calm
        require(calm.was_run, "the undisturbed call was not made")
        steps, seconds = calm.outcome.steps, calm.outcome.seconds
        if calm.is_answered and not steps:
            raise ConfigError(
                "no-line-ran",
                f"no line of {call} ran in {', '.join(self.processes.modules)}: name the modules of the sink's or"
                " store's own code with modules=, so that their processes can be killed between two of its lines",
            )
        for point in self._points(steps, seconds):
            strike = Strike(self, call, point)
            yield strike
            require(strike.was_run, "the call that was to be struck was not made")

    def _points(self, steps: int, seconds: float) -> Iterator[Point]:
        yield Point(When.BEFORE)
        count = min(steps, self.steps_max)
        yield from (Point(When.STEP, 1 + i * (steps - 1) // max(count - 1, 1)) for i in range(count))
        yield from (Point(When.MOMENT, seconds * (i + 0.5) / self.moments) for i in range(self.moments))
        yield Point(When.AFTER)

"""Which records are under way, and up to where all are done.

A root is a split of some records, and has a random id; an edge is a batch on its way to an operator, which has one,
too. Whoever has taken a batch acknowledges its edge together with the edges that it has sent: an XOR of ids, in which
each edge is twice. A root whose XOR has come to zero is done, whatever the order in which acknowledgements came.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from onefold.core.checks import present
from onefold.core.positions import Positions, Range
from onefold.core.source import Split

ROOT = 1 << 63  # in the id of each root, and in no run of an epoch
ROOT_ROWS = 1_000
ROOTS_MAX = 256  # under way
TURNS = 3  # without progress, after which a root has failed: two of them are whole

Order = tuple[int, int, Split]  # a root's id, which is its first edge's, too; and what is read, by which node
Splits = Callable[[Range], Mapping[int, Sequence[Split]]]


@dataclass(slots=True)
class Told:
    """What a worker tells since the last time: XORs of roots; those of edges that end in an epoch that its sinks have
    prepared; how many batches its operators have flushed for that; and how many more wait before a sink."""

    xors: Counter[int] = field(default_factory=Counter)
    ended: Counter[int] = field(default_factory=Counter)
    flushed: int = 0
    waiting: int = 0

    def clear(self) -> None:
        self.xors, self.ended, self.flushed, self.waiting = Counter(), Counter(), 0, 0


@dataclass(slots=True)
class _Root:
    """The `number`th of all. In that turn it went on, or one before it. `step` has the roots of its step that are not
    done; what operators flush is of none, and has no split."""

    number: int
    xor: int
    turn: int
    step: set[int] = field(default_factory=set)
    node: int = 0
    split: Split | None = None


class Tracking:
    """Of one driver, from `done_at` on. That moves by steps: `ROOT_ROWS` records of each partition, or all that was
    planned at once where positions are no numbers. `end` and `splits` are the planners'."""

    def __init__(self, end: Callable[[Positions], Positions], splits: Splits, at: Positions, chance: Random) -> None:
        self._end, self._splits, self._chance = end, splits, chance
        self.done_at = at
        self.restart()

    def restart(self) -> None:
        """The workers have lost all that was under way: it is read again."""
        self.restarted_at = self._read_at = self._planned = self.done_at
        self._roots: dict[int, _Root] = {}
        self._steps = deque[tuple[Positions, set[int]]]()  # where each ends
        self._ended: list[Counter[int]] = []
        self._turn, self.turns = 0, TURNS
        self._count, self._moved = 0, inf  # of roots; the first that went on in this turn
        self._waiting = self._flushing = 0
        self._has_flushed = False

    @property
    def is_idle(self) -> bool:
        return not self._roots

    @property
    def is_full(self) -> bool:
        return len(self._roots) >= ROOTS_MAX

    def has_work(self, at: Positions) -> bool:
        """Whether an epoch from there on is worth while: batches wait before sinks, positions are behind, or operators
        have what others have flushed to them."""
        return self._waiting > 0 or self.done_at != at or (self.is_idle and self._has_flushed)

    def next(self) -> list[Order]:
        """The next step's; none where there are no records, or enough are under way. Raises what planners raise."""
        if not self.is_full and self._planned == self._read_at:
            self._planned = self._end(self._read_at)
        if self.is_full or self._planned == self._read_at:
            return []
        at = {name: number for name, number in self._read_at.items if isinstance(number, int)}
        ends = {n: min(to, at.get(n, 0) + ROOT_ROWS) if isinstance(to, int) else to for n, to in self._planned.items}
        end = Positions.of(ends, self._planned.marks)
        splits = self._splits(Range(self._read_at, end))
        step: set[int] = set()
        self._steps.append((end, step))
        self._read_at = end
        return [self._begun(step, node, split) for node, of in splits.items() for split in of]

    def rotate(self) -> list[Order]:
        """The next turn. Returns the splits of roots that have failed, as new ones. Where one goes on, those behind it
        have not: they may wait for it. Each time that some have, the next ones get twice as long, since a batch may
        take longer."""
        for of in self._roots.values():
            if of.number >= self._moved:
                of.turn = self._turn
        self._turn, self._moved = self._turn + 1, inf
        late = self._turn - self.turns
        failed = {root: of for root, of in self._roots.items() if of.split and of.turn <= late}
        for root, of in failed.items():
            del self._roots[root]
            of.step.remove(root)
        self.turns *= 2 if failed else 1
        return [self._begun(of.step, of.node, present(of.split, "it was read")) for of in failed.values()]

    def hear(self, told: Told) -> None:
        self._acknowledge(told.xors)
        self._ended.append(told.ended)
        self._waiting += told.waiting
        self._flushing += told.flushed

    def committed(self) -> None:
        """Until here, what has ended in a sink may be lost."""
        ended, self._ended = self._ended, []
        for xors in ended:
            self._acknowledge(xors)
        self._has_flushed, self._flushing = self._flushing > 0, 0

    def _acknowledge(self, xors: Mapping[int, int]) -> None:
        """Those of roots that have failed are nobody's, and all others may wait behind them. What was flushed in a run
        has all its edges told by the end of that, and nobody asks before."""
        for root, xor in xors.items():
            if root < 0 and root not in self._roots:
                self._add(root, 0)
            of = self._roots.get(root)
            self._moved = min(self._moved, of.number if of else 0)
            if of is not None:
                of.xor ^= xor
                if self._is_done(of):
                    del self._roots[root]
                    of.step.discard(root)
        while self._steps and not self._steps[0][1]:
            self.done_at, _ = self._steps.popleft()

    def _is_done(self, of: _Root) -> bool:
        return of.xor == 0

    def _begun(self, step: set[int], node: int, split: Split) -> Order:
        root = ROOT | self._chance.getrandbits(63)
        self._add(root, root, step, node, split)
        step.add(root)
        return root, node, split

    def _add(self, root: int, xor: int, *of_split: Any) -> None:
        self._count += 1
        self._roots[root] = _Root(self._count, xor, self._turn, *of_split)

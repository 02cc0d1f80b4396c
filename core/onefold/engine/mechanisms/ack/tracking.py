"""Which records are under way, and up to where all are done.

A root is a split of some records, and has a random id; an edge is a batch on its way to an operator, which has one,
too. Whoever has taken a batch acknowledges its edge together with the edges that it has sent: an XOR of ids, in which
each edge is twice. A root whose XOR has come to zero is done, whatever the order in which acknowledgements came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from onefold.core.positions import Positions, Range
from onefold.core.source import Split

__all__ = ["Acker", "Planning", "Told", "Tracking"]

ROOT_ROWS = 1_000
ROOTS_MAX = 256  # under way
BUCKETS = 3
Root = tuple[int, int, Split]  # its id, which is its first edge's, too, and what is read for it: by which node


class Planning(Protocol):
    """What is asked of the planners of all sources."""

    def end(self, start: Positions) -> Positions: ...

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]: ...


@dataclass(frozen=True, slots=True)
class Told:
    """A worker's XORs of roots since the last time; those of edges that end in an epoch that its sinks have prepared;
    how many batches its operators have flushed for that, and whether rows wait before a sink."""

    xors: Mapping[int, int]
    ended: Mapping[int, int] = field(default_factory=dict)
    flushed: int = 0
    waits: bool = False


class Acker:
    """The XOR of each root. One that is not done within two to three turns has failed."""

    def __init__(self) -> None:
        self._xors: dict[int, tuple[int, int]] = {}  # and the turn in which it was begun
        self._turn = 0

    def __len__(self) -> int:
        return len(self._xors)

    def begin(self, root: int, edge: int) -> None:
        self._xors[root] = edge, self._turn

    def acknowledge(self, root: int, xor: int) -> bool:
        """Whether the root is done by that. One that has failed is unknown."""
        before, turn = self._xors.pop(root, (xor, 0))
        if before != xor:
            self._xors[root] = before ^ xor, turn
        return before == xor

    def rotate(self) -> list[int]:
        """The next turn. Returns the roots that have failed. What operators flush is of none that is read again."""
        self._turn += 1
        late = [root for root, (_, turn) in self._xors.items() if root > 0 and turn + BUCKETS <= self._turn]
        for root in late:
            del self._xors[root]
        return late


@dataclass(eq=False, slots=True)
class _Step:
    """Records that were planned together: `end` is where they end, `left` has their roots that are not done."""

    end: Positions
    left: set[int] = field(default_factory=set)


class Tracking:
    """Of one driver, from `done_at` on, which moves over whole steps: `ROOT_ROWS` records of each partition; where
    positions are no numbers, all that is planned at once. `is_quiet`: operators have nothing to flush."""

    def __init__(self, planning: Planning, at: Positions, chance: Random) -> None:
        self._planning, self._chance = planning, chance
        self.done_at = at
        self.restart()

    def restart(self) -> None:
        """The workers have lost all that was under way: it is read again."""
        self._acker = Acker()
        self._read_at = self._planned = self.done_at
        self._steps = deque[_Step]()
        self._reads: dict[int, tuple[_Step, int, Split]] = {}
        self._ended: list[Mapping[int, int]] = []
        self.is_quiet, self._was_idle = True, False

    @property
    def is_idle(self) -> bool:
        return not self._acker

    @property
    def is_full(self) -> bool:
        return len(self._reads) >= ROOTS_MAX

    def next(self) -> Iterator[Root]:
        """The records that come next, while few are under way."""
        while not self.is_full and (end := self._step_end()) != self._read_at:
            splits = self._planning.splits(Range(self._read_at, end))
            self._read_at = end
            self._steps.append(step := _Step(end))
            yield from [self._begun(step, node, split) for node, of in splits.items() for split in of]
            self._move()

    def rotate(self) -> Iterator[Root]:
        """The splits of roots that have failed, as new ones."""
        for root in self._acker.rotate():
            step, node, split = self._reads.pop(root)
            step.left.discard(root)
            yield self._begun(step, node, split)

    def hear(self, told: Told) -> None:
        self._acknowledge(told.xors)
        self._ended.append(told.ended)
        self._was_idle &= not told.flushed

    def flush(self, run: int, workers: int) -> None:
        """Each worker is to flush its operators and have its sinks prepare, and acknowledges an edge of its own of the
        root that stands for that."""
        self._was_idle = self.is_idle
        self._acker.begin(-run, (1 << workers) - 1)

    def committed(self) -> None:
        """Until here what has ended in a sink may be lost."""
        ended, self._ended = self._ended, []
        for xors in ended:
            self._acknowledge(xors)
        self.is_quiet |= self._was_idle and self.is_idle

    def _acknowledge(self, xors: Mapping[int, int]) -> None:
        for root, xor in xors.items():
            if self._acker.acknowledge(root, xor) and root in self._reads:
                self._reads.pop(root)[0].left.discard(root)
        self._move()

    def _move(self) -> None:
        while self._steps and not self._steps[0].left:
            self.done_at = self._steps.popleft().end

    def _step_end(self) -> Positions:
        if self._planned == self._read_at:
            self._planned = self._planning.end(self._read_at)
        read = {name: at for name, at in self._read_at.items if isinstance(at, int)}
        ends = {
            name: min(at, read.get(name, 0) + ROOT_ROWS) if isinstance(at, int) else at
            for name, at in self._planned.items
        }
        return Positions.of(ends, self._planned.marks)

    def _begun(self, step: _Step, node: int, split: Split) -> Root:
        root = self._chance.getrandbits(62) + 1
        self._acker.begin(root, root)
        self._reads[root] = step, node, split
        step.left.add(root)
        self.is_quiet = False
        return root, node, split

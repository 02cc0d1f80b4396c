"""Which records are under way, and up to where all are done.

A root is a split of some records, and has a random id; an edge is a batch on its way to an operator, which has one,
too. Whoever has taken a batch acknowledges its edge together with the edges that it has sent: an XOR of ids, in which
each edge is twice. A root whose XOR has come to zero is done, whatever the order in which acknowledgements came.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from onefold.core.positions import Positions, Range
from onefold.core.source import Split

__all__ = ["Acker", "Planning", "Root", "Told", "Tracking"]

ROOT_ROWS = 1_000
ROOTS_MAX = 256  # under way
BUCKETS = 3
Root = tuple[int, int, Split]  # its id, which is its first edge's, too, and what is read for it: by which node


class Planning(Protocol):
    """What is asked of the planners of all sources."""

    def end(self, start: Positions) -> Positions: ...

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]: ...


def _xors() -> defaultdict[int, int]:
    return defaultdict(int)


@dataclass(slots=True)
class Told:
    """What a worker tells of roots: XORs since the last time; those of edges that end in an epoch that its sinks have
    prepared; how many batches its operators have flushed for that; and how many wait before a sink."""

    xors: defaultdict[int, int] = field(default_factory=_xors)
    ended: defaultdict[int, int] = field(default_factory=_xors)
    flushed: int = 0
    waiting: int = 0

    def clear(self) -> None:
        self.xors.clear()
        self.ended.clear()
        self.flushed = 0


class Acker:
    """The XOR of each root. One that is not done within two to three turns has failed."""

    def __init__(self) -> None:
        self.xors: dict[int, tuple[int, int]] = {}  # and the turn in which it was begun
        self._turn = 0

    def begin(self, root: int, edge: int) -> None:
        self.xors[root] = edge, self._turn

    def acknowledge(self, root: int, xor: int) -> bool:
        """Whether the root is done by that. One that has failed is unknown."""
        before, turn = self.xors.pop(root, (xor, 0))
        if before != xor:
            self.xors[root] = before ^ xor, turn
        return before == xor

    def rotate(self) -> list[int]:
        """The next turn. Returns the roots that have failed; what operators flush is of none that is read again."""
        self._turn += 1
        late = [root for root, (_, turn) in self.xors.items() if root > 0 and turn + BUCKETS <= self._turn]
        self.xors = {root: xor for root, xor in self.xors.items() if root not in late}
        return late


class Tracking:
    """Of one driver, from `done_at` on. That moves by steps: `ROOT_ROWS` records of each partition, or all that was
    planned at once where positions are no numbers. `is_quiet`: operators have nothing to flush."""

    def __init__(self, planning: Planning, at: Positions, chance: Random) -> None:
        self._planning, self._chance = planning, chance
        self.done_at = at
        self.restart()

    def restart(self) -> None:
        """The workers have lost all that was under way: it is read again."""
        self._acker = Acker()
        self.restarted_at = self._read_at = self._planned = self.done_at
        self._steps = deque[tuple[Positions, set[int]]]()  # where each ends, and its roots that are not done
        self._reads: dict[int, tuple[set[int], int, Split]] = {}  # roots, with those of their step
        self._ended: list[dict[int, int]] = []
        self.is_quiet, self._was_idle = True, False

    @property
    def is_idle(self) -> bool:
        return not self._acker.xors

    @property
    def is_full(self) -> bool:
        return len(self._reads) >= ROOTS_MAX

    def has_work(self, at: Positions, waiting: int) -> bool:
        """Whether an epoch from there on is worth while: batches wait before sinks, positions are behind, or operators
        have something to flush."""
        return waiting > 0 or self.done_at != at or (self.is_idle and not self.is_quiet)

    def next(self) -> list[Root]:
        """The next step's; none where there are no records, or enough are under way. Raises what planners raise."""
        if not self.is_full and self._planned == self._read_at:
            self._planned = self._planning.end(self._read_at)
        if self.is_full or self._planned == self._read_at:
            return []
        at = {name: number for name, number in self._read_at.items if isinstance(number, int)}
        ends = {n: min(to, at.get(n, 0) + ROOT_ROWS) if isinstance(to, int) else to for n, to in self._planned.items}
        end = Positions.of(ends, self._planned.marks)
        splits = self._planning.splits(Range(self._read_at, end))
        left: set[int] = set()
        self._steps.append((end, left))
        self._read_at = end
        return [self._begun(left, node, split) for node, of in splits.items() for split in of]

    def rotate(self) -> list[Root]:
        """The splits of roots that have failed, as new ones."""
        failed = [(root, *self._reads.pop(root)) for root in self._acker.rotate()]
        again = [self._begun(left, node, split) for _, left, node, split in failed]
        for root, left, _, _ in failed:
            left.remove(root)
        return again

    def hear(self, told: Told) -> None:
        self._acknowledge(told.xors)
        self._ended.append(dict(told.ended))
        self._was_idle &= not told.flushed

    def flush(self, run: int, workers: int) -> None:
        """Each worker is to flush its operators and have its sinks prepare, and acknowledges an edge of its own of the
        root that stands for that."""
        self._was_idle = self.is_idle
        self._acker.begin(-run, (1 << workers) - 1)

    def committed(self) -> None:
        """Until here, what has ended in a sink may be lost."""
        ended, self._ended = self._ended, []
        for xors in ended:
            self._acknowledge(xors)
        self.is_quiet |= self._was_idle and self.is_idle

    def _acknowledge(self, xors: Mapping[int, int]) -> None:
        for root, xor in xors.items():
            if self._acker.acknowledge(root, xor) and root in self._reads:
                self._reads.pop(root)[0].remove(root)
        while self._steps and not self._steps[0][1]:
            self.done_at, _ = self._steps.popleft()

    def _begun(self, left: set[int], node: int, split: Split) -> Root:
        root = self._chance.getrandbits(62) + 1
        self._acker.begin(root, root)
        self._reads[root] = left, node, split
        left.add(root)
        self.is_quiet = False
        return root, node, split

"""What all backends have in common: where they store, whose key groups they have, and the operators' lists."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from onefold.core.errors import CheckpointMismatch
from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.arrow_entries import Entries, from_ipc, to_ipc
from onefold.engine.state.snapshot import OPERATOR, Draft, Footer, Piece, footers_for, read_part
from onefold.engine.state.state_backend import StateSpec, StateTables, Value
from onefold.engine.state.storage import Storage

__all__ = ["BaseBackend", "Delta", "OneFrozen", "list_parts", "mark_kept"]


@dataclass(slots=True, eq=False)
class Delta:
    """What one `freeze` took; a backend adds its own."""

    epoch: int
    lists: list[tuple[StateSpec, list[Value]]]


class BaseBackend:
    """A base class; a backend adds tables, `freeze` and `_store`. `generation` is the pipeline's."""

    name: str

    def __init__(self, storage: Storage, generation: int, max_parallelism: int = MAX_PARALLELISM) -> None:
        self._storage = storage
        self._generation = generation
        self._max_parallelism = max_parallelism
        self._groups = range(max_parallelism)
        self._operators: dict[StateSpec, Callable[[], Sequence[Value]]] = {}
        self._earlier: dict[StateSpec, list[list[Value]]] = {}
        self._unstored: deque[Delta] = deque()  # the oldest first
        self._storing = threading.Lock()

    def operator(self, spec: StateSpec, content: Callable[[], Sequence[Value]]) -> None:
        self._operators[spec] = content

    def earlier(self, spec: StateSpec) -> list[list[Value]]:
        return self._earlier.get(spec, [])

    def _store(self, deltas: Sequence[Delta], epoch: int) -> str:
        """Store all of them as one snapshot of that epoch, or raise and change nothing."""
        raise NotImplementedError

    def _begin(self, handles: Sequence[str], key_groups: Collection[int]) -> list[tuple[Footer, Piece]]:
        """Take the key groups over; the operators' lists are restored."""
        self._groups = range(min(key_groups), max(key_groups) + 1)
        found = footers_for(self._storage, handles, self._groups, self.name, self._max_parallelism)
        for footer, own in found:
            for part in (part for part in footer.parts if part.what == OPERATOR):
                entries = from_ipc(read_part(self._storage, own.name, part), None, self._max_parallelism)
                self._earlier.setdefault(part.spec, []).append([v for v in entries.values if v is not None])
        return found

    def _lists(self) -> list[tuple[StateSpec, list[Value]]]:
        return [(spec, list(content())) for spec, content in self._operators.items()]

    def _footer(self, epoch: int, pieces: Iterable[Piece]) -> Footer:
        first, end = self._groups.start, self._groups.stop
        return Footer(self.name, epoch, first, end, self._max_parallelism, tuple(pieces))


@dataclass(slots=True, eq=False)
class OneFrozen:
    """Implements Frozen."""

    backend: BaseBackend
    delta: Delta | None
    handle: str = ""

    def store(self) -> str:
        backend = self.backend
        with backend._storing:
            if self.delta is not None:
                older = list(backend._unstored)
                due = older[: older.index(self.delta) + 1]
                self.handle = backend._store(due, self.delta.epoch)
                for _ in due:
                    backend._unstored.popleft()
                self.delta = None
            return self.handle

    def release(self) -> None:
        """What is not stored stays until a later snapshot is, which needs it."""


def mark_kept(backend: StateTables, spec: StateSpec, kept: str, description: str = "") -> None:
    """Have snapshots say what is kept. Raises CheckpointMismatch where those that were restored say something else:
    that would be taken for what is kept now, or keys of another form would not be found."""
    for _, before, *_ in (entry for part in backend.earlier(spec) for entry in part):
        if before != kept:
            raise CheckpointMismatch(
                "state-operator-changed",
                f"the operator {spec.uid!r} keeps {kept}, and its state is of {before}. Nothing was written. Give"
                " the operator another uid, under which it begins without state; or, where columns have other names or"
                " types only, give them the earlier ones before it: select(earlier=pc.field('now').cast(...))",
            )
    backend.operator(spec, lambda: [(spec.uid, kept, description)])


def list_parts(lists: Iterable[tuple[StateSpec, Sequence[Value]]]) -> Iterator[Draft]:
    for spec, items in lists:
        keys = [(number,) for number in range(len(items))]
        if items:
            yield spec, OPERATOR, len(items), to_ipc(Entries(keys, [()] * len(items), items))

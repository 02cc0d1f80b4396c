"""What all backends have in common: where they store, whose key groups they have, and the operators' lists."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from onefold.engine.key_groups import MAX_PARALLELISM
from onefold.engine.state.arrow_entries import Entries, from_ipc, to_ipc
from onefold.engine.state.snapshot import OPERATOR, Draft, Footer, Piece, footers_for, read_part
from onefold.engine.state.state_backend import Migrations, StateKind, StateSpec, Value
from onefold.engine.state.storage import Storage


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

    def specs(self) -> Sequence[StateSpec]:
        """The keyed states that it has entries of, or had, as it keeps them."""
        raise NotImplementedError

    def lists(self) -> dict[StateSpec, list[list[Value]]]:
        """The operators' lists that were restored."""
        return self._earlier

    def adopt(self, spec: StateSpec, lists: Sequence[Sequence[Value]]) -> None:
        """Have `earlier` give these, as if they had been restored, and snapshots have them."""
        self._earlier[spec] = [[*each] for each in lists]
        self._operators[spec] = lambda: [value for each in lists for value in each]

    def _store(self, deltas: Sequence[Delta], epoch: int) -> str:
        """Store all of them as one snapshot of that epoch, or raise and change nothing."""
        raise NotImplementedError

    def _begin(
        self, handles: Sequence[str], key_groups: Collection[int], migrations: Migrations
    ) -> list[tuple[Footer, Piece]]:
        """Take the key groups over; the operators' lists are restored."""
        self._groups = range(min(key_groups), max(key_groups) + 1)
        found = footers_for(self._storage, handles, self._groups, self.name, self._max_parallelism)
        for footer, own in found:
            for part in (part for part in footer.parts if part.what == OPERATOR):
                is_of_others = footer.end <= self._groups.start or self._groups.stop <= footer.first
                if is_of_others and part.spec.kind is StateKind.CLOCKS:
                    continue  # where barriers overtake, each subtask has clocks of its own
                entries = from_ipc(read_part(self._storage, own.name, part), None, self._max_parallelism)
                items = [value for value in entries.values if value is not None]
                spec: StateSpec | None = part.spec
                if (migration := migrations.get(part.spec)) is not None:
                    spec, items = migration.target, migration.listed(items)
                if spec is not None:
                    self._earlier.setdefault(spec, []).append(items)
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


def list_parts(lists: Iterable[tuple[StateSpec, Sequence[Value]]]) -> Iterator[Draft]:
    for spec, items in lists:
        keys = [(number,) for number in range(len(items))]
        if items:
            yield spec, OPERATOR, len(items), to_ipc(Entries(keys, [()] * len(items), items))

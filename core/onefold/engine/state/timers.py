"""The timers of one operator in one subtask and one clock: entries of a TIMERS table, and an index by time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from onefold.engine.state.codec import encode
from onefold.engine.state.state_backend import Key, StateTable

__all__ = ["Timers"]


class Timers:
    """Times are in milliseconds since 1970. The index is in memory with every backend; it is built from the table."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._keys: dict[int, set[Key]] = {}
        self._times: list[int] = []  # a heap of the times in `_keys`, and of some that are gone from it
        for key, (at_ms,), _ in table.scan():
            self._note(key, at_ms)

    def register(self, key: Key, at_ms: int) -> None:
        """A timer that is there already stays one."""
        self._table.put(key, (), (at_ms,))
        self._note(key, at_ms)

    def delete(self, key: Key, at_ms: int) -> None:
        self._table.delete(key, (at_ms,))
        keys = self._keys.get(at_ms, set())
        keys.discard(key)
        if not keys:
            self._keys.pop(at_ms, None)

    def of(self, key: Key) -> Iterator[int]:
        """The times of one key, ascending."""
        return (at_ms for (at_ms,), _ in self._table.items(key))

    def next_ms(self) -> int | None:
        while self._times and self._times[0] not in self._keys:
            heapq.heappop(self._times)
        return self._times[0] if self._times else None

    def pop_expired(self, up_to_ms: int) -> list[tuple[int, Key]]:
        """All timers up to that time, and remove them: by time, and at the same time in an order of the keys that a
        restore does not change. What is registered from now on is for the next call, if it is past already."""
        expired: list[tuple[int, Key]] = []
        while (at_ms := self.next_ms()) is not None and at_ms <= up_to_ms:
            keys = self._keys.pop(at_ms)
            expired += [(at_ms, key) for key in (keys if len(keys) == 1 else sorted(keys, key=encode))]
        for at_ms, key in expired:
            self._table.delete(key, (at_ms,))
        return expired

    def _note(self, key: Key, at_ms: int) -> None:
        if at_ms not in self._keys:
            self._keys[at_ms] = set()
            heapq.heappush(self._times, at_ms)
        self._keys[at_ms].add(key)

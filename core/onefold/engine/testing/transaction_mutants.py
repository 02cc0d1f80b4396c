"""Ways to break the mechanism `transaction`, each of which its world must notice: what is replaced, and by what."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from onefold.core.positions import Positions, Range
from onefold.engine.driver.fleet import share
from onefold.engine.mechanisms.transaction import database
from onefold.engine.mechanisms.transaction.channels import HopChannel
from onefold.engine.mechanisms.transaction.database import HopDatabase
from onefold.engine.mechanisms.transaction.hop import Hop, HopInput
from onefold.engine.mechanisms.transaction.hops import Hops
from onefold.engine.mechanisms.transaction.last_hop import OutboxSource
from onefold.engine.testing.model_fleet import FleetSubject


def _in_two(first: Sequence[str], then: Sequence[str]) -> Callable[[Hop], bool]:
    """A step whose parts are two transactions."""

    def step(self: Hop) -> bool:
        before = [each.taken for each in self._inputs]
        items = [(each.port, item) for each in self._inputs for item in each.take(1 << 20)]
        moved = [each for each, was in zip(self._inputs, before, strict=True) if each.taken != was]
        now_ms = max(self._now_ms(), self._time_ms)
        timer_ms = self._operators.timer_ms()
        if not moved and (timer_ms is None or timer_ms > now_ms):
            return False
        self._number, self._time_ms = self._number + 1, now_ms

        def do(part: str) -> None:
            if part == "sends":
                self._process(items)
            if part == "keeps":
                self._store.put(self._name, (self._number, now_ms, self._save(self._number)))
            if part == "takes":
                for each in moved:
                    self._store.put(each.name, each.taken)

        for parts in (first, then):
            with self._store.writing():
                for part in parts:
                    do(part)
        return True

    return step


def _again(self: HopInput, store: HopDatabase, channel: HopChannel, port: int = 0, schema: Any = None) -> None:
    """Takes from the begin of what is there, at each start."""
    self._store, self._channel, self._schema = store, channel, schema
    self.port, self.name = port, f"taken {channel.name}"
    first = store.sent_after(channel, 0, 1)
    self.taken = (first[0][0] - 1 if first else store.get(self.name, (0, 0, 0))[0], 0, 0)


def _unsynced(self: HopDatabase, statement: str, *values: Any) -> list[Any]:
    with self._reaching():
        found = self._db.execute(statement, values).fetchall()
        if statement.startswith("CREATE"):
            self._db.execute("PRAGMA synchronous=OFF")
    return found


def _all_sent(self: HopDatabase) -> dict[str, int]:
    return {each.name: number for each in self._outgoing if (number := self.sent(each))}


class _Unlocked:
    def __init__(self, root: Any, name: str) -> None:
        (root / name).mkdir(parents=True, exist_ok=True)

    def lock(self, _within_s: float) -> int:
        return os.open(os.devnull, os.O_RDONLY)


def _positions_first(self: Hops, end: Positions) -> None:
    splits = self._planners.splits(Range(self._at, end))
    with self.database.writing():
        self.database.put("at", end.to_json())
    with self.database.writing():
        _send_all(self, splits)
    self._at = end


def _positions_last(self: Hops, end: Positions) -> None:
    splits = self._planners.splits(Range(self._at, end))
    with self.database.writing():
        _send_all(self, splits)
    with self.database.writing():
        self.database.put("at", end.to_json())
    self._at = end


def _send_all(self: Hops, splits: Any) -> None:
    for (chain, index), channel in self.channels.splits.items():
        for split in share(splits[self._plan.chains[chain].head.number], index, self._workers):
            self.database.send(channel, (0, pickle.dumps(split)))


def _delivered_early(self: OutboxSource, start: Positions) -> Positions:
    self._hops.look()
    end = self.latest(start)
    self.completed(end)
    return end


_REPLACED: dict[str, tuple[Any, str, Any]] = {
    "what is taken is committed before the bundle": (Hop, "step", _in_two(("takes",), ("sends", "keeps"))),
    "what is taken is committed after the bundle": (Hop, "step", _in_two(("sends", "keeps"), ("takes",))),
    "what is sent shows before the state": (Hop, "step", _in_two(("sends",), ("keeps", "takes"))),
    "the state is not in the bundle's transaction": (Hop, "step", _in_two(("sends", "takes"), ("keeps",))),
    "a repeat is not dropped": (HopInput, "__init__", _again),
    "what was sent is forgotten before its receiver has it": (HopDatabase, "_forgettable", _all_sent),
    "a transaction is not synced": (HopDatabase, "run", _unsynced),
    "a second process has the database": (database, "OwnFolder", _Unlocked),
    "positions are committed before their splits": (Hops, "_send", _positions_first),
    "positions are committed after their splits": (Hops, "_send", _positions_last),
    "sinks have what no epoch has decided": (OutboxSource, "end", _delivered_early),
}
MUTANTS_OF_TRANSACTION = {name: FleetSubject(replaced=(each,)) for name, each in _REPLACED.items()}

"""What a destination that is written through was told: the ledger of its sink, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from onefold.core.contract import Announcement, LedgerEntry
from onefold.core.positions import Positions, Range

__all__ = ["Notes", "State", "entry_from", "entry_to"]


def entry_to(entry: LedgerEntry) -> bytes:
    values = {
        "epoch": entry.epoch,
        "generation": entry.generation,
        "timestamp_ms": entry.timestamp_ms,
        "positions": entry.positions.to_json(),
        "store_id": entry.store_id,
    }
    return json.dumps(values).encode()


def entry_from(text: bytes) -> LedgerEntry:
    values = json.loads(text)
    return LedgerEntry(**values | {"positions": Positions.from_json(values["positions"])})


@dataclass(frozen=True, slots=True)
class State:
    """The ledger row, and the newest announcement."""

    entry: LedgerEntry | None = None
    announced: Announcement | None = None

    @property
    def generation(self) -> int:
        """The newest that either names."""
        return max((e.generation for e in (self.entry, self.announced) if e is not None), default=0)

    @property
    def epoch(self) -> int:
        """The furthest that either names."""
        return max((e.epoch for e in (self.entry, self.announced) if e is not None), default=0)

    def after(self, note: State, generation: int) -> State:
        """What stands once that note, of that generation, lands upon this: a newer one has fenced it."""
        return self if self.generation > generation else self.joined(note)

    @property
    def ends(self) -> tuple[Positions, ...]:
        """Up to where rows were written, or may have been."""
        told = () if self.announced is None else (self.announced.range.end,)
        return told if self.entry is None else (self.entry.positions, *told)

    def joined(self, other: State) -> State:
        """The further of the two, each for itself: by epoch, then generation. Of two that are equally far this one
        stands, and whoever noted the other finds out when it reads what stands."""
        entries = [e for e in (self.entry, other.entry) if e is not None]
        told = [a for a in (self.announced, other.announced) if a is not None]
        return State(
            max(entries, key=lambda e: (e.epoch, e.generation), default=None),
            max(told, key=lambda a: (a.epoch, a.generation, a.is_written), default=None),
        )

    def to_json(self) -> bytes:
        told = self.announced
        announced = None
        if told is not None:
            ends = {"start": told.range.start.to_json(), "end": told.range.end.to_json()}
            announced = asdict(told) | {"range": ends}
        entry = None if self.entry is None else entry_to(self.entry).decode()
        return json.dumps({"entry": entry, "announced": announced}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> State:
        values = json.loads(text)
        entry, told = values["entry"], values["announced"]
        if told is not None:
            span = Range(Positions.from_json(told["range"]["start"]), Positions.from_json(told["range"]["end"]))
            told = Announcement(**told | {"range": span})
        return cls(None if entry is None else entry_from(entry.encode()), told)


class Notes(Protocol):
    """Where the state of one sink of one pipeline is kept. Every call may be repeated, by any process.

    What was noted only goes forward: whatever lands late or out of turn changes nothing that is beyond it, nor anything
    once a newer generation has noted something.
    """

    def read(self) -> State:
        """All that the destination says by now."""
        ...

    def others(self) -> Mapping[str, State]:
        """What other pipelines' sinks have noted that write to the same place, by pipeline."""
        ...

    def write(self, state: State, generation: int) -> State:
        """Note it, as that generation, and return what stands then: this, unless somebody went further.

        Raises InDoubt where it is not known whether it was noted.
        """
        ...

    def close(self) -> None: ...

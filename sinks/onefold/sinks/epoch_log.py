"""What a destination that is written through was told: the ledger of its sink, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from onefold.core.contract import Announcement, LedgerEntry
from onefold.core.positions import Positions, Range


class Unreadable(ValueError):
    """A text in the place of a ledger that no sink wrote."""


def checked(text: bytes, **kinds: Any) -> dict[str, Any]:
    """The JSON object that a text is, with exactly these values of these types. Raises Unreadable."""
    return _checked(parsed(text), kinds)


def parsed(text: str | bytes) -> object:
    """The JSON value that a text is. Raises Unreadable."""
    try:
        said: object = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable("it is not JSON") from None
    return said


def _checked(said: object, kinds: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(said, dict) or said.keys() != kinds.keys():
        raise Unreadable(f"it is not an object of {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(said[name], kind) or isinstance(said[name], bool) is not (kind is bool):
            raise Unreadable(f"its {name} is of another type")
        if kind is int and not 0 <= said[name] <= _NUMBER_MAX:
            raise Unreadable(f"its {name} is beyond what a sink counts to")
    return said


def _positions(text: str) -> Positions:
    flat = parsed(text)
    if not isinstance(flat, dict) or not all(type(value) in (int, str) for value in flat.values()):
        raise Unreadable("its positions are no offsets by partition")
    return Positions.from_flat(flat)


_NUMBER_MAX = 2**63 - 1
_ANNOUNCED = {"epoch": int, "generation": int, "timestamp_ms": int, "range": dict, "is_written": bool}


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
    """Raises Unreadable."""
    values = checked(text, epoch=int, generation=int, timestamp_ms=int, positions=str, store_id=str)
    return LedgerEntry(**values | {"positions": _positions(values["positions"])})


@dataclass(frozen=True, slots=True)
class LedgerState:
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

    def after(self, note: LedgerState, generation: int) -> LedgerState:
        """What stands once that note, of that generation, lands upon this: a newer one has fenced it."""
        return self if self.generation > generation else self.joined(note)

    @property
    def ends(self) -> tuple[Positions, ...]:
        """Up to where rows were written, or may have been."""
        told = () if self.announced is None else (self.announced.range.end,)
        return told if self.entry is None else (self.entry.positions, *told)

    def joined(self, other: LedgerState) -> LedgerState:
        """The further of the two, each for itself: by epoch, then generation. Of two that are equally far this one
        stands, and whoever noted the other finds out when it reads what stands."""
        entries = [e for e in (self.entry, other.entry) if e is not None]
        told = [a for a in (self.announced, other.announced) if a is not None]
        return LedgerState(
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
    def from_json(cls, text: bytes) -> LedgerState:
        """Raises Unreadable."""
        values = checked(text, entry=str | None, announced=dict | None)
        entry, told = values["entry"], values["announced"]
        if told is not None:
            inner = _checked(told, _ANNOUNCED)
            ends = _checked(inner["range"], {"start": str, "end": str})
            told = Announcement(**inner | {"range": Range(_positions(ends["start"]), _positions(ends["end"]))})
        return cls(None if entry is None else entry_from(entry.encode()), told)


class EpochLog(Protocol):
    """Where the state of one sink of one pipeline is kept. Every call may be repeated, by any process.

    What was noted only goes forward: whatever lands late or out of turn changes nothing that is beyond it, nor anything
    once a newer generation has noted something.
    """

    def read(self) -> LedgerState:
        """All that the destination says by now."""
        ...

    def others(self) -> Mapping[str, LedgerState]:
        """What other pipelines' sinks have noted that write to the same place, by pipeline."""
        ...

    def write(self, state: LedgerState, generation: int) -> LedgerState:
        """Note it, as that generation, and return what stands then: this, unless somebody went further.

        Raises InDoubt where it is not known whether it was noted.
        """
        ...

    def close(self) -> None: ...

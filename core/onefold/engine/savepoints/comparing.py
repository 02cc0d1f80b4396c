"""What two savepoints of a flow differ in, state by state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa

from onefold.core import ConfigError
from onefold.core.checks import present
from onefold.engine.savepoints.reading import SavepointReader
from onefold.engine.savepoints.saved_tables import entries_of, readable
from onefold.engine.savepoints.savepoint import SavedState
from onefold.engine.state.state_backend import StateKind

ROWS_AT_ONCE = 1_000_000  # of a side: the digests of so many are held


@dataclass(frozen=True, slots=True)
class StateDifference:
    """Of one state: how many rows each side has, None where it has no such state; and how many keys are only in the
    second, only in the first, and in both with other values."""

    uid: str
    name: str
    kind: str
    before: int | None
    after: int | None
    added: int = 0
    removed: int = 0
    changed: int = 0


def differences(first: SavepointReader, second: SavepointReader) -> Iterator[StateDifference]:
    """Of every state that one of them has, in the order of the first. Each file is read once for every million rows of
    its state. Raises ConfigError where one is damaged, or has state in another form than tables."""
    sides = [_states(reader) for reader in (first, second)]
    for of in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get(of) for side in sides)
        parts = max(state.rows for state in (before, after) if state is not None) // ROWS_AT_ONCE + 1
        added = removed = changed = 0
        for part in range(parts):
            old, new = _rows(first, before, part, parts), _rows(second, after, part, parts)
            added += len(new.keys() - old.keys())
            removed += len(old.keys() - new.keys())
            changed += sum(new[key] != value for key, value in old.items() if key in new)
        yield StateDifference(*of, _count(before), _count(after), added, removed, changed)


def _count(state: SavedState | None) -> int | None:
    return None if state is None else state.rows


def _states(reader: SavepointReader) -> dict[tuple[str, str, str], SavedState]:
    flow = reader.savepoint.flow
    if flow is None and reader.savepoint.keeps_state:
        raise ConfigError(
            "savepoint-of-a-query",
            f"savepoint {reader.savepoint.name!r} is a query's checkpoint, whose state is in Spark's own form, of which"
            " no differences are told. `onefold savepoint show` says where it stands",
        )
    return {(each.uid, each.name, each.kind): each for each in (flow.states if flow is not None else ())}


def _rows(reader: SavepointReader, state: SavedState | None, part: int, parts: int) -> dict[int, int]:
    """A part of the keys: their digests, and the sums of those of what they have. A key of blocks may have several
    rows, in any order."""
    found: dict[int, int] = {}
    for path in state.files if state is not None else ():
        for key, value in _pairs(reader.table(path), present(state, "it has files")):
            at = _digest(key)
            if at % parts == part:
                found[at] = found.get(at, 0) + _digest(value)
    return found


def _pairs(table: pa.Table, state: SavedState) -> Iterable[tuple[object, object]]:
    """Of each row that by which it is found, and what it has. The numbers of blocks are of no meaning."""
    if state.kind not in (StateKind.ROWS.value, StateKind.BLOCKS.value):
        entries = entries_of(table)
        return zip(zip(entries.keys, entries.subs, strict=True), entries.values, strict=True)
    columns = [column.to_pylist() for column in readable(table).columns]
    if state.kind == StateKind.BLOCKS.value:
        del columns[1]
    keys = state.keys + (state.kind == StateKind.BLOCKS.value)
    return zip(_tuples(columns[:keys], len(table)), _tuples(columns[keys:], len(table)), strict=True)


def _tuples(columns: Sequence[Sequence[object]], rows: int) -> Iterable[tuple[object, ...]]:
    return zip(*columns, strict=True) if columns else [()] * rows


def _digest(value: object) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=16).digest(), "big")

"""What joins are to give, in plain Python: loops over rows, epoch by epoch. Rows are (key, at, amount); those with an
amount below 0 are of the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timed_rows import time_of
from window_model import Partitions, us_of

Row = dict[str, Any]
Kept = tuple[Any, int, int]  # key, microseconds, amount


class JoinModel:
    def __init__(self, how: str, times: Partitions) -> None:
        self._how, self._times = how, times
        self._left: list[Kept] = []
        self._right: list[Kept] = []

    def epoch(self, rows: Mapping[str, Sequence[Any]], now_s: float, is_last: bool) -> tuple[list[Row], list[Row]]:
        before = self._times.watermark_us
        came = [(key, us_of(at), amount) for of in rows.values() for key, at, amount in of]
        late = [row for row in came if self._is_late(row[1], before)]
        taken = [row for row in came if self._is_taken(row[1], before)]
        self._times.end_epoch(rows, round(now_s * 1_000), is_last)
        left, right = [row for row in taken if row[2] >= 0], [row for row in taken if row[2] < 0]
        found = self._joined(left, right, before, self._times.watermark_us)
        return found, [{"key": key, "at": time_of_us(us), "amount": amount} for key, us, amount in late]

    def _is_late(self, us: int, before: int) -> bool:
        return us < before

    def _is_taken(self, us: int, before: int) -> bool:
        return not self._is_late(us, before)

    def _joined(self, left: list[Kept], right: list[Kept], before: int, now: int) -> list[Row]:
        raise NotImplementedError


class WithinModel(JoinModel):
    def __init__(self, before_us: int, after_us: int, times: Partitions) -> None:
        super().__init__("inner", times)
        self._before_us, self._after_us = before_us, after_us

    def _is_late(self, us: int, before: int) -> bool:
        return us < before - self._before_us - self._after_us

    def _joined(self, left: list[Kept], right: list[Kept], before: int, now: int) -> list[Row]:
        del now
        kept_left = [row for row in self._left if row[1] >= before - self._after_us]
        kept_right = [row for row in self._right if row[1] >= before - self._before_us]
        pairs = [(one, other) for one in left for other in (*kept_right, *right)]
        pairs += [(one, other) for one in kept_left for other in right]
        self._left, self._right = [*kept_left, *left], [*kept_right, *right]
        return [
            pair(one, other)
            for one, other in pairs
            if one[0] == other[0] is not None and -self._before_us <= other[1] - one[1] <= self._after_us
        ]


class WindowsModel(JoinModel):
    def __init__(self, size_us: int, slide_us: int, offset_us: int, how: str, times: Partitions) -> None:
        super().__init__(how, times)
        self._size_us, self._slide_us, self._offset_us = size_us, slide_us, offset_us

    def _ends(self, us: int) -> list[int]:
        start = self._offset_us + (us - self._offset_us) // self._slide_us * self._slide_us
        return [at + self._size_us for at in range(start, us - self._size_us, -self._slide_us)]

    def _is_late(self, us: int, before: int) -> bool:
        return bool(ends := self._ends(us)) and max(ends) <= before

    def _is_taken(self, us: int, before: int) -> bool:
        return any(end > before for end in self._ends(us))

    def _joined(self, left: list[Kept], right: list[Kept], before: int, now: int) -> list[Row]:
        self._left += left
        self._right += right
        found = []
        for end in sorted({end for row in (*self._left, *self._right) for end in self._ends(row[1])}):
            if not before < end <= now:
                continue
            lefts = [row for row in self._left if end in self._ends(row[1])]
            rights = [row for row in self._right if end in self._ends(row[1])]
            pairs: list[tuple[Kept | None, Kept | None]] = []
            pairs += [(one, other) for one in lefts for other in rights if one[0] == other[0] is not None]
            if self._how in ("left", "full"):
                pairs += [(one, None) for one in lefts if all(one is not each for each, _ in pairs)]
            if self._how in ("right", "full"):
                pairs += [(None, other) for other in rights if all(other is not each for _, each in pairs)]
            bounds = {"window_start": time_of_us(end - self._size_us), "window_end": time_of_us(end)}
            found += [pair(one, other, bounds) for one, other in pairs]
        return found


class AsOfModel(JoinModel):
    def __init__(self, how: str, times: Partitions) -> None:
        super().__init__(how, times)
        self._passed: dict[Any, Kept] = {}

    def _is_late(self, us: int, before: int) -> bool:
        del us, before
        return False  # it has no such output

    def _joined(self, left: list[Kept], right: list[Kept], before: int, now: int) -> list[Row]:
        for row in right:
            if row[1] < before:
                self._pass(row)
        found = [(one, self._newest(one, [])) for one in left if one[1] < before]
        self._left += [row for row in left if row[1] >= before]
        self._right += [row for row in right if row[1] >= before]
        new = [row for row in self._right if row[1] < now]
        found += [(one, self._newest(one, new)) for one in self._left if one[1] < now]
        for row in new:
            self._pass(row)
        self._left = [row for row in self._left if row[1] >= now]
        self._right = [row for row in self._right if row[1] >= now]
        return [pair(one, other) for one, other in found if other is not None or self._how == "left"]

    def _pass(self, row: Kept) -> None:
        known = self._passed.get(row[0])
        if row[0] is not None and (known is None or row[1] >= known[1]):
            self._passed[row[0]] = row

    def _newest(self, one: Kept, new: list[Kept]) -> Kept | None:
        known = [row for row in (self._passed.get(one[0]),) if row is not None]
        fits = [row for row in (*known, *new) if row[0] == one[0] is not None and row[1] <= one[1]]
        return max(enumerate(fits), key=lambda each: (each[1][1], each[0]))[1] if fits else None


def pair(one: Kept | None, other: Kept | None, bounds: Row | None = None) -> Row:
    key = one[0] if one is not None else None if other is None else other[0]
    row = {"key": key, **(bounds or {})}
    for of, suffix in ((one, ""), (other, "_right")):
        row |= {f"at{suffix}": None if of is None else time_of_us(of[1])}
        row |= {f"amount{suffix}": None if of is None else of[2]}
    return row


def time_of_us(us: int) -> Any:
    return time_of(us / 1_000_000)

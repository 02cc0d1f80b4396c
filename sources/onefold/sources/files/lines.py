"""The lines of a part of a file, some at a time, with the places where they begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa

__all__ = ["LineBatch", "lines_of"]

_BLOCK = 4 << 20
_CUT = 768 << 10  # what is kept of a line that is too long, for a dead letter
_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Lines without their newlines, and the bytes at which they begin. `too_long`: of which, how long they are."""

    values: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    too_long: dict[int, int] = field(default_factory=dict)


def lines_of(
    file: pa.NativeFile, start: int, end: int | None, line_bytes_max: int, *, with_blank: bool = False
) -> Iterator[LineBatch]:
    """The lines that begin in the bytes from `start` up to `end`, to the last byte of the last one.

    A line that begins before `start` is another part's. Blank lines are left out, unless `with_blank`. `end` is None
    for a stream, which is read from its beginning to its end.
    """
    at = start
    if start > 0:
        file.seek(start - 1)
        at = start - 1
    is_first, rest, dropped = start > 0, b"", 0
    while True:
        block = file.read(_BLOCK)
        joined = rest + block
        cut = joined.rfind(b"\n") + 1 if block else len(joined)
        if cut == 0 and block:  # no end of a line yet
            if len(joined) + dropped > line_bytes_max:
                dropped += max(0, len(joined) - _CUT)
                joined = joined[:_CUT]
            rest = joined
            continue
        whole, rest = joined[:cut], joined[cut:]
        found, at = _split(whole, at, dropped, line_bytes_max)
        dropped = 0
        if is_first and found.values:
            found, is_first = _without_first(found), False
        if end is not None and found.places and found.places[-1] >= end:
            yield _shown(_up_to(found, end), with_blank=with_blank)
            return
        yield _shown(found, with_blank=with_blank)
        if not block or (end is not None and at >= end):
            return


def _split(whole: bytes, at: int, dropped: int, line_bytes_max: int) -> tuple[LineBatch, int]:
    """All lines of some bytes that begin at `at`; `dropped`: so many bytes of the first are not among them."""
    values = whole.split(b"\n")
    if not values[-1]:
        values.pop()  # there is nothing behind the last newline
    lengths = [len(value) for value in values]
    if dropped:
        lengths[0] += dropped
    places = [*accumulate((length + 1 for length in lengths), initial=at)]
    too_long = {index: length for index, length in enumerate(lengths) if length > line_bytes_max}
    for index in too_long:
        values[index] = values[index][:_CUT]
    return LineBatch(values, places[:-1], too_long), places[-1]


def _without_first(found: LineBatch) -> LineBatch:
    return LineBatch(found.values[1:], found.places[1:], {at - 1: size for at, size in found.too_long.items() if at})


def _up_to(found: LineBatch, end: int) -> LineBatch:
    count = sum(place < end for place in found.places)
    too_long = {at: size for at, size in found.too_long.items() if at < count}
    return LineBatch(found.values[:count], found.places[:count], too_long)


def _shown(found: LineBatch, *, with_blank: bool) -> LineBatch:
    """Without blank lines if need be, and without the mark that may stand before a file's first character."""
    values = found.values
    if values and found.places[0] == 0 and values[0].startswith(_MARK):
        values = [values[0].removeprefix(_MARK), *values[1:]]
    if with_blank or (b"" not in values and b"\r" not in values):
        return LineBatch(values, found.places, found.too_long)
    kept = [index for index, value in enumerate(values) if value not in (b"", b"\r")]
    too_long = {number: found.too_long[at] for number, at in enumerate(kept) if at in found.too_long}
    return LineBatch([values[at] for at in kept], [found.places[at] for at in kept], too_long)

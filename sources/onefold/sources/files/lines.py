"""The lines of a part of a file, and records of CSV that are several of them, with the places where they begin."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

_BLOCK = 4 << 20
_CUT = 768 << 10  # what is kept of a line that is too long, for a dead letter
_MARK = b"\xef\xbb\xbf"


class TooLong(NamedTuple):
    """Of a line that was cut: how many bytes it has, and whether a quote is among all of them."""

    size: int
    has_quote: bool


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Lines without their newlines, the bytes at which they begin, and which of them are too long."""

    values: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    too_long: dict[int, TooLong] = field(default_factory=dict)

    def only(self, kept: Sequence[int]) -> LineBatch:
        """Those of these numbers."""
        too_long = {number: self.too_long[at] for number, at in enumerate(kept) if at in self.too_long}
        return LineBatch([self.values[at] for at in kept], [self.places[at] for at in kept], too_long)

    def without_first(self) -> LineBatch:
        return self.only(range(1, len(self.values)))


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
    is_first, rest, dropped = start > 0, b"", TooLong(0, False)
    while True:
        block = file.read(_BLOCK)
        joined = rest + block
        cut = joined.rfind(b"\n") + 1 if block else len(joined)
        if cut == 0 and block:  # no end of a line yet
            if len(joined) + dropped.size > line_bytes_max:
                more = max(0, len(joined) - _CUT)
                dropped = TooLong(dropped.size + more, dropped.has_quote or b'"' in joined)
                joined = joined[:_CUT]
            rest = joined
            continue
        whole, rest = joined[:cut], joined[cut:]
        found, at = _split(whole, at, dropped, line_bytes_max)
        dropped = TooLong(0, False)
        if is_first and found.values:
            found, is_first = found.without_first(), False
        if end is not None and found.places and found.places[-1] >= end:
            found = _unmarked(found.only(range(sum(place < end for place in found.places))))
            yield found if with_blank else without_blank(found)
            return
        found = _unmarked(found)
        yield found if with_blank else without_blank(found)
        if not block or (end is not None and at >= end):
            return


def without_blank(found: LineBatch) -> LineBatch:
    """The lines that are not blank."""
    values = found.values
    if b"" not in values and b"\r" not in values:
        return found
    return found.only([index for index, value in enumerate(values) if value not in (b"", b"\r")])


def _split(whole: bytes, at: int, dropped: TooLong, line_bytes_max: int) -> tuple[LineBatch, int]:
    """All lines of some bytes that begin at `at`; `dropped`: what of the first is not among them."""
    values = whole.split(b"\n")
    if not values[-1]:
        values.pop()  # there is nothing behind the last newline
    lengths = [len(value) for value in values]
    if dropped.size:
        lengths[0] += dropped.size
    places = [*accumulate((length + 1 for length in lengths), initial=at)]
    too_long = {}
    for index, length in enumerate(lengths):
        if length > line_bytes_max:
            has_quote = b'"' in values[index] or (index == 0 and dropped.has_quote)
            too_long[index] = TooLong(length, has_quote)
            values[index] = values[index][:_CUT]
    return LineBatch(values, places[:-1], too_long), places[-1]


def _unmarked(found: LineBatch) -> LineBatch:
    """Without the mark that may stand before a file's first character."""
    values = found.values
    if not values or found.places[0] != 0 or not values[0].startswith(_MARK):
        return found
    return LineBatch([values[0].removeprefix(_MARK), *values[1:]], found.places, found.too_long)


class UnbalancedQuotes(Exception):
    """From the record at `place` on, nobody can tell what is within quotes, for `reason`."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(place, reason)
        self.place, self.reason = place, reason


def records_of(
    batches: Iterator[LineBatch], delimiter: str, record_bytes_max: int, *, with_blank: bool
) -> Iterator[LineBatch]:
    """The records of a whole file, whose lines come with the blank ones. Raises `UnbalancedQuotes`.

    A record of several lines has their line breaks. One with a quote has `record_bytes_max` bytes at most.
    """
    reader = _Reader(delimiter, record_bytes_max)
    for batch in batches:
        found = reader.take(batch)
        yield found if with_blank else without_blank(found)
    reader.close()


class _Reader:
    """`_open` are the lines so far of a record that does not end yet, which begins at `_place`."""

    def __init__(self, delimiter: str, record_bytes_max: int) -> None:
        self._record_bytes_max = record_bytes_max
        self._open: list[bytes] = []
        self._open_bytes = self._place = 0
        between = re.escape(delimiter.encode())
        text = b'[^"]*+(?:""[^"]*+)*+'  # within quotes
        field = b'(?:"%b"|[^"%b][^%b]*+)?' % (text, between, between)
        others = b"(?:%b%b)*+\\r?" % (between, field)
        before = b"(?:%b%b)*+" % (field, between)
        self._is_whole = re.compile(b"%b%b" % (field, others)).fullmatch
        self._opens = re.compile(b'%b"%b' % (before, text)).fullmatch
        self._closes = re.compile(b'%b"%b' % (text, others)).fullmatch
        self._stays_open = re.compile(b'(?:%b"%b%b")?%b' % (text, between, before, text)).fullmatch

    def take(self, batch: LineBatch) -> LineBatch:
        """The records that end in these lines."""
        if not self._open and not any(b'"' in value for value in batch.values):
            return batch
        found = LineBatch()
        for index, (line, place) in enumerate(zip(batch.values, batch.places, strict=True)):
            too_long = batch.too_long.get(index)
            if self._open:
                self._open.append(line)
                self._open_bytes += 1 + (len(line) if too_long is None else too_long.size)
                if self._open_bytes > self._record_bytes_max:
                    raise self._torn(f"a quote stays open for more than record_bytes_max={self._record_bytes_max}")
                if b'"' not in line or self._stays_open(line):
                    continue
                if not self._closes(line):
                    raise self._torn("something is between a quote and the next delimiter")
                found.values.append(b"\n".join(self._open))
                found.places.append(self._place)
                self._open = []
                continue
            if too_long is not None:
                found.too_long[len(found.values)] = too_long
            elif b'"' in line and not self._is_whole(line):
                self._open, self._place, self._open_bytes = [line], place, len(line)
                if not self._opens(line):
                    raise self._torn("something is between a quote and the next delimiter")
                continue
            found.values.append(line)
            found.places.append(place)
        return found

    def close(self) -> None:
        if self._open:
            raise self._torn("a quote stays open to the end of the file")

    def _torn(self, reason: str) -> UnbalancedQuotes:
        return UnbalancedQuotes(self._place, reason)

"""Records of CSV that are several lines: those between which a quote stays open, joined again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from onefold.sources.files.lines import LineBatch, without_blank

__all__ = ["UnbalancedQuotes", "records_of"]


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

"""The values of a batch of records: how they are parsed, and the bad ones separated from the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol, overload

import pyarrow as pa

from onefold.core.checks import require
from onefold.core.errors import ConfigError
from onefold.core.values.batches import empty_batch
from onefold.core.values.plain import plain

Values = Sequence[bytes | None]


class Lines(Sequence[bytes | None]):
    """Values in one buffer, each with a newline behind it: what a parser of lines reads.

    A slice shares the buffer. `are_objects`: each value begins with `{` and ends with `}`, so none is null.
    """

    def __init__(self, array: pa.BinaryArray, *, are_objects: bool, is_ascii: bool) -> None:
        self._array = array  # each value with its newline
        self.are_objects = are_objects
        self.is_ascii = is_ascii

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.array().to_pylist())

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> Lines: ...
    def __getitem__(self, index: int | slice) -> bytes | Lines | None:
        if isinstance(index, slice):
            return Lines(self._array[index], are_objects=self.are_objects, is_ascii=self.is_ascii)
        value: bytes | None = self._array[index].as_py()
        return None if value is None else value[:-1]

    def array(self) -> pa.BinaryArray:
        """The values without their newlines: a copy."""
        import pyarrow.compute as pc  # takes its time, and Spark's planners import all this for each query

        return pc.binary_slice(self._array, 0, -1)

    def take(self, places: pa.IntegerArray) -> Lines:
        """Those at these places: a copy."""
        return Lines(self._array.take(places), are_objects=self.are_objects, is_ascii=self.is_ascii)

    def lines(self) -> pa.BinaryArray:
        """The values with their newlines, as they lie there; also a null has one."""
        return self._array

    def buffer(self) -> pa.Buffer:
        """The values with their newlines, as they lie there."""
        ends = pa.Array.from_buffers(
            pa.int32(), len(self._array) + 1, [None, self._array.buffers()[1]], offset=self._array.offset
        )
        return self._array.buffers()[2][ends[0].as_py() : ends[-1].as_py()]


def array_of(values: Values) -> pa.BinaryArray:
    """Raises ConfigError where they are too much for one array."""
    found = values.array() if isinstance(values, Lines) else pa.array(values, pa.binary())
    if isinstance(found, pa.ChunkedArray):
        raise too_much(len(values))
    return found


def too_much(count: int) -> ConfigError:
    return ConfigError(
        "batch-too-large",
        f"{count:,} values that are to be parsed together have more than 2 GiB, which no Arrow array holds. Parse fewer"
        " of them at once; of a source, give it a smaller record_bytes_max",
    )


# What pyarrow says of a text that is none: it is parsed as a wider decimal than the column's.
DECIMAL_WORDS = re.compile(r"The string (.*) (?:is not a valid|cannot be represented as) decimal256(?: number)?")


class Unparsable(Exception):
    """Some value is not what the schema says, for `reason`: the one at `index`, where the parser can tell.

    It is not permanent where the same value may parse another time: its schema's id is not in the registry yet. It is
    torn where its quotes do not end, so that a line behind it may be a part of it.
    """

    def __init__(self, index: int | None, reason: str, is_permanent: bool = True, is_torn: bool = False) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = plain(reason)  # it may quote the value
        self.is_permanent = is_permanent
        self.is_torn = is_torn


class Parser(Protocol):
    """From values to rows of one schema. Pickles not: made where it is used."""

    def parse(self, values: Values) -> pa.RecordBatch:
        """One row for each value, all of them exact; raises `Unparsable` if there is none for one of them: with the
        reason in words for people where it is the only one."""
        ...


@dataclass(frozen=True, slots=True)
class BadValue:
    index: int
    reason: str
    is_permanent: bool = True
    is_torn: bool = False


@dataclass(frozen=True, slots=True)
class Separated:
    """The rows of the good values, in order, in some batches; and the bad values."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    bad: list[BadValue] = field(default_factory=list)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The rows in one batch."""
        rows = self.rows or [empty_batch(schema)]
        return rows[0] if len(rows) == 1 else pa.concat_batches(rows)


class TooManyBad(Exception):
    """More bad values than were to be put up with; `last` is the one that was too many."""

    def __init__(self, last: BadValue) -> None:
        super().__init__(last.reason)
        self.last = last


def separate(
    values: Values, parser: Parser, bad_max: int, known: Mapping[int, str] = MappingProxyType({})
) -> Separated:
    """Parse all that can be, in parts as large as will go, from the first value to the last; `known` ones are bad, and
    why.

    A part that fails is split at the value that the parser names, or else in halves: few bad values among many cost
    about one more parsing of the batch and some calls each. Raises `TooManyBad` at the first value beyond `bad_max`.
    """
    found = Separated()
    ends = sorted({0, len(values), *known, *(index + 1 for index in known)})
    pending = [*pairwise(ends)][::-1]
    while pending:
        start, end = pending.pop()
        require(start < end, "every part has a value, and is smaller than the one before")
        if start in known:
            found.bad.append(BadValue(start, plain(known[start])))
            if len(found.bad) > bad_max:
                raise TooManyBad(found.bad[-1])
            continue
        try:
            found.rows.append(parser.parse(values[start:end]))
            continue
        except Unparsable as error:
            why = error
        if end - start == 1:
            found.bad.append(BadValue(start, why.reason, why.is_permanent, why.is_torn))
            if len(found.bad) > bad_max:
                raise TooManyBad(found.bad[-1])
        else:
            pending += reversed(_split(start, end, why.index))
    return found


def _split(start: int, end: int, named: int | None) -> list[tuple[int, int]]:
    """Smaller parts: the named value by itself, and what is behind it in halves, where more may be bad."""
    at = start + named if named is not None else end
    cuts = [at, at + 1, (at + 1 + end) // 2] if start <= at < end else [(start + end) // 2]
    ends = sorted({*(cut for cut in cuts if start < cut < end), end})
    return list(zip([start, *ends[:-1]], ends, strict=True))

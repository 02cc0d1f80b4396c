"""The values of a batch of records: what the formats parse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import pyarrow as pa

__all__ = ["Lines", "Values"]

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

    def buffer(self) -> pa.Buffer:
        """The values with their newlines, as they lie there."""
        ends = pa.Array.from_buffers(
            pa.int32(), len(self._array) + 1, [None, self._array.buffers()[1]], offset=self._array.offset
        )
        return self._array.buffers()[2][ends[0].as_py() : ends[-1].as_py()]

"""Many small entries in few of Spark's: buckets, of some kilobytes each.

Spark's Python has a round trip to the JVM for each entry that is read, and one for each that is written, which take a
hundred times as long as what a flow does with it. The entries of a key group lie in buckets by their keys' hashes; a
bucket that has become too large has the next in turn split, and one that is empty has the last joined to where it was
split from, which is linear hashing (Litwin, 1980): their number changes by one at a time, and is all that is kept
beside them. Of a group without entries nothing is kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain

from pyspark.sql.streaming.stateful_processor import MapState

from onefold.core.errors import CheckpointMismatch
from onefold.engine.state.codec import decode, encode

BUCKET_BYTES_MAX = 4096
_LARGE_MAX = 4
_COUNT = encode("buckets")

Bucket = dict[bytes, bytes]


class Buckets:
    """The entries of the group whose turn it is, from bytes to bytes; what is put is Spark's with `store`."""

    def __init__(self, state: MapState) -> None:
        self._state = state
        self.begin()

    def begin(self) -> None:
        """It is the turn of another group."""
        self._count: int | None = None
        self._stored_count = 0
        self._found: dict[int, Bucket] = {}
        self._changed: set[int] = set()

    def get(self, key: bytes) -> bytes | None:
        return self._bucket(self._number(key)).get(key)

    def put(self, key: bytes, entry: bytes) -> None:
        number = self._number(key)
        self._bucket(number)[key] = entry
        self._changed.add(number)

    def delete(self, key: bytes) -> None:
        number = self._number(key)
        if self._bucket(number).pop(key, None) is not None:
            self._changed.add(number)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All of the group, as they were stored."""
        for (at,), (content,) in self._state.iterator():
            yield from entries_of(at, content)

    def store(self) -> None:
        """Write what has changed."""
        if not self._changed:
            return
        self._count = self._counted()
        emptied = sum(not self._found[number] for number in self._changed)
        for number in sorted(self._changed):
            for _ in range(_excess(self._found[number])):
                self._split()
        for _ in range(emptied):
            self._join()
        while emptied and self._count > 0 and not self._bucket(self._count - 1):
            self._join()
        for number in self._changed:
            if bucket := self._found[number]:
                self._state.updateValue((encode(number),), (encode([*chain.from_iterable(bucket.items())]),))
            elif number < self._stored_count:
                self._state.removeKey((encode(number),))
        if self._count == 0:
            self._state.removeKey((_COUNT,))
        elif self._count != self._stored_count:
            self._state.updateValue((_COUNT,), (encode(self._count),))
        self._changed, self._stored_count = set(), self._count

    def _split(self) -> None:
        """The bucket whose turn it is: its entries are in it and in a new one behind all."""
        new = self._counted()
        old = new - _power_below(new)
        before = self._bucket(old)
        self._count = new + 1
        self._found[old], self._found[new] = {}, {}
        for key, entry in before.items():
            self._found[self._number(key)][key] = entry
        self._changed |= {old, new}

    def _join(self) -> None:
        """The entries of the last bucket are in that which it was split from. Without any the first goes, too."""
        last = self._counted() - 1
        gone = self._bucket(last)
        if last > 0:
            buddy = last - _power_below(last)
            self._bucket(buddy).update(gone)
            self._changed.add(buddy)
        elif gone or not self._count:
            return
        self._count, self._found[last] = last, {}
        self._changed.add(last)

    def _number(self, key: bytes) -> int:
        """Which bucket a key's entry is in."""
        count, place = self._counted(), zlib.crc32(key)
        power = _power_below(count)
        number = place % (2 * power)
        return number if number < count else number - power

    def _counted(self) -> int:
        if self._count is None:
            found = self._state.getValue((_COUNT,))
            if found is None and self._state.exists():
                raise _of_before()
            self._count = self._stored_count = 0 if found is None else decode(found[0])
        return max(self._count, 1)

    def _bucket(self, number: int) -> Bucket:
        if number not in self._found:
            is_there = number < self._stored_count
            found = self._state.getValue((encode(number),)) if is_there else None
            self._found[number] = {} if found is None else _unpacked(found[0])
        return self._found[number]


def entries_of(at: bytes, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of one of Spark's entries."""
    return iter(()) if at == _COUNT else iter(_unpacked(content).items())


def _unpacked(content: bytes) -> Bucket:
    flat = decode(content)
    if isinstance(flat, dict):
        raise _of_before()
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _of_before() -> CheckpointMismatch:
    return CheckpointMismatch(
        "state-layout",
        "the checkpoint has a state that an earlier version of onefold has written, an entry for each key. Nothing was"
        " written. Take a savepoint with that version, and restore it",
    )


def _excess(bucket: Bucket) -> int:
    """How many buckets there should be more, for what this one has. A few large entries may share one: that no two of
    them do would take as many buckets as pairs."""
    sizes = [len(key) + len(entry) for key, entry in bucket.items()]
    return sum(sizes) // max(BUCKET_BYTES_MAX, _LARGE_MAX * max(sizes, default=0) + 1)


def _power_below(count: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << count.bit_length() - 1

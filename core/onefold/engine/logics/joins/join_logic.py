"""Joins of two inputs by key and time. What comes out is decided by the watermark, which moves at an epoch's end only:
rows of an epoch are judged by the one of the epoch before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from onefold.core.values.batches import empty_batch, repeated
from onefold.core.values.exact.row_sizes import row_bytes
from onefold.engine.logics.joins.matching import has_key, matches, newest
from onefold.engine.logics.logic import Input, Output
from onefold.engine.logics.reducing import PENDING_BYTES_MAX
from onefold.engine.logics.windows.block_log import BlockLog
from onefold.engine.logics.windows.spans import is_of_keys
from onefold.engine.logics.windows.window_logic import Numbers, WindowLogic, us_of
from onefold.engine.state.state_backend import StateTables
from onefold.flow.graph.nodes import Node
from onefold.flow.graph.operators import Joining
from onefold.flow.time.clocks import END, Clocks
from onefold.flow.time.joins import AsOf, JoinSide, Within
from onefold.flow.time.windows import Aligned

_US = pa.timestamp("us")
_WAITING_US = 60_000_000  # a slice of rows that wait for the watermark
_SLICES, _LEAST_US = 8, 1_000_000  # a span of time is kept in so many slices, none of which is shorter
_Rows: TypeAlias = "tuple[pa.RecordBatch, Numbers] | None"  # places in a batch; None of a side without rows


def join_logic(
    node: Node, operator: Joining, given: Sequence[pa.Schema], clocks: Callable[[], Clocks], backend: StateTables
) -> JoinLogic:
    made: type[JoinLogic]
    match operator.of:
        case Within():
            slice_us = max(operator.lateness_us // _SLICES, _LEAST_US)
            made, slices = _WithinLogic, Aligned(slice_us, slice_us, 0)
        case AsOf():
            made, slices = _AsOfLogic, Aligned(_WAITING_US, _WAITING_US, 0)
        case Aligned() as windows:
            made, slices = _WindowJoinLogic, windows
    return made(node, operator, given, clocks, backend, slices)


class _Side:
    """The rows of an input: the epoch's, and those from before, in a log by slices of their times. They have the key,
    the slice and the time, and their further columns."""

    def __init__(
        self, of: JoinSide, given: pa.Schema, name: str, uid: str, backend: StateTables, slices: Aligned
    ) -> None:
        self.of, self.width, self._slices = of, len(of.key), slices
        keys = [given.field(name) for name in of.key]
        own = [pa.field("$slice", _US), pa.field("$time", _US)]
        self.schema = pa.schema([*keys, *own, *(given.field(name) for name, _ in of.taken)])
        self._log = BlockLog(backend.blocks(uid, name, self.schema, self.width), self.width, pa.concat_batches, slices)
        self._new: list[pa.RecordBatch] = []

    def restored(self) -> None:
        self._log.restored()
        self._new = []

    def add(self, batch: pa.RecordBatch, times: Numbers) -> None:
        columns = [batch.column(name) for name in self.of.key]
        columns += [pa.array(each).view(_US) for each in (self._slices.slice_of(times), times)]
        columns += [batch.column(name) for name, _ in self.of.taken]
        self._new.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def take(self) -> pa.RecordBatch:
        """The epoch's rows so far, as they came."""
        new, self._new = self._new, []
        return pa.concat_batches(new) if new else empty_batch(self.schema)

    def read(self, start: int, end: int, keys: pa.RecordBatch | None = None) -> pa.RecordBatch:
        """The rows from before of these times, as they came; with `keys` of these, and by chance of others."""
        if keys is not None and not len(keys):
            return empty_batch(self.schema)
        first = -END if start <= -END else self._slices.slice_of(start)
        rows = _near(self._log.read(first, end), keys, self.schema, self.width)
        times = self.times(rows)
        return rows.filter(pa.array((times >= start) & (times < end)))

    def keep(self, rows: pa.RecordBatch) -> None:
        if len(rows):
            self._log.append(rows)

    def drop(self, us: int) -> None:
        """The slices whose last window ends by then."""
        self._log.drop_while(lambda slice_: self._slices.last_end(slice_) <= us)

    def slices(self, start: int, end: int) -> list[int]:
        return self._log.between(start, end)

    def times(self, rows: pa.RecordBatch) -> Numbers:
        return us_of(rows.column(self.width + 1))

    def since(self, rows: pa.RecordBatch, us: int) -> pa.RecordBatch:
        return rows.filter(pa.array(self.times(rows) >= us))

    def before(self, rows: pa.RecordBatch, us: int) -> pa.RecordBatch:
        return rows.filter(pa.array(self.times(rows) < us))


class JoinLogic(WindowLogic[Joining]):
    """Implements Clocked and EventTimed. Rows without a whole key belong to none, and are kept only where such rows
    come out."""

    def __init__(
        self,
        node: Node,
        operator: Joining,
        given: Sequence[pa.Schema],
        clocks: Callable[[], Clocks],
        backend: StateTables,
        slices: Aligned,
    ) -> None:
        super().__init__(node, operator, clocks, backend)
        self._slices = slices
        self._left, self._right = self._sides = [
            _Side(side, schema, name, self._uid, backend, slices)
            for side, schema, name in zip(operator.sides, given, ("left", "right"), strict=True)
        ]
        self._keeps_keyless = [operator.how in ("left", "full"), operator.how in ("right", "full")]
        self._keep(backend)

    def _keep(self, backend: StateTables) -> None:
        """What it keeps beside its inputs' rows."""

    def restored(self) -> None:
        super().restored()
        for side in self._sides:
            side.restored()

    def take(self, batch: Input, port: int) -> Iterator[Output]:
        assert isinstance(batch, pa.RecordBatch)
        side, late = self._sides[port], self._operator.late[port]
        times = self._times_us(batch, side.of)
        is_taken, is_late = self._judged(times)
        if is_late.any():
            yield from self._told_late(batch.filter(pa.array(is_late)), late)
        if not self._keeps_keyless[port]:
            is_taken = is_taken & has_key(batch.select(side.of.key), side.width)
        if not is_taken.all():
            batch, times = batch.filter(pa.array(is_taken)), times[is_taken]
        if batch.num_rows:
            side.add(batch, times)

    def _judged(self, times: Numbers) -> tuple[Numbers, Numbers]:
        """Which rows are taken, and which are late."""
        is_late: Numbers = times < self._closed_us
        return ~is_late, is_late

    def _out(self, left: _Rows, right: _Rows, windows: Sequence[int] = ()) -> Iterator[Output]:
        """Rows of these places, null for -1, in batches that are not large for their number of rows: a large value
        comes once in each pair."""
        given = [each for each in (left, right) if each is not None]
        ends = np.cumsum(sum(np.append(row_bytes(rows), 0)[places] for rows, places in given))
        cuts = [0, *(np.flatnonzero(np.diff(ends // PENDING_BYTES_MAX)) + 1).tolist(), len(ends)]
        for start, end in pairwise(cuts):
            taken = [each and _taken(each[0], each[1][start:end]) for each in (left, right)]
            yield None, self._made(taken, end - start, windows)

    def _made(self, taken: Sequence[pa.RecordBatch | None], count: int, windows: Sequence[int]) -> pa.RecordBatch:
        width = self._width
        columns = next(rows for rows in taken if rows is not None).columns[:width]
        columns += [repeated(us, count).view(self._schema.field(at).type) for at, us in enumerate(windows, width)]
        for rows, side in zip(taken, self._sides, strict=True):
            kinds = side.schema.types[width + 2 :]
            columns += [pa.nulls(count, kind) for kind in kinds] if rows is None else rows.columns[width + 2 :]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _WithinLogic(JoinLogic):
    """A row is kept as long as one that is not late may belong to it."""

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        left, right = self._sides
        new, other = left.take(), right.take()
        spans = ((left, self._of.after_us), (right, self._of.before_us))  # how long a row of each is kept
        kept_left, kept_right = (
            side.read(max(before - us, -END), END, keys) for (side, us), keys in zip(spans, (other, new), strict=True)
        )
        yield from self._pairs(new, pa.concat_batches([kept_right, other]), is_left=True)
        yield from self._pairs(other, kept_left, is_left=False)
        for (side, us), rows in zip(spans, (new, other), strict=True):
            past = max(now - us, -END)
            side.keep(side.since(rows, past))
            side.drop(past)

    @property
    def _of(self) -> Within:
        assert isinstance(self._operator.of, Within)
        return self._operator.of

    def _pairs(self, rows: pa.RecordBatch, others: pa.RecordBatch, is_left: bool) -> Iterator[Output]:
        if not len(rows) or not len(others):
            return
        of = self._of
        earlier, later = (of.before_us, of.after_us) if is_left else (of.after_us, of.before_us)
        times = self._left.times(rows)
        found = matches(rows, times - earlier, times + later, others, self._left.times(others), self._width)
        for ones, twos in found.pairs():
            pair = ((rows, ones), (others, twos)) if is_left else ((others, twos), (rows, ones))
            yield from self._out(*pair)


class _WindowJoinLogic(JoinLogic):
    """Rows are kept until their last window ends."""

    def _judged(self, times: Numbers) -> tuple[Numbers, Numbers]:
        slices = self._slices.slice_of(times)
        ends = self._slices.last_end(slices)
        is_in = ends > slices  # of those that slide by more than their size some rows are in none
        return is_in & (ends > self._closed_us), is_in & (ends <= self._closed_us)

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        for side in self._sides:
            side.keep(side.take())
        size = self._slices.size_us
        slices = {at for side in self._sides for at in side.slices(before - size, now)}
        for end in self._slices.all_ends(slices, before, now):
            left, right = (side.read(end - size, end) for side in self._sides)
            yield from self._of_window(left, right, (end - size, end))
        for side in self._sides:
            side.drop(now)

    def _next_due_us(self) -> int | None:
        now = self._watermark_us
        due = (self._slices.next_end(side.slices(now - self._slices.size_us, END), now) for side in self._sides)
        return min((end for end in due if end is not None), default=None)

    def _of_window(self, left: pa.RecordBatch, right: pa.RecordBatch, bounds: tuple[int, int]) -> Iterator[Output]:
        ever = np.full(len(left), END)
        found = matches(left, -ever, ever, right, self._left.times(right), self._width)
        is_alone = np.ones(len(right), bool)
        for ones, twos in found.pairs():
            is_alone[twos] = False
            yield from self._out((left, ones), (right, twos), bounds)
        lefts, rights = np.flatnonzero(found.last == found.first), np.flatnonzero(is_alone)
        if len(lefts) and self._operator.how in ("left", "full"):
            yield from self._out((left, lefts), None, bounds)
        if len(rights) and self._operator.how in ("right", "full"):
            yield from self._out(None, (right, rights), bounds)


class _AsOfLogic(JoinLogic):
    """Rows of the left wait until the watermark passes them. Of the right those that it has passed are in `passed`, of
    which the newest of each key counts."""

    def _keep(self, backend: StateTables) -> None:
        table = backend.blocks(self._uid, "passed", self._right.schema, self._width)
        self._passed = BlockLog(table, self._width, lambda rows: self._newest(pa.concat_batches(rows)), self._slices)

    def restored(self) -> None:
        super().restored()
        self._passed.restored()

    def _judged(self, times: Numbers) -> tuple[Numbers, Numbers]:
        _, is_late = super()._judged(times)
        return np.ones(len(times), bool), is_late

    def _flushed(self, before: int, now: int) -> Iterator[Output]:
        left, right = self._sides
        rows, versions = left.take(), right.take()
        late, changed = left.before(rows, before), right.before(versions, before)
        due = pa.concat_batches([left.read(before, now), left.before(left.since(rows, before), now)])
        new = pa.concat_batches([right.read(before, now), right.before(right.since(versions, before), now)])
        known = self._known(pa.concat_batches([late, due]), changed)
        yield from self._answered(late, known)
        yield from self._answered(due, pa.concat_batches([known, new]))
        if len(passed := pa.concat_batches([changed, new])):
            slices = repeated(0, len(passed)).view(_US)
            self._passed.append(self._newest(passed.set_column(self._width, passed.schema.field(self._width), slices)))
        for side, each in ((left, rows), (right, versions)):
            side.keep(side.since(each, now))
            side.drop(now)

    def _next_due_us(self) -> int | None:
        for slice_ in self._left.slices(-END, END):
            rows = self._left.read(max(slice_, self._watermark_us), slice_ + self._slices.size_us)
            if len(rows):
                return int(self._left.times(rows).min()) + 1
        return None

    def _known(self, rows: pa.RecordBatch, changed: pa.RecordBatch) -> pa.RecordBatch:
        """Of the keys of these rows, what the watermark has passed."""
        if not len(rows):
            return empty_batch(self._right.schema)
        kept = _near(self._passed.read(0, 1), rows, self._right.schema, self._width)
        return self._newest(pa.concat_batches([kept, changed]))

    def _newest(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return newest(rows, self._right.times(rows), self._width)

    def _answered(self, rows: pa.RecordBatch, versions: pa.RecordBatch) -> Iterator[Output]:
        if not len(rows):
            return
        times = self._left.times(rows)
        found = matches(rows, np.full(len(rows), -END), times, versions, self._right.times(versions), self._width)
        places, ones = found.newest(), np.arange(len(rows))
        if self._operator.how == "inner":
            ones, places = ones[places >= 0], places[places >= 0]
        if len(ones):
            yield from self._out((rows, ones), (versions, places))


def _near(
    blocks: Sequence[pa.RecordBatch], keys: pa.RecordBatch | None, schema: pa.Schema, width: int
) -> pa.RecordBatch:
    """The rows with one of these keys, and by chance others; or all."""
    table = pa.Table.from_batches(blocks, schema)
    near = table if keys is None else table.filter(is_of_keys(table, keys, width))
    return pa.concat_batches([empty_batch(schema), *near.to_batches()])


def _taken(rows: pa.RecordBatch, places: Numbers) -> pa.RecordBatch:
    return rows.take(pa.array(places, mask=places < 0))

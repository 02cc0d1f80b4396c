"""An HBase table: many rows at once, in and out as Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.answers import as_it_is
from onefold.clients.hbase import binary_protocol, compact_protocol
from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.clients.hbase.compact_protocol import thrift
from onefold.clients.hbase.pool import Pool, pool
from onefold.clients.hbase.rows.cells import KEY_BYTES_MAX, Cells, Columns, Rows, rows_of
from onefold.clients.hbase.table_admin import checked_name
from onefold.clients.hbase.thrift_errors import no_table, refused
from onefold.core.checks import require
from onefold.core.errors import BadRecord, InDoubt, OnefoldError, Retriable
from onefold.core.waiting import retry

T = TypeVar("T")
# Small enough that a busy HBase is done with what all connections ask for at once before its clients' time is up
# (hbase.client.operation.timeout): asked for again, the same would take as long again.
REQUEST_BYTES = 128 << 10
GET_ROWS_MAX = 500
ANSWER_BYTES = 1 << 20
ROWS_MIN, ROWS_FIRST, ROWS_MAX = 1, 64, 5000  # of one answer
_STOP = b"\0"
_NO_TIME_ABOVE = 2**63 - 1
_WITH_DELETES = {b"_raw_": b"\xff"}  # what Scan.setRaw(true) says, of which Thrift's interface has no field


class HBaseTable:
    """`name` is "table" or "namespace:table". Pickles; any thread of any process may use it.

    While servers are down, a request that is safe to repeat is sent again for `timeout_s`, to another server if there
    is one, and at least once. With `repeats=False` each request is sent once: the caller repeats it.

    Raises ConfigError and BadRecord where HBase will never take it; Retriable where nothing but asking again is
    needed; InDoubt where a conditional write may or may not have been done.
    """

    def __init__(self, settings: HBaseSettings, name: str, repeats: bool = True) -> None:
        self.settings, self.name, self._repeats = settings, checked_name(name), repeats
        self._encoding: ModuleType = compact_protocol if settings.protocol == "compact" else binary_protocol
        self._rows_at_once = ROWS_FIRST
        self._where = f"table {name!r} of HBase at {settings.servers}"

    def __reduce__(self) -> tuple[type[HBaseTable], tuple[HBaseSettings, str, bool]]:
        return HBaseTable, (self.settings, self.name, self._repeats)

    def put(self, keys: pa.BinaryArray, cells: Sequence[Cells], timestamp_ms: int) -> None:
        """Write all rows, in parallel; raises after all requests that have begun have ended. The same again changes
        nothing, so each request whose answer was lost is repeated. Rows without any cell are left out.

        No key twice: at one timestamp, which of two cells is seen is decided by the request that lands last."""
        require(timestamp_ms >= 0, "HBase takes no times before 1970")
        keys, cells = _with_cells(keys, cells)
        self._check(keys)

        def rows(start: int, stop: int) -> pa.BinaryArray:
            some = [Cells(c.family, c.qualifier, c.values[start:stop]) for c in cells]
            return self._encoding.puts(keys[start:stop], some, timestamp_ms)

        self._write("putMultiple", rows, binary_protocol.bytes_of(keys, cells))

    def delete(self, keys: pa.BinaryArray, columns: Columns, timestamp_ms: int) -> None:
        """Delete all versions of these columns up to the timestamp: until a major compaction this also hides what is
        put there later at an older or the same timestamp."""
        require(columns, "HBase would delete the whole row, whatever its timestamps")
        require(timestamp_ms >= 0, "HBase takes no times before 1970")
        self._check(keys)

        def rows(start: int, stop: int) -> pa.BinaryArray:
            return self._encoding.deletes(keys[start:stop], columns, timestamp_ms)

        columns_bytes = 32 + sum(len(family) + len(qualifier) + 40 for family, qualifier in columns)
        self._write("deleteMultiple", rows, binary_protocol.bytes_of(keys, ()) + columns_bytes)

    def remove(self, keys: pa.BinaryArray, columns: Columns) -> None:
        """Delete all versions of these columns that are there now, by HBase's own clock. For a few rows."""
        require(columns, "HBase would delete the whole row")
        wanted = [thrift.TColumn(family, qualifier) for family, qualifier in columns]
        self._ask(
            "deleting", "deleteMultiple", as_it_is, tdeletes=[thrift.TDelete(key, wanted) for key in keys.to_pylist()]
        )

    def get(self, keys: pa.BinaryArray, columns: Columns) -> list[pa.BinaryArray]:
        """For each column the newest values, one for each key, null where there is no cell."""
        return self.read(keys, columns).values

    def read(self, keys: pa.BinaryArray, columns: Columns) -> Rows:
        """As `get`, with the cells' timestamps."""
        require(columns, "HBase would read them all")
        self._check(keys)
        parts: list[Rows] = []
        at = 0
        while at < len(keys):  # the first answers show how long rows are
            each = min(self._rows_at_once, GET_ROWS_MAX)
            starts = range(at, min(len(keys), at + each * self._pool.size), each)
            parts += self._all([partial(self._get, keys[start : start + each], columns) for start in starts])
            at = starts[-1] + each
        return Rows.concatenated(parts, len(columns))

    def put_if_greater(self, keys: pa.BinaryArray, guard: Cells, cells: Sequence[Cells]) -> pa.BooleanArray:
        """Write guard and cells of each row, in one mutation, if guard's value is greater, in the order of bytes, than
        the one that is stored, or if none is stored. Whether it was written. Guards of a row may never shrink."""
        _check_guard(guard.values)
        (stored,) = self.get(keys, [(guard.family, guard.qualifier)])
        is_absent = stored.is_null()
        is_greater = pc.fill_null(pc.greater(guard.values, stored), False)
        done = np.zeros(len(keys), bool)
        nothing = pa.repeat(pa.scalar(b"", pa.binary()), len(keys))
        lost = self._put_if(is_absent, done, keys, guard, thrift.TCompareOperator.EQUAL, nothing, cells)
        again = pa.array(lost | is_greater.to_numpy(zero_copy_only=False))
        self._put_if(again, done, keys, guard, thrift.TCompareOperator.GREATER, guard.values, cells)
        return pa.array(done)

    def put_if_equal(
        self, keys: pa.BinaryArray, guard: Cells, expected: pa.BinaryArray, cells: Sequence[Cells]
    ) -> pa.BooleanArray:
        """Write guard and cells of each row, in one mutation, if the stored value of guard's column is the expected
        one; null expects that there is none. Whether it was written."""
        _check_guard(guard.values)
        _check_guard(expected.drop_null())
        done = np.zeros(len(keys), bool)
        every = pa.array(np.ones(len(keys), bool))
        values = pc.fill_null(expected, b"")
        self._put_if(every, done, keys, guard, thrift.TCompareOperator.EQUAL, values, cells)
        return pa.array(done)

    def scan(
        self, start: bytes, stop: bytes, columns: Columns, time_range: tuple[int, int] | None = None
    ) -> Iterator[Rows]:
        """Rows from `start` to before `stop` (b"": to the end) that have any of the columns, in batches. `time_range`
        is of the cells' timestamps, from the first to before the second. Nothing is open between two batches."""
        require(columns, "HBase would read them all")
        wanted = [thrift.TColumn(family, qualifier) for family, qualifier in columns]
        while True:
            rows = self._rows_at_once
            scan = thrift.TScan(
                startRow=start,
                stopRow=stop,
                columns=wanted,
                caching=rows,
                maxVersions=1,
                timeRange=None if time_range is None else thrift.TTimeRange(*time_range),
                cacheBlocks=False,  # a whole table would drive out what others read from the region servers' caches
                limit=rows,
            )
            read = partial(_scanned, start=start, columns=columns)
            found = self._ask("scanning", "getScannerResults", read, tscan=scan, numRows=rows)
            if len(found.keys):
                yield self._seen(found)
            if len(found.keys) < rows:
                return
            start = found.keys[-1].as_py() + b"\0"

    def has_newer(self, start: bytes, stop: bytes, families: Sequence[bytes], than_ms: int) -> bool:
        """Whether any row from `start` to before `stop` has a cell or a delete above that time in these families.

        HBase passes over the files and memory whose times all lie below, so that it costs a look at each region."""
        scan = thrift.TScan(
            startRow=start,
            stopRow=stop,
            columns=[thrift.TColumn(family) for family in families],
            caching=1,
            timeRange=thrift.TTimeRange(than_ms + 1, _NO_TIME_ABOVE),
            attributes=_WITH_DELETES,
            cacheBlocks=False,
            limit=1,
        )
        return self._ask("looking for newer cells", "getScannerResults", bool, tscan=scan, numRows=1)

    def regions(self) -> list[tuple[bytes, bytes]]:
        """The start and end key of each region; b"" is the table's start, and its end."""

        def read(found: Any) -> list[tuple[bytes, bytes]]:
            return sorted((at.regionInfo.startKey or b"", at.regionInfo.endKey or b"") for at in found)

        if found := self._ask("asking for the regions", "getAllRegionLocations", read):
            return found
        raise no_table(self.name, self.settings.servers)

    @property
    def _pool(self) -> Pool:
        return pool(self.settings)

    def _write(self, call: str, rows: Callable[[int, int], pa.BinaryArray], sizes: Any) -> None:
        room = min(self.settings.frame_bytes_max - (4 << 10), REQUEST_BYTES)

        def write(start: int, stop: int) -> None:
            head = self._encoding.rows_head(self.name.encode(), stop - start)
            request = b"".join([head, binary_protocol.slice_of(rows(start, stop)), _STOP])
            self._answer(call, request, "writing", as_it_is, int(sizes[start:stop].max()))

        self._all([partial(write, start, stop) for start, stop in binary_protocol.cuts(sizes, room)])

    def _get(self, keys: pa.BinaryArray, columns: Columns) -> Rows:
        head = self._encoding.rows_head(self.name.encode(), len(keys))
        request = b"".join([head, binary_protocol.slice_of(self._encoding.gets(keys, columns)), _STOP])

        def read(found: Any) -> Rows:
            if len(found) != len(keys):
                raise Retriable(
                    "hbase-answer-incomplete", f"{self._where}: {len(found)} rows came for {len(keys)} keys"
                )
            return rows_of(keys, found, columns)

        return self._seen(self._answer("getMultiple", request, "reading", read))

    def _seen(self, rows: Rows) -> Rows:
        """Notes the length of rows, which decides how many are asked for at once."""
        most = ANSWER_BYTES * len(rows.keys) // max(rows.bytes, 1)
        self._rows_at_once = max(ROWS_MIN, min(most, ROWS_MAX, 8 * self._rows_at_once))
        return rows

    def _put_if(
        self,
        chosen: pa.BooleanArray,
        done: Any,
        keys: pa.BinaryArray,
        guard: Cells,
        operator: int,
        values: pa.BinaryArray,
        cells: Sequence[Cells],
    ) -> Any:
        """One conditional write for each chosen row; notes in `done` which were done, and returns which were not."""
        places = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
        if len(places) == 0:
            return np.zeros(len(keys), bool)
        self._check(keys)
        every = [guard, *cells]

        def write(some: Any) -> list[bool]:
            here = pa.array(some)
            theirs = [Cells(c.family, c.qualifier, c.values.take(here)) for c in every]
            requests = self._encoding.checks(
                self.name.encode(), keys.take(here), guard, operator, values.take(here), theirs
            )
            each = [binary_protocol.slice_of(requests, at, at + 1) for at in range(len(requests))]
            answers = self._pool.ask_once("checkAndMutate", each)
            for answer in answers:
                if isinstance(answer, Exception):
                    said = refused(
                        answer, self.name, self.settings.servers, "writing conditionally", max(map(len, each))
                    )
                    raise said from answer
            return answers

        lanes = [lane for lane in np.array_split(places, self._pool.size) if len(lane)]
        try:
            answers = self._all([partial(write, lane) for lane in lanes])
        except Retriable as error:  # what HBase gave up may be done all the same, and other rows are
            raise InDoubt(
                "hbase-write-unanswered",
                f"{error.message}. Some of {len(places)} rows may have been written: read them again",
            ) from error
        was_done = np.concatenate([np.asarray(answer, bool) for answer in answers])
        done[places] |= was_done
        lost = np.zeros(len(keys), bool)
        lost[places] = ~was_done
        return lost

    def _ask(self, doing: str, call: str, read: Callable[[Any], T], **given: Any) -> T:
        request = compact_protocol.arguments(call, self.settings.protocol, table=self.name.encode(), **given)
        return self._answer(call, request, doing, read)

    def _answer(self, call: str, request: bytes, doing: str, read: Callable[[Any], T], row_bytes_max: int = 0) -> T:
        """What `read` makes of the answer."""

        def refusal(said: Exception) -> OnefoldError:
            return refused(said, self.name, self.settings.servers, doing, row_bytes_max)

        def ask() -> T:
            return self._pool.ask(call, request, read, refusal)

        return retry(ask, self.settings.timeout_s) if self._repeats else ask()

    def _all(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each task returned; or, once all have ended, the most important error."""
        outcomes = self._pool.each(tasks)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failed:
            raise min(failed, key=_weight)
        return outcomes

    def _check(self, keys: pa.BinaryArray) -> None:
        lengths = pc.min_max(pc.binary_length(keys)).as_py()
        if keys.null_count or lengths["min"] == 0 or (lengths["max"] or 0) > KEY_BYTES_MAX:
            raise BadRecord(
                "row-key-length",
                f"{self._where}: a row key has 1 to {KEY_BYTES_MAX} bytes, and these have {lengths['min']} to "
                f"{lengths['max']}, {keys.null_count} are null. Mend or filter such rows",
            )


def _scanned(found: Sequence[Any], start: bytes, columns: Columns) -> Rows:
    if found and found[-1].row < start:
        raise ValueError(f"the row {found[-1].row!r} is before {start!r}, where they were to begin")
    keys = pa.array([row.row for row in found], pa.binary())
    if keys.null_count:
        raise ValueError("a row without its key")
    return rows_of(keys, found, columns)


def _weight(error: Exception) -> int:
    """The order of errors: first those that never go away, then those in doubt, then those to repeat."""
    if not isinstance(error, OnefoldError):
        return 0
    return 3 if isinstance(error, Retriable) else 2 if isinstance(error, InDoubt) else 1


def _check_guard(values: pa.BinaryArray) -> None:
    if values.null_count or pc.any(pc.equal(pc.binary_length(values), 0)).as_py():
        raise ValueError("a guard's value is neither null nor empty: HBase takes an empty one for an absent one")


def _with_cells(keys: pa.BinaryArray, cells: Sequence[Cells]) -> tuple[pa.BinaryArray, Sequence[Cells]]:
    """HBase refuses a put without cells, and the rest of its request with it."""
    if any(column.values.null_count == 0 for column in cells):
        return keys, cells
    here = pa.array(np.zeros(len(keys), bool))
    for column in cells:
        here = pc.or_(here, column.values.is_valid())
    return keys.filter(here), [Cells(c.family, c.qualifier, c.values.filter(here)) for c in cells]

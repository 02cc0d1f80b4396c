"""Rows of Parquet files as those of a source: exactly its types, in bounded memory, with the bad rows beside them."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onefold.core.checks import require
from onefold.core.source import Part
from onefold.core.values.ddl import type_name
from onefold.core.values.exact import Mismatch, exact_cast
from onefold.sources.files.bad_records import FileRecords, Separator
from onefold.sources.files.listing import Folder
from onefold.sources.files.parquet.column_matching import matched
from onefold.sources.files.parquet.old_times import (
    AmbiguousCalendar,
    blurred,
    calendar_of,
    columns_with_int96,
    rebased,
    timed,
)
from onefold.sources.files.parquet.sizes import pieces_of, read_as_dictionaries, rows_max
from onefold.sources.files.partitions import partition_of, placed
from onefold.sources.files.source_options import FileSourceConfig
from onefold.sources.files.splitting import FileRange
from onefold.sources.formats.guarded_parser import in_child
from onefold.sources.formats.value_range import check_column, inside
from onefold.sources.formats.values import Unparsable

_SHOWN_BYTES = 768 << 10  # of a row, in a dead letter
_GUARDED_BYTES = 4 << 30


def rows_of(
    source: FileSourceConfig, schema: pa.Schema, wanted: FileRange, folder: Folder, *, guarded: bool
) -> Iterator[Part]:
    """The rows of some row groups. `guarded`: after a process that died, a process of its own decodes them first, in
    bounded memory, and a file that ends that one is refused."""
    where = folder.shown(wanted.name)
    partition = partition_of(wanted.name, schema, where)
    if guarded and folder.is_local:
        with folder.decoding(wanted.name, "Parquet"):
            _try_out(partial(_decode, folder, wanted, schema, set(partition), where))
    with folder.opened(wanted.name) as file:
        with folder.decoding(wanted.name, "Parquet"):
            opened = _Opened(file, wanted, schema, set(partition), where)
            batches = opened.batches()
        separator = Separator(source, schema, _RowParser(schema, opened, partition), where, "row")
        place = opened.first_row
        while True:
            with folder.decoding(wanted.name, "Parquet"):
                batch, inexact = next(batches, (None, []))
            if batch is None:
                return
            for start, piece, known in pieces_of(batch, source.record_bytes_max):
                shown = partial(_shown, piece, set(known))
                known = {row - start: _BLURRED for row in inexact if start <= row < start + len(piece)} | known
                places = range(place + start, place + start + len(piece))
                yield separator.part(FileRecords(_Rows(piece), places, shown, known))
            place += batch.num_rows


_BLURRED = "a timestamp has nanoseconds, and columns have microseconds"


def _try_out(decode: Callable[[], None]) -> None:
    """Raises `pa.ArrowInvalid` where it ends its process, or takes more memory than it may."""
    try:
        in_child(decode)
    except Unparsable as error:
        raise pa.ArrowInvalid(error.reason) from None
    except MemoryError:
        raise pa.ArrowInvalid(f"it takes more than {_GUARDED_BYTES} bytes of memory") from None


def _decode(folder: Folder, wanted: FileRange, schema: pa.Schema, placed_: set[str], where: str) -> None:
    used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_AS, (used + _GUARDED_BYTES, resource.RLIM_INFINITY))
    with folder.opened(wanted.name) as file:
        for _ in _Opened(file, wanted, schema, placed_, where).batches(use_threads=False):
            pass


class _Opened:
    """Some row groups of one file, and what its metadata says of the columns that are read."""

    def __init__(self, file: Any, wanted: FileRange, schema: pa.Schema, placed_: set[str], where: str) -> None:
        self._file = pq.ParquetFile(file)
        metadata, there = self._file.metadata, self._file.schema_arrow
        int96 = columns_with_int96(metadata, there).intersection(schema.names)
        there = pa.schema(
            [f.with_type(timed(f.type, schema.field(f.name).type)) if f.name in int96 else f for f in there]
        )
        self.names = matched(there, schema, placed_, where)
        self.int96 = int96.intersection(self.names)
        self.calendar = calendar_of(metadata.metadata, metadata.created_by)
        groups = range(wanted.start, metadata.num_row_groups if wanted.end is None else wanted.end)
        self.first_row = sum(metadata.row_group(group).num_rows for group in range(wanted.start))
        self._how = {"batch_size": rows_max(metadata, groups), "row_groups": [*groups]}
        self._exact = self._file
        if self.names:
            dictionaries = read_as_dictionaries(metadata, groups, self.names, there)
            self._file = pq.ParquetFile(
                file, metadata=metadata, read_dictionary=dictionaries, coerce_int96_timestamp_unit="us"
            )

    def batches(self, *, use_threads: bool = True) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Rows, and which of them have timestamps of 96 bits that microseconds lose something of."""
        how = {**self._how, "use_threads": use_threads}
        exact = self._exact.iter_batches(columns=[*self.int96], **how) if self.int96 else repeat(None)
        for batch, nanoseconds in zip(self._file.iter_batches(columns=self.names, **how), exact, strict=False):
            require(nanoseconds is None or len(nanoseconds) == len(batch), "both readers go on by the same rows")
            yield batch, [] if nanoseconds is None else blurred(batch, nanoseconds)


class _Rows(Sequence[Any]):
    """Rows as the values that a parser takes; one of them is a batch of one row."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int):
            index = slice(index, index + 1)
        return _Rows(self.batch.slice(index.start, index.stop - index.start))


class _RowParser:
    """Rows of a file as those of the source."""

    def __init__(self, schema: pa.Schema, opened: _Opened, partition: dict[str, pa.Scalar]) -> None:
        self._schema, self._partition, self._int96 = schema, partition, opened.int96
        self._calendar = opened.calendar
        self._names = set(opened.names)
        self._read = pa.schema([f for f in schema if f.name in self._names or f.name not in partition])

    def parse(self, values: Any) -> pa.RecordBatch:
        batch = values.batch
        arrays = [
            self._column(batch.column(field.name), field)
            if field.name in self._names
            else pa.nulls(batch.num_rows, field.type)
            for field in self._read
        ]
        rows = pa.RecordBatch.from_arrays(arrays, names=self._read.names) if arrays else batch
        return placed(rows, self._schema, self._partition)

    def _column(self, array: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return self._exactly(array, field)
        except Mismatch as error:
            reason = f"{error.path and f'{error.path}: '}{error.value}: {error.reason}"
            raise Unparsable(error.row, f"the column {field.name!r}: {reason}") from None
        except AmbiguousCalendar as error:
            raise Unparsable(error.index, f"the column {field.name!r} has {error.reason}") from None

    def _exactly(self, array: pa.Array, field: pa.Field) -> pa.Array:
        is_int96 = field.name in self._int96
        if is_int96:
            array = array.cast(timed(array.type, field.type))
        check_texts(array)
        array = exact_cast(array, field.type)
        array = rebased(array, self._calendar.int96 if is_int96 else self._calendar.dates)
        check_column(array, field)
        return array


def _shown(batch: pa.RecordBatch, too_large: set[int], at: int) -> bytes | None:
    """A row as JSON; None where it is too long for a dead letter."""
    if at in too_large:
        return None
    row = {name: _python(batch.column(index), at) for index, name in enumerate(batch.schema.names)}
    said = json.dumps(row, default=str, ensure_ascii=False).encode("utf-8", "replace")
    return said if len(said) <= _SHOWN_BYTES else None


def _python(array: pa.Array, at: int) -> Any:
    """A value as Python has it; what Python's own types do not have as a text, and what is no UTF-8 as bytes."""
    part = array.slice(at, 1)
    if pa.types.is_dictionary(part.type):
        part = part.dictionary_decode()
    try:
        return part[0].as_py()
    except (ValueError, OverflowError):
        if part.type.num_fields:
            return f"<no {type_name(part.type)} of Python's>"
        return str(part.view(pa.binary())[0] if pa.types.is_string(part.type) else part.cast(pa.string())[0])


def check_texts(array: pa.Array) -> None:
    """Raises `Mismatch` for a text that is no UTF-8; without its row where it is within another value."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if _are_texts(kind.value_type) and not _is_ascii(array.dictionary):
            check_texts(array.dictionary_decode())
    elif _are_texts(kind) and not _is_ascii(array):
        exact_cast(array.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()), kind)
    for part in inside(array):
        try:
            check_texts(part)
        except Mismatch as error:
            raise error.below("[]") from None


def _are_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_ascii(array: pa.Array) -> bool:
    """Whether no byte of all its texts has the highest bit."""
    width = pa.int32() if pa.types.is_string(array.type) else pa.int64()
    if not len(array):
        return True
    ends = pa.Array.from_buffers(width, len(array) + 1, [None, array.buffers()[1]], offset=array.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    if first == last:
        return True
    signed = pa.Array.from_buffers(pa.int8(), last - first, [None, array.buffers()[2]], offset=first)
    return bool(pc.min_max(signed)["min"].as_py() >= 0)

"""Record batches as Arrow IPC streams and back, as they are: of rows whose first columns are their key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from onefold.engine.key_groups import groups_of
from onefold.engine.state.arrow_entries import guarded
from onefold.engine.state.snapshot import Wanted


def to_stream(batch: pa.RecordBatch, **notes: int) -> pa.Buffer:
    """The batch, and numbers that `note_of` finds again."""
    schema = batch.schema.with_metadata({name: str(value) for name, value in notes.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def from_stream(data: bytes | pa.Buffer) -> pa.RecordBatch:
    """The batch. Raises DataLoss for bytes that `to_stream` has not made: a batch that somebody has changed must not
    crash the interpreter."""
    return guarded(lambda: _read(data))


def wanted_rows(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """Those of the key groups that are wanted, by the batch's first `keys` columns, a note."""
    return batch if wanted.is_whole else guarded(lambda: batch.filter(pa.array(_is_wanted(batch, wanted))))


def note_of(batch: pa.RecordBatch, name: str) -> int:
    notes: Mapping[bytes, bytes] = batch.schema.metadata or {}
    return guarded(lambda: int(notes[name.encode()]))


def conformed(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of that schema: of columns that have other names, or narrower types, where an earlier version of the
    flow has written them. Raises DataLoss for others."""

    def of(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(schema):
            return batch
        pairs = zip(batch.columns, schema, strict=True)
        return pa.RecordBatch.from_arrays([column.cast(field.type) for column, field in pairs], schema=schema)

    if len(batches) == 1:
        return guarded(lambda: of(batches[0]))
    return guarded(lambda: pa.concat_batches(map(of, batches)) if batches else pa.RecordBatch.from_pylist([], schema))


def _read(data: bytes | pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        batch: pa.RecordBatch = stream.read_next_batch()
    batch.validate(full=True)
    return batch


def _is_wanted(batch: pa.RecordBatch, wanted: Wanted) -> np.ndarray[Any, Any]:
    """Rows without a key are of key group 0."""
    columns = batch.columns[: note_of(batch, "keys")]
    groups = groups_of(columns, wanted.max_parallelism) if columns else np.zeros(batch.num_rows, np.uint16)
    return (groups >= wanted.groups.start) & (groups < wanted.groups.stop)

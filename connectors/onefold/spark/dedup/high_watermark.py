"""The state of a deduplicating reader of ordered ids: each source's high watermark, and which rows are above it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onefold.engine.logics.deduplicating import above

__all__ = ["SEQUENCE", "SOURCE", "HighWatermark"]

SOURCE = "__onefold_source"
SEQUENCE = "__onefold_sequence"

_STATE = pa.schema([("source", pa.binary()), ("high_watermark", pa.int64())], metadata={"version": "1"})
_NONE = -1


class HighWatermark:
    """The high watermarks of the sources of one partition's records: a row is new if it is above its source's.

    The state depends on the partition's records and their order, and not on how they are cut into batches.
    """

    def __init__(self, state: bytes | None = None) -> None:
        self._watermarks: dict[bytes, int] = {}
        if state is not None:
            table = pa.ipc.open_stream(state).read_all()
            self._watermarks = dict(zip(table["source"].to_pylist(), table["high_watermark"].to_pylist(), strict=True))

    def state(self) -> bytes:
        columns = [pa.array(self._watermarks.keys(), pa.binary()), pa.array(self._watermarks.values(), pa.int64())]
        return to_ipc(pa.RecordBatch.from_arrays(columns, schema=_STATE))

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which of the rows, in the partition's order, are new. Remembers them."""
        named = rows.column(SOURCE).dictionary_encode()
        names: list[bytes] = named.dictionary.to_pylist()
        codes, numbers = named.indices.to_numpy(), rows.column(SEQUENCE).to_numpy()
        before = np.fromiter((self._watermarks.get(name, _NONE) for name in names), np.int64, len(names))
        is_new, tops = above(numbers, codes, np.argsort(codes, kind="stable"), before)
        self._watermarks.update(zip(names, tops.tolist(), strict=True))
        return pa.array(is_new)


def to_ipc(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    raw: bytes = out.getvalue().to_pybytes()
    return raw

"""The state of a deduplicating reader of ordered ids: each source's highest number, and which rows are above it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["SEQUENCE", "SOURCE", "HighWatermark"]

SOURCE = "__onefold_source"
SEQUENCE = "__onefold_sequence"

_STATE = pa.schema([("source", pa.binary()), ("highest", pa.int64())], metadata={"version": "1"})
_NONE = -1


class HighWatermark:
    """Of one partition of a topic. A row is new if its number is above all that came before it from its source.

    What it keeps is a function of the partition's records in their order, however they are cut into batches.
    """

    def __init__(self, state: bytes | None = None) -> None:
        self._highest: dict[bytes, int] = {}
        if state is not None:
            table = pa.ipc.open_stream(state).read_all()
            self._highest = dict(zip(table["source"].to_pylist(), table["highest"].to_pylist(), strict=True))

    def state(self) -> bytes:
        columns = [pa.array(self._highest.keys(), pa.binary()), pa.array(self._highest.values(), pa.int64())]
        return to_ipc(pa.RecordBatch.from_arrays(columns, schema=_STATE))

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which of the rows, in the partition's order, are new. Remembers them."""
        named = rows.column(SOURCE).dictionary_encode()
        names: list[bytes] = named.dictionary.to_pylist()
        codes, numbers = named.indices.to_numpy(), rows.column(SEQUENCE).to_numpy()
        before = np.fromiter((self._highest.get(name, _NONE) for name in names), np.int64, len(names))
        order = np.argsort(codes, kind="stable")
        by_source = codes[order]
        starts = np.flatnonzero(np.diff(by_source, prepend=-1))  # of each source's rows; its code is its place here
        # Ahead of each source's rows goes what is known of it. The greatest so far, within a source, is found over all
        # sources at once: by the number's rank, and a step that no rank reaches from one source to the next.
        heights = np.insert(numbers[order], starts, before)
        ranks = np.unique(heights, return_inverse=True)[1].astype(np.int64)
        climbing = np.insert(by_source, starts, by_source[starts]).astype(np.int64) * len(heights) + ranks
        rises = climbing[1:] > np.maximum.accumulate(climbing)[:-1]
        is_row = np.ones(len(heights), bool)
        is_row[starts + np.arange(len(starts))] = False
        is_new = np.empty(len(numbers), bool)
        is_new[order] = rises[is_row[1:]]
        tops = np.maximum(np.maximum.reduceat(numbers[order], starts), before)
        self._highest.update(zip(names, tops.tolist(), strict=True))
        return pa.array(is_new)


def to_ipc(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    raw: bytes = out.getvalue().to_pybytes()
    return raw

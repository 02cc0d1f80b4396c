"""The deduplicating reader in the executors: rows go through Spark's state operator in blocks.

Spark hands a stateful Python function pandas data frames. These cannot hold integers with nulls, nested values or
decimals exactly, and Spark sorts and copies them row by row. So rows travel in blocks: an Arrow record batch in one
binary value. `pack` makes a block for each partition of the topic, `keep_new` drops rows that were seen, `unpack` gives
the rows back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord
from onefold.spark.dedup.high_watermark import SEQUENCE, SOURCE, HighWatermark, to_ipc
from onefold.spark.runtime.workers import freeze_imports

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

__all__ = ["BLOCKS", "ID", "KEPT", "WATERMARKS", "Places", "keep_first", "keep_new", "pack", "unpack"]

BLOCKS = "topic string, partition int, first bigint, last bigint, rows binary"
_BLOCKS = pa.schema(
    {"topic": pa.string(), "partition": pa.int32(), "first": pa.int64(), "last": pa.int64(), "rows": pa.binary()}
)
KEPT = "rows binary"
WATERMARKS = "watermarks binary"
ID = "__onefold_id"

_ORDERED = r"(?s)^(?P<source>.*):(?P<number>[0-9]{1,18})$"

Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Places:
    """The columns with a row's place in Kafka, and what errors call its id."""

    topic: str
    partition: str
    offset: str
    id_is: str = "the id"

    def of(self, batch: pa.RecordBatch, row: int) -> str:
        topic, partition, offset = (batch.column(name)[row].as_py() for name in self.columns)
        return f"{topic}/{partition} offset {offset}"

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.topic, self.partition, self.offset


def pack(places: Places) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """For mapInArrow: packs rows into blocks, each of one partition and in its order, with the ids split."""

    def packed(batches: Batches) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        for batch in batches:
            if batch.num_rows:
                blocks = [_block(part, places) for part in _by_partition(_with_parts(batch, places), places)]
                yield pa.RecordBatch.from_pylist(blocks, _BLOCKS)

    return packed


def keep_new(places: Places) -> Callable[[Any, Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """For applyInPandasWithState, by topic and partition: drops the rows of the blocks that were seen before."""

    def kept(_key: Any, blocks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        seen = HighWatermark(bytes(state.get[0]) if state.exists else None)
        yield from _new(blocks, seen, places)
        state.update((seen.state(),))

    return kept


def keep_first(places: Places) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """For applyInPandas, by topic and partition: the same for a batch DataFrame, which needs no state."""

    def kept(blocks: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        return pd.concat(_new([blocks], HighWatermark(), places))

    return kept


def unpack(columns: Sequence[str]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """For mapInArrow: gives the rows in the blocks back, with these columns."""
    names = list(columns)

    def unpacked(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column("rows"):
                yield from (rows.select(names) for rows in pa.ipc.open_stream(block.as_buffer()))

    return unpacked


def _new(blocks: Iterable[pd.DataFrame], seen: HighWatermark, places: Places) -> Iterator[pd.DataFrame]:
    import pandas as pd

    for rows, raw in _in_order(blocks, places):
        new = seen.mask(rows)
        if new.true_count == rows.num_rows:
            yield pd.DataFrame({"rows": [raw]})
        elif new.true_count:
            yield pd.DataFrame({"rows": [to_ipc(rows.filter(new))]})


def _with_parts(batch: pa.RecordBatch, places: Places) -> pa.RecordBatch:
    """The batch with the columns SOURCE and SEQUENCE. Raises `BadRecord` for an id that is missing or malformed."""
    if ID in batch.schema.names:
        ids = batch.column(ID).cast(pa.binary())
        found = pc.extract_regex(ids, pattern=_ORDERED)
        if found.null_count:
            row = pc.index(found.is_null(), True).as_py()
            raise BadRecord("id-not-usable", _complaint(places, batch, row, ids[row].as_py()))
        batch = batch.drop_columns([ID])
        numbers = found.field("number").cast(pa.string()).cast(pa.int64())
        return batch.append_column(SOURCE, found.field("source")).append_column(SEQUENCE, numbers)
    source, number = batch.column(SOURCE), batch.column(SEQUENCE)
    is_good = pc.and_(source.is_valid(), pc.fill_null(pc.greater_equal(number, 0), False))
    if is_good.false_count:
        row = pc.index(is_good, False).as_py()
        raise BadRecord("id-not-usable", _complaint(places, batch, row, (source[row].as_py(), number[row].as_py())))
    return batch


def _complaint(places: Places, batch: pa.RecordBatch, row: int, value: object) -> str:
    what = "is missing" if value is None else f"is {value!r}"
    return (
        f"{places.of(batch, row)}: {places.id_is} {what}, and an ordered id is a text SOURCE:NUMBER such as"
        " b'orders/3:1700', or a source and a number from 0. Name the place where the ids are (OrderedIds(id=...)),"
        " filter such records out first, or deduplicate ids of other forms by IdsWithin"
    )


def _by_partition(batch: pa.RecordBatch, places: Places) -> Iterator[pa.RecordBatch]:
    topics, partitions = batch.column(places.topic), batch.column(places.partition)
    ends = pc.min_max(topics), pc.min_max(partitions)
    if all(end["min"] == end["max"] for end in ends):
        yield batch
        return
    pairs = pa.table([topics, partitions], ["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
    for pair in pairs.to_pylist():
        yield batch.filter(pc.and_(pc.equal(topics, pair["topic"]), pc.equal(partitions, pair["partition"])))


def _block(rows: pa.RecordBatch, places: Places) -> dict[str, object]:
    rows = _by_offset(rows, places)
    at = {name: rows.column(name)[0].as_py() for name in places.columns}
    return {
        "topic": at[places.topic],
        "partition": at[places.partition],
        "first": at[places.offset],
        "last": rows.column(places.offset)[-1].as_py(),
        "rows": to_ipc(rows),
    }


def _by_offset(rows: pa.RecordBatch, places: Places) -> pa.RecordBatch:
    offsets = rows.column(places.offset).to_numpy()
    if (np.diff(offsets) >= 0).all():
        return rows
    return rows.take(pa.array(np.argsort(offsets, kind="stable")))


def _in_order(blocks: Iterable[pd.DataFrame], places: Places) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Sorts one batch's blocks of a partition: Spark's shuffle brings them in any order."""
    found = sorted(
        (int(first), int(last), rows)
        for frame in blocks
        for first, last, rows in zip(frame["first"], frame["last"], frame["rows"], strict=True)
    )
    if all(before[1] <= after[0] for before, after in pairwise(found)):
        for _, _, raw in found:
            yield _from_ipc(raw), raw
    else:  # somebody shuffled the rows before
        whole = pa.Table.from_batches([_from_ipc(raw) for _, _, raw in found]).combine_chunks()
        rows = _by_offset(whole.to_batches()[0], places)
        yield rows, to_ipc(rows)


def _from_ipc(raw: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(raw).read_next_batch()

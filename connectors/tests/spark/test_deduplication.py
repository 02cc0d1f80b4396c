"""What the deduplicating reader does with Arrow record batches, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import BinaryType, StructType

from onefold.core.errors import BadRecord, ConfigError
from onefold.spark.dedup import deduplication
from onefold.spark.dedup.dedup_state import ID, Places, keep_new, pack, unpack
from onefold.spark.dedup.high_watermark import SEQUENCE, SOURCE, HighWatermark

PLACES = Places("topic", "partition", "offset", "the record's key")
COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("n", pa.int64()),
        ("deep", pa.list_(pa.struct([("d", pa.decimal128(12, 2))]))),
    ]
)
Ids = Sequence[str | None]


def rows(ids: Ids, first: int = 0, topic: str = "t", partition: int = 0) -> pa.RecordBatch:
    count = len(ids)
    columns = {
        "topic": [topic] * count,
        "partition": [partition] * count,
        "offset": range(first, first + count),
        "n": [2**62 + i if i % 2 else None for i in range(count)],
        "deep": [[{"d": Decimal(i)}, None] if i % 3 else None for i in range(count)],
    }
    made = [pa.array(columns[field.name], field.type) for field in COLUMNS]
    batch = pa.RecordBatch.from_arrays(made, schema=COLUMNS)
    return batch.append_column(ID, pa.array([id.encode() if id is not None else None for id in ids], pa.binary()))


def new_state() -> GroupState:
    no: dict[str, Any] = dict.fromkeys(("hasTimedOut", "watermarkPresent", "defined", "updated", "removed"), False)
    value: Any = None
    return GroupState(value, 0, 0, "NoTimeout", timeoutTimestamp=-1, keyAsUnsafe=b"", valueSchema=SCHEMA, **no)


SCHEMA = StructType().add("watermarks", BinaryType())


def through(batches: Iterable[pa.RecordBatch], state: GroupState, shuffled: random.Random | None = None) -> pa.Table:
    """One batch of one partition, as Spark would carry it."""
    blocks = [block for batch in pack(PLACES)(batches) for block in batch.to_pylist()]
    if shuffled is not None:
        shuffled.shuffle(blocks)
    frames = [pd.DataFrame(blocks[i : i + 2]) for i in range(0, len(blocks), 2)]
    kept = [pa.RecordBatch.from_pandas(frame) for frame in keep_new(PLACES)(("t", 0), frames, state)]
    return pa.Table.from_batches(unpack(COLUMNS.names)(kept), COLUMNS)


numbers = st.tuples(st.sampled_from([b"", b"a", b"b:1", b"\xff"]), st.integers(0, 9))


@given(st.lists(st.lists(numbers, min_size=1, max_size=12), max_size=6))
def test_a_row_is_new_if_its_number_is_above_all_before_it_however_the_log_is_cut(
    batches: list[list[tuple[bytes, int]]],
) -> None:
    highest: dict[bytes, int] = {}
    state: bytes | None = None
    for batch in batches:
        expected = []
        for source, number in batch:
            expected.append(number > highest.get(source, -1))
            highest[source] = max(number, highest.get(source, -1))
        seen = HighWatermark(state)
        columns = {SOURCE: pa.array([s for s, _ in batch], pa.binary()), SEQUENCE: pa.array([n for _, n in batch])}
        assert seen.mask(pa.record_batch(columns)).to_pylist() == expected
        state = seen.state()


def test_rows_come_out_as_they_went_in_to_the_last_bit() -> None:
    batches = [rows([f"a:{i}" for i in range(7)]), rows(["a:6", "b:0", "a:7"], 7)]
    kept = through(batches, new_state())
    whole = pa.Table.from_batches([batch.drop_columns([ID]) for batch in batches])
    assert kept.to_pylist() == [row for i, row in enumerate(whole.to_pylist()) if i != 7]


def test_a_partitions_order_counts_and_not_the_order_in_which_its_blocks_arrive() -> None:
    for seed in range(20):
        batches = [rows([f"a:{i}"], i) for i in range(9)]
        kept = through(batches, new_state(), random.Random(seed))
        assert kept["offset"].to_pylist() == [*range(9)]


def test_rows_that_were_shuffled_before_are_put_back_in_order() -> None:
    whole = rows([f"a:{i}" for i in range(40)])
    mixed = random.Random(1).sample(range(40), 40)
    batches = [whole.take(mixed[:25]), whole.take(mixed[25:])]
    assert through(batches, new_state())["offset"].to_pylist() == [*range(40)]


def test_a_batch_of_several_partitions_makes_a_block_for_each() -> None:
    parts = [rows(["a:1", "a:2"], 5, "t", 0), rows(["a:1"], 3, "t", 1), rows(["a:9"], 0, "u", 0)]
    mixed = pa.Table.from_batches(parts).take([3, 0, 2, 1]).combine_chunks().to_batches()[0]
    blocks = [block for batch in pack(PLACES)([mixed]) for block in batch.to_pylist()]
    found = sorted((b["topic"], b["partition"], b["first"], b["last"]) for b in blocks)
    assert found == [("t", 0, 5, 6), ("t", 1, 3, 3), ("u", 0, 0, 0)]


def test_what_was_seen_is_remembered_from_batch_to_batch() -> None:
    state = new_state()
    assert through([rows(["a:1", "a:2", "b:1"])], state).num_rows == 3
    assert through([rows(["a:1", "a:2"], 3)], state).num_rows == 0
    assert through([rows(["a:2", "a:3", "b:1", "b:7"], 5)], state)["offset"].to_pylist() == [6, 8]


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        (None, "is missing"),
        ("", "is b''"),
        ("a", "is b'a'"),
        ("a:", "is b'a:'"),
        ("a:-1", "is b'a:-1'"),
        ("a:1 ", "is b'a:1 '"),
        ("a:1\n", r"is b'a:1\n'"),
        ("a:1000000000000000000", "is b'a:1000000000000000000'"),
        ("a:٣", "an ordered id is a text"),
    ],
)
def test_an_id_that_is_missing_or_malformed_is_named_with_its_place(id: str | None, shown: str) -> None:
    with raises(BadRecord, "id-not-usable", shown):
        list(pack(PLACES)([rows(["a:1", "b:2", id, "a:2"], 10, partition=3)]))


def test_ids_may_have_any_text_as_their_source() -> None:
    ids = ["größe:1", "größe:2", ":0", "a:b:1", "a\nb:1", "0" * 300 + ":999999999999999999"]
    assert through([rows(ids)], new_state()).num_rows == len(ids)


def test_a_source_and_a_sequence_in_two_columns_may_not_be_null_or_negative() -> None:
    good = rows(["-"] * 3).drop_columns([ID]).append_column(SOURCE, pa.array([b"a", b"a", b"b"]))
    assert through([good.append_column(SEQUENCE, pa.array([0, 1, 0]))], new_state()).num_rows == 3
    for numbers_ in ([0, 1, None], [0, 1, -1]):
        with raises(BadRecord, "id-not-usable"):
            list(pack(PLACES)([good.append_column(SEQUENCE, pa.array(numbers_, pa.int64()))]))


def test_fields_of_a_value_are_never_taken_for_the_records_own_key_headers_and_place() -> None:
    own = ["kafka_topic", "kafka_partition", "kafka_offset"]
    df: Any = SimpleNamespace(columns=["topic", "partition", "offset", "key", "headers", "kafka_key", *own])
    assert deduplication._places(df).columns == tuple(own)
    assert deduplication._one_of(df, deduplication._names(df.columns, "key"), "its key") == "kafka_key"
    with raises(ConfigError, "no-such-column"):
        deduplication._one_of(df, deduplication._names(df.columns, "headers"), "its headers")

"""From Kafka through Spark into HBase, in each mode, in one epoch; read back by `read_hbase`; and `verify` of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support import Rig, fresh

from onefold.core import ConfigError, WriteThrough
from onefold.core.invariants import Comparison
from onefold.hbase import HBaseTable
from onefold.hbase.mapping import RowKey, TableMapping
from onefold.local import HBaseServer
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.folding import Declared
from onefold.sources import HBaseSource
from onefold.spark import read_hbase
from onefold.spark.hbase_results import due, read_results
from onefold.spark.verify import compare, verify

pytestmark = pytest.mark.servers

SCHEMA = "account long, id long, n int, x double, tag string, doc array<int>, gone boolean"
COUNT = 400
# Of account i % 8, so that each account is in one of the topic's partitions, in the order of its ids; x cancels out.
ROWS = [
    (i % 8, i, i - 100, (-1) ** (i // 8) * (i // 16) / 7, f"t{i % 5}" if i % 3 else None, [i, i % 2], i >= COUNT - 2)
    for i in range(COUNT)
]
LATER_MS = 4_000_000_000_000


def greatest() -> Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch]:
    """A merge function: the row with the greater n. Not the module's own, which workers cannot import."""

    def merge(base: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        is_newer = pc.greater(new.column("n"), base.column("n"))
        columns = zip(base.columns, new.columns, strict=True)
        return pa.RecordBatch.from_arrays([pc.if_else(is_newer, b, a) for a, b in columns], schema=new.schema)

    return merge


def wrong(found: Comparison) -> dict[str, int]:
    kinds = {"lost": found.lost, "duplicated": found.duplicated, "changed": found.changed}
    return {kind: count for kind, count in {**kinds, "unexpected": found.unexpected}.items() if count}


def change(sink: HBaseSink, key: int, column: str, value: Any) -> None:
    """As somebody else would write it, into the row of an account."""
    mapping = sink.settings.declared.bound(pa.schema([("account", pa.int64()), (column, pa.scalar(value).type)]))
    rows = pa.record_batch({"account": pa.array([key], pa.int64()), column: pa.array([value])})
    table = HBaseTable(sink.settings.hbase, mapping.table)
    table.put(mapping.keys(rows), mapping.cells(rows)[:1], LATER_MS)


def sinks(servers: str) -> Sequence[HBaseSink]:
    merges = {"id": "last", "n": "sum", "x": "sum", "tag": "union", "doc": "union", "gone": "last"}
    salted = RowKey.of("account", salt=16)
    rolling, applied = (TableMapping.of(fresh(mode), "account", family="f") for mode in ("rolling", "incremental"))
    return (
        HBaseSink(servers, fresh("newest"), row_key=salted, family="f", order="id", delete="gone", regions=4),
        HBaseSink(servers, rolling, mode="rolling", merge=merges, order="id"),
        HBaseSink(servers, applied, mode="incremental", merge=greatest(), id="id"),
    )


@pytest.fixture
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before or "4")


@pytest.mark.usefixtures("_few_tasks")
def test_what_each_mode_made_of_a_topic_is_verified_and_every_change_by_hand_is_named(
    rig: Rig, hbase_server: HBaseServer
) -> None:
    names = [column.split()[0] for column in SCHEMA.split(", ")]
    rig.put_values([json.dumps(dict(zip(names, row, strict=True))).encode() for row in ROWS])
    source = rig.source(at_most=250, schema=SCHEMA)
    made = sinks(hbase_server.servers)
    rig.run(rig.pipeline(*made, store=rig.sqlite), source)
    pipeline = rig.pipeline(*made, store=rig.sqlite)
    result = verify(rig.spark, pipeline, source, made[1])
    assert result.is_exact, result
    assert (result.epochs, result.comparison.actual) == (2, 8)
    with pytest.raises(ConfigError, match="named by account"):
        verify(rig.spark, pipeline, source, made[0], ["id"])
    committer, done = made[0].recover(pipeline.name), pipeline.history()[-1]
    assert isinstance(committer, WriteThrough)
    committer.announce(replace(done, epoch=done.epoch + 1, timestamp_ms=done.timestamp_ms + 1))
    with pytest.raises(ConfigError, match="epoch 3 of pipeline 'test' was begun and not finished"):
        verify(rig.spark, pipeline, source, made[0])
    pipeline.close()

    df = read_hbase(
        rig.spark, HBaseSource(made[0].settings.hbase, made[0].settings.declared), "account int, doc array<int>"
    )
    assert df.rdd.getNumPartitions() == 4
    assert sorted((row.account, row.doc) for row in df.collect()) == [(i % 8, [i, i % 2]) for i in range(392, 398)]

    rows = rig.spark.createDataFrame(ROWS, SCHEMA)
    rows = rows.where("account <> 2").union(rows.where("account = 1").withColumn("account", F.lit(50)))
    for sink in made:
        change(sink, 1, "n", 5)
        change(sink, 99, "n", 5)
        wanted = due(rows, sink)
        found = compare(wanted.rows, read_results(rig.spark, sink, wanted), wanted.key, wanted.versions)
        assert wrong(found) == {"lost": 1, "changed": 1, "unexpected": 2}, (sink, found)


def test_what_spark_makes_of_odd_values_is_what_the_sink_makes_of_them(spark: SparkSession) -> None:
    nan, big = float("nan"), 2**63 - 1
    values = {
        "k": [1, 1, 1, 1, 2, 2, 3, 4],
        "low": [nan, 1.0, float("-inf"), None, nan, nan, None, -0.5],
        "high": [2.0, nan, 1.0, None, nan, nan, None, float("inf")],
        "total": [big, big, -big, None, -big, -1, None, 7],
        "any": [nan, 1.0, None, 2.0, 1.0, float("inf"), None, 0.25],
    }
    batch = pa.record_batch(values)
    merges = {"low": "min", "high": "max", "total": "sum", "any": "count"}
    sink = HBaseSink("localhost:9090", "t", row_key="k", family="f", mode="rolling", merge=merges)
    wanted = due(spark.createDataFrame(pa.table([*batch.columns], names=[*values])), sink)
    theirs = wanted.rows.select(*values).orderBy("k").toArrow().to_pylist()

    merge = Declared.of(merges)
    keys, partials = merge.fold(batch.column("k").cast(pa.string()).cast(pa.binary()), merge.lift(batch))
    ours = merge.settle(keys, partials, None).to_pylist()
    assert str([{"k": int(key.as_py()), **row} for key, row in zip(keys, ours, strict=True)]) == str(theirs)

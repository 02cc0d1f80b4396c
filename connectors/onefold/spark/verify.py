"""Compare what the source holds, up to the ledger's positions, with what the destination holds, key by key.

The verdict is the named invariants' (`onefold.core.invariants`), on this comparison and on what store and destination
say of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from onefold.core import ConfigError, EpochRecord, EpochState, Positions
from onefold.core.effects import StoreFacts
from onefold.core.invariants import ADOPTED, INVARIANTS, SAMPLES_MAX, AtomicEpoch, Comparison, Evidence, verdicts
from onefold.sinks.postgres import PostgresSink
from onefold.sources.kafka import KafkaSource
from onefold.sources.postgres import PostgresSource
from onefold.spark.failures import from_spark
from onefold.spark.formats import register
from onefold.spark.pipeline import Pipeline
from onefold.spark.postgres_source import read_postgres

__all__ = ["Comparison", "Verification", "compare", "compare_with_table", "read_source", "verify"]

# Whether readers ever saw a part of an epoch, nobody can tell afterwards.
JUDGED = tuple(invariant for invariant in INVARIANTS if not isinstance(invariant, AtomicEpoch))


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison, and what contradicts each invariant, by its name. `is_exact` is the verdict."""

    comparison: Comparison
    positions: Positions
    epochs: int
    invariants: dict[str, tuple[str, ...]]

    @property
    def is_exact(self) -> bool:
        return not any(self.invariants.values())


def verify(
    spark: SparkSession,
    pipeline: Pipeline,
    source: KafkaSource,
    sink: PostgresSink,
    key: Sequence[str],
    transform: Callable[[DataFrame], DataFrame] = lambda df: df,
) -> Verification:
    """Check one sink of a pipeline against its source. Writes no row (onefold's own tables are made where they are
    missing). The pipeline must stand still meanwhile, and Kafka must still have all of its records.

    `transform` is the pipeline's own, from the source's DataFrame to the table's rows.
    """
    committer = sink.recover(pipeline.name)
    try:
        ledger = committer.ledger()
        if ledger is None:
            raise ConfigError(
                f"sink {sink.name!r} has no ledger for pipeline {pipeline.name!r}: nothing was written under that name."
                " Check the pipeline's and the table's name"
            )
        leftovers = tuple(committer.leftovers(2**62))
    finally:
        committer.close()
    facts = pipeline.facts()
    history = pipeline.history()
    begin = _begin(facts, history, source)
    expected = transform(read_source(spark, source, begin, ledger.positions))
    try:
        comparison = compare_with_table(spark, expected, sink, key)
    except PySparkException as error:
        raise from_spark(error) from error
    evidence = Evidence(
        compared={sink.name: comparison},
        initial=begin if _is_whole(history) else None,
        epochs=tuple(history),
        leftovers=leftovers,
        ledgers={sink.name: ledger},
        store_id=facts.store_id,
    )
    epochs = sum(record.state is not EpochState.GIVEN_UP for record in history)
    return Verification(comparison, ledger.positions, epochs, verdicts(evidence, JUDGED))


def _begin(facts: StoreFacts, history: Sequence[EpochRecord], source: KafkaSource) -> Positions:
    """The pipeline's first position; by the source's own settings where the store was adopted, and forgot it."""
    if facts.frozen is not None:
        return facts.frozen
    if _is_whole(history):
        return history[0].range.start
    return source.initial_positions()


def _is_whole(history: Sequence[EpochRecord]) -> bool:
    """Whether the store still has the pipeline's first epoch: old ones are pruned, or were another store's."""
    return bool(history) and history[0].epoch == 1 and history[0].query_id != ADOPTED


def compare_with_table(spark: SparkSession, expected: DataFrame, sink: PostgresSink, key: Sequence[str]) -> Comparison:
    """Compare rows with those of a sink's table, at one snapshot of it."""
    # What was written may be narrower than its column: an int in a bigint, a decimal in a numeric without bounds.
    table = PostgresSource(sink.url, sink.table, columns=expected.columns, narrowing="check", hold_s=0)
    with table.frozen() as actual:
        # A document that does not fit is a row that was changed, and no reason to stop.
        return compare(expected, read_postgres(spark, actual, expected.schema, json_mode="PERMISSIVE"), key)


def compare(expected: DataFrame, actual: DataFrame, key: Sequence[str]) -> Comparison:
    """Compare two sets of rows with equal columns by key; a key may occur several times on both sides."""
    missing = [name for name in key if name not in expected.columns]
    if missing or not key:
        raise ConfigError(f"the key must be columns of the rows ({', '.join(expected.columns)}); not: {missing or key}")
    keys = [F.col(f"`{name}`") for name in key]
    sides = [
        side.select(*keys, _fingerprint(side).alias("__hash"), F.lit(number).alias("__side"))
        for number, side in enumerate((expected, actual))
    ]
    here, there = F.col("__side") == 0, F.col("__side") == 1
    wide = F.col("__hash").cast("decimal(38,0)")
    grouped = (
        sides[0]
        .unionAll(sides[1])
        .groupBy(*keys)
        .agg(
            F.count(F.when(here, 1)).alias("__expected"),
            F.count(F.when(there, 1)).alias("__actual"),
            F.coalesce(F.sum(F.when(here, wide)), F.lit(0)).alias("__expected_hash"),
            F.coalesce(F.sum(F.when(there, wide)), F.lit(0)).alias("__actual_hash"),
        )
    )
    e, a = F.col("__expected"), F.col("__actual")
    kinds = {
        "lost": F.greatest(e - a, F.lit(0)),
        "duplicated": F.when(e > 0, F.greatest(a - e, F.lit(0))).otherwise(0),
        "changed": F.when((e == a) & (F.col("__expected_hash") != F.col("__actual_hash")), e).otherwise(0),
        "unexpected": F.when(e == 0, a).otherwise(0),
    }
    judged = grouped.select(*keys, e, a, *(column.alias(f"__{kind}") for kind, column in kinds.items())).persist()
    try:
        totals = judged.agg(
            F.sum(e).alias("expected"), F.sum(a).alias("actual"), *(F.sum(f"__{kind}").alias(kind) for kind in kinds)
        ).collect()[0]
        samples = {
            kind: [
                ", ".join(f"{name}={row[name]}" for name in key)
                + f" (expected {row['__expected']}, found {row['__actual']})"
                for row in judged.where(f"__{kind} > 0").limit(SAMPLES_MAX).collect()
            ]
            for kind in kinds
            if totals[kind]
        }
    finally:
        judged.unpersist()
    counts = {name: int(totals[name] or 0) for name in ("expected", "actual", *kinds)}
    return Comparison(**counts, samples=samples)


def read_source(spark: SparkSession, source: KafkaSource, start: Positions, end: Positions) -> DataFrame:
    """The source's records between two positions, as a bounded DataFrame."""
    register(spark)
    # A partition that came after `end` was read ends where it begins.
    later = {f"{t}/{p}": dict(start.items).get(f"{t}/{p}", 0) for t, p in source.broker().partitions(source.topics)}
    whole = Positions.of({**later, **dict(end.items)})
    options = {**source.options(start), "endingOffsets": whole.to_kafka_json()}
    options.pop("maxOffsetsPerTrigger", None)
    return spark.read.format("onefold_kafka").options(**options).load()


def _fingerprint(df: DataFrame) -> Column:
    columns = [_hashable(F.col(f"`{item.name}`"), item.dataType) for item in df.schema.fields]
    return F.xxhash64(*columns)


def _hashable(column: Column, kind: DataType) -> Column:
    """A struct that Spark hashes to different values for different ones of `column`.

    Spark's hash passes over nulls and over the seams between elements, so that (null, 1) and (1, null), or [[1], [2]]
    and [[1, 2]], would be the same without the flags and sizes; and it refuses maps.
    """
    inner = column
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        # Sorted by hash: not every kind of value has an order.
        hashes = F.transform(F.map_entries(column), lambda item: F.xxhash64(_hashable(item, entry)))
        inner = F.struct(F.size(column), F.array_sort(hashes))
    elif isinstance(kind, ArrayType):
        inner = F.struct(F.size(column), F.transform(column, lambda item: _hashable(item, kind.elementType)))
    elif isinstance(kind, StructType):
        inner = F.struct(*(_hashable(column.getField(f.name), f.dataType) for f in kind.fields))
    return F.struct(F.isnull(column), inner)

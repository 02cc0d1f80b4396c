"""Reconciles the source's rows with a table's, where some are dead letters and some are versions of one row.

Every row of the source is either alive, and the table shows it, or dead, and one dead letter stands for it. A dead
letter is matched with its row by the source position, where it has one, else by the row's key (and order).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from onefold.clients.postgres import sessions as pool
from onefold.sinks.postgres import PostgresSink
from onefold.sources.postgres import PostgresSource
from onefold.spark.formats.postgres_format import read_postgres
from onefold.spark.runtime.dataframe_columns import column, columns
from onefold.spark.verify.comparing.sides import Sides, Versions
from onefold.spark.verify.comparing.stored_forms import Stored, as_they_are

if TYPE_CHECKING:
    from onefold.sinks.sql import SqlSink

KINDS = ("lost", "duplicated", "changed", "unexpected")
UNTOLD = "untold"
CONTENT_HASH = "__content"  # of a record of a topic: a number for all that it has
EPOCH = "__onefold_epoch"  # of a row: the epoch that it was in
FORGOTTEN = 0  # stands for all epochs before the first one on record
_TABLE_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
_COUNTS = ("__row", "__dead", "__letter", "__again", "__stray", "__found")


@dataclass(frozen=True)
class DeadLetters:
    """The dead letters of one sink: `rows` has the JSON texts `position` and `row`.

    `position` names the columns that say where a row came from; none: rows are found by key, as the table has `stored`
    it.
    """

    rows: DataFrame
    position: tuple[str, ...] = ()
    stored: Stored = as_they_are


def reconcile(sides: Sides, letters: DeadLetters | None) -> DataFrame:
    """A line for every row on both sides, and for every dead letter that no row stands for.

    Columns: the key; `__order`, `__deleted` (is it a deletion) and `__hash`, of the columns that `actual` has; and
    counts: `__row` (a row of the source, not known to be dead), `__dead` (one with a dead letter), `__letter` (a dead
    letter of some row of this key and order), `__again` (further dead letters of a row), `__stray` (a dead letter of no
    row), `__found` (a row of the table).
    """
    expected, actual, key, changes = sides.expected, sides.actual, sides.key, sides.changes
    order = changes.order if changes is not None else ()
    fields = {field.name: field for field in expected.schema.fields}
    content = fingerprint([fields[name] for name in actual.columns]).alias("__hash")
    position = letters.position if letters is not None else ()
    rows = expected.select(
        *(column(name).alias(name) for name in key),
        order_of(column(name) for name in order),
        deletion_of(changes).alias("__deleted"),
        content,
        *(column(name).alias(f"__at{number}") for number, name in enumerate(position)),
    )
    no_order = F.lit(None).cast(rows.schema["__order"].dataType).alias("__order")
    there = actual.select(*columns(key), no_order, F.lit(False).alias("__deleted"), content)
    found = _lines(there, key, found=1)
    if letters is None:
        return _lines(rows, key, row=1).unionAll(found)
    names = [*dict.fromkeys((*key, *order))]
    known = F.from_json("row", StructType([fields[name] for name in names]))
    places = F.from_json("position", StructType([fields[name] for name in position]))
    at = {f"__at{number}": places.getField(name) for number, name in enumerate(position)}
    of_rows = letters.rows.select(
        *(known.getField(name).alias(name) for name in names), *(value.alias(name) for name, value in at.items())
    )
    dead = letters.stored(of_rows).select(
        *columns(key),
        order_of(map(column, order)),
        F.lit(False).alias("__deleted"),
        F.lit(None).cast("bigint").alias("__hash"),
        *at,
    )
    if position:
        return _by_position(rows, dead, key, len(position)).unionAll(found)
    for name in key:
        if isinstance(fields[name].dataType, StringType):  # Postgres has no place for NUL, in a dead letter neither
            rows = rows.withColumn(name, F.replace(column(name), F.lit("\0"), F.lit("\\u0000")))
    return _lines(rows, key, row=1).unionAll(_lines(dead, key, letter=1)).unionAll(found)


def judge_appended(lines: DataFrame, key: Sequence[str]) -> DataFrame:
    """For each key, how many rows are `__expected`, found (`__actual`), and wrong, by kind."""
    wide = F.col("__hash").cast("decimal(38,0)")
    totals = lines.groupBy(*columns(key)).agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        F.coalesce(F.sum(F.when(F.col("__row") > 0, wide)), F.lit(0)).alias("__expected_hash"),
        F.coalesce(F.sum(F.when(F.col("__found") > 0, wide)), F.lit(0)).alias("__actual_hash"),
    )
    rows, letters, found = F.col("__row"), F.col("__letter"), F.col("__found")
    is_known = rows + F.col("__dead") > 0
    alive = F.greatest(rows - letters, F.lit(0))
    again = F.col("__again") + F.greatest(letters - rows, F.lit(0))
    # With no position, which of a key's rows its dead letters stand for is not known.
    is_changed = (letters == 0) & (alive == found) & (F.col("__expected_hash") != F.col("__actual_hash"))
    return totals.select(
        *columns(key),
        (rows + F.col("__dead")).alias("__expected"),
        found.alias("__actual"),
        F.greatest(alive - found, F.lit(0)).alias("__lost"),
        F.when(is_known, F.greatest(found - alive, F.lit(0)) + again).otherwise(0).alias("__duplicated"),
        F.when(is_changed, found).otherwise(0).alias("__changed"),
        (F.col("__stray") + F.when(is_known, 0).otherwise(found + letters)).alias("__unexpected"),
        F.lit(0).alias("__untold"),
    )


def judge_newest(lines: DataFrame, key: Sequence[str], *, by_epoch: bool = False) -> DataFrame:
    """As `judge_appended`, for a table of versions, which has of each key the newest row that is alive.

    None, if that is a deletion, or one of an equal order is; any, where several have an equal order. A dead row is not
    expected to have a dead letter: Postgres is not asked of one that is older than what it has. Where rows are ordered
    `by_epoch`, those of forgotten epochs are equal, any of their versions is right, a deletion too, and `__untold`.
    """
    rows, letters, is_row = F.col("__row"), F.col("__letter"), F.col("__row") > 0
    versions = lines.groupBy(*columns(key), "__order").agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        F.max(F.when(is_row, F.col("__deleted"))).alias("__deleted"),
        F.min(F.when(is_row, F.col("__deleted"))).alias("__all_deleted"),
        *(
            F.collect_set(F.when(F.col(count) > 0, F.col("__hash"))).alias(f"{count}_hashes")
            for count in ("__row", "__dead", "__found")
        ),
    )
    is_alive, is_known = rows > letters, rows + F.col("__dead") > 0
    totals = versions.groupBy(*columns(key)).agg(
        F.max_by(
            F.struct("__deleted", "__all_deleted", "__row_hashes", "__order"), F.when(is_alive, F.col("__order"))
        ).alias("__newest"),
        F.flatten(
            F.collect_list(
                F.when(is_alive, F.col("__dead_hashes")).otherwise(F.concat("__dead_hashes", "__row_hashes"))
            )
        ).alias("__dead_hashes"),
        F.flatten(F.collect_list("__found_hashes")).alias("__found_hashes"),
        F.sum("__found").alias("__found"),
        F.sum(F.col("__again") + F.when(is_known, F.greatest(letters - rows, F.lit(0))).otherwise(0)).alias("__again"),
        F.sum(F.col("__stray") + F.when(is_known, 0).otherwise(letters)).alias("__stray"),
    )
    newest, found = F.col("__newest"), F.col("__found")
    is_mixed = newest["__deleted"] & ~newest["__all_deleted"]
    is_untold = (F.size(newest["__row_hashes"]) > 1) | is_mixed
    is_untold &= (newest["__order"]["_0"] == FORGOTTEN) if by_epoch else F.lit(False)
    wanted = F.when(newest.isNotNull() & ~newest["__deleted"], 1).otherwise(0)
    wanted = F.when(is_untold & is_mixed, F.least(found, F.lit(1))).otherwise(wanted)
    is_right = (wanted > 0) & F.arrays_overlap("__found_hashes", newest["__row_hashes"])
    is_dead_too = F.when((found > 0) & ~is_right & F.arrays_overlap("__found_hashes", "__dead_hashes"), 1).otherwise(0)
    return totals.select(
        *columns(key),
        wanted.alias("__expected"),
        found.alias("__actual"),
        F.greatest(wanted - found, F.lit(0)).alias("__lost"),
        (F.col("__again") + is_dead_too + F.when(wanted > 0, F.greatest(found - 1, F.lit(0))).otherwise(0)).alias(
            "__duplicated"
        ),
        F.when((wanted > 0) & (found == 1) & ~is_right & (is_dead_too == 0), 1).otherwise(0).alias("__changed"),
        (F.col("__stray") + F.when(wanted == 0, found - is_dead_too).otherwise(0)).alias("__unexpected"),
        F.when(is_untold, 1).otherwise(0).alias("__untold"),
    )


def _by_position(rows: DataFrame, dead: DataFrame, key: Sequence[str], width: int) -> DataFrame:
    """Lines of the rows and the dead letters that have the same position.

    Several rows of one position were one record: there, key and order tell which of them a dead letter stands for; of
    those that are equal in these, and not all dead, which ones are dead is not known: their dead letters stay letters.
    """
    content = F.struct(*columns(key), "__order", "__deleted", "__hash")
    at = [f"__at{number}" for number in range(width)]
    both = rows.select(*at, content.alias("__of_row"), F.lit(None).cast("boolean").alias("__is_letter"))
    both = both.unionAll(dead.select(*at, content.alias("__of_row"), F.lit(True)))
    is_letter = F.col("__is_letter").isNotNull()
    places = both.groupBy(*at).agg(
        F.collect_list(F.when(~is_letter, F.col("__of_row"))).alias("__rows"),
        F.collect_list(F.when(is_letter, F.col("__of_row"))).alias("__letters"),
    )
    known, letters = F.col("__rows"), F.col("__letters")

    def name_of(row: Column) -> Column:
        return F.struct(*(row.getField(name) for name in (*key, "__order")))

    def times(row: Column, among: Column) -> Column:
        return F.size(F.filter(among, lambda other: name_of(other).eqNullSafe(name_of(row))))

    def line(of: Column, **counts: Column) -> Column:
        fields = [of.getField(name).alias(name) for name in (*key, "__order", "__deleted", "__hash")]
        numbers = [counts.get(name.strip("_"), F.lit(0)).cast("bigint").alias(name) for name in _COUNTS]
        return F.struct(*fields, *numbers)

    def line_of(row: Column) -> Column:
        is_dead = (F.size(letters) > 0) & ((F.size(known) == 1) | (times(row, letters) >= times(row, known)))
        return line(row, row=F.when(is_dead, 0).otherwise(1), dead=F.when(is_dead, 1).otherwise(0))

    def is_for_some(letter: Column) -> Column:
        return (F.size(known) > 1) & (times(letter, letters) < times(letter, known))

    of_some = F.transform(F.filter(letters, is_for_some), lambda letter: line(letter, letter=F.lit(1)))
    lines = F.concat(F.transform(known, line_of), of_some)
    stand_for = F.size(F.filter(lines, lambda item: item["__dead"] + item["__letter"] > 0))
    rest = F.size(letters) - stand_for
    is_known = F.size(known) > 0
    spare = line(
        F.when(is_known, F.element_at(known, 1)).otherwise(F.element_at(letters, 1)),
        again=F.when(is_known, rest).otherwise(0),
        stray=F.when(is_known, 0).otherwise(rest),
    )
    every = F.when(rest > 0, F.concat(lines, F.array(spare))).otherwise(lines)
    return places.select(F.inline(every))


def _lines(df: DataFrame, key: Sequence[str], **counts: int) -> DataFrame:
    numbers = (F.lit(counts.get(name.strip("_"), 0)).cast("bigint").alias(name) for name in _COUNTS)
    return df.select(*columns(key), "__order", "__deleted", "__hash", *numbers)


def order_of(values: Iterable[Column]) -> Column:
    """By which versions of a row are compared: `__order`."""
    # A struct has a field, also where rows have no order.
    return F.struct(*(value.alias(f"_{number}") for number, value in enumerate(values)), F.lit(0).alias("_")).alias(
        "__order"
    )


def deletion_of(changes: Versions | None) -> Column:
    """Whether a row is a deletion."""
    if changes is not None and changes.delete_when_true is not None:
        return F.coalesce(column(changes.delete_when_true), F.lit(False))
    if changes is not None and changes.delete_when_null is not None:
        return column(changes.delete_when_null).isNull()
    return F.lit(False)


def shown(sink: PostgresSink | SqlSink, names: Sequence[str]) -> list[str]:
    """Which columns of the sink's rows its table has."""
    settings = sink.settings
    left_out = {settings.changes.delete_when_true} if settings.changes is not None else set()
    if isinstance(sink, PostgresSink) and (settings := sink.settings).source_position:
        with pool.borrow(settings.conninfo("verify"), f"reading {settings.target}'s columns") as connection:
            there = {name for (name,) in connection.execute(_TABLE_COLUMNS, (settings.target.sql,))}
        left_out |= {name for name in settings.source_position if name not in there}
    return [name for name in names if name not in left_out]


def read_dead_letters(
    spark: SparkSession, pipeline: str, sink: PostgresSink, snapshot: str | None, stored: Stored
) -> DeadLetters | None:
    """The dead letters of one sink of a pipeline, at a snapshot of its database; None where the sink keeps none."""
    settings = sink.settings
    if settings.on_error != "dead_letter":
        return None
    names = ("pipeline", "sink", "position", "row")
    table = PostgresSource(sink.url, str(settings.rejects), columns=names, snapshot=snapshot or "each")
    letters = read_postgres(spark, table, StructType([StructField(name, StringType()) for name in names]))
    mine = letters.where((F.col("pipeline") == pipeline) & (F.col("sink") == sink.name))
    return DeadLetters(mine.select("position", "row"), tuple(settings.source_position), stored)


def fingerprint(fields: Sequence[StructField]) -> Column:
    return F.xxhash64(*(part for field in fields for part in _hashables(column(field.name), field.dataType)))


def _hashables(value: Column, kind: DataType) -> tuple[Column, ...]:
    """What Spark hashes to different values for different ones of `value`: of a plain one without a struct, which would
    be made for every row."""
    if isinstance(kind, MapType | ArrayType | StructType):
        return (_hashable(value, kind),)
    return F.isnull(value), value


def _hashable(value: Column, kind: DataType) -> Column:
    """The same as a struct.

    Spark's hash passes over nulls and over the seams between elements, so that (null, 1) and (1, null), or [[1], [2]]
    and [[1, 2]], would be the same without the flags and sizes; and it refuses maps.
    """
    inner = value
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        # Sorted by hash: not every kind of value has an order.
        hashes = F.transform(F.map_entries(value), lambda item: F.xxhash64(_hashable(item, entry)))
        inner = F.struct(F.size(value), F.array_sort(hashes))
    elif isinstance(kind, ArrayType):
        inner = F.struct(F.size(value), F.transform(value, lambda item: _hashable(item, kind.elementType)))
    elif isinstance(kind, StructType):
        inner = F.struct(*(_hashable(value.getField(f.name), f.dataType) for f in kind.fields))
    return F.struct(F.isnull(value), inner)


def joined(one: DataFrame, other: DataFrame, key: Sequence[str], more: Sequence[str], how: str = "left") -> DataFrame:
    """Joins by keys that may be null, and keeps these columns of the other side."""
    names = {name: f"__of_{number}" for number, name in enumerate(key)}
    renamed = other.select(*(column(name).alias(theirs) for name, theirs in names.items()), *more)
    same: Column = reduce(Column.__and__, (column(name).eqNullSafe(F.col(theirs)) for name, theirs in names.items()))
    return one.join(renamed, same, how).drop(*names.values())

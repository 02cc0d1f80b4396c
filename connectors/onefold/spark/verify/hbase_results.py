"""The rows that an HBase table must have for a pipeline's rows, by its sink's mode, and the rows that it has.

Merges are done again by the sink's own code, of all rows of a key at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from onefold.clients.hbase.rows.mapping import TableMapping
from onefold.sinks.hbase import HBaseSink
from onefold.sinks.hbase.aggregates import Accumulator, Declared
from onefold.sinks.hbase.merge import Merge, aggregate_of
from onefold.sinks.hbase.modes.incremental import Incremental
from onefold.sinks.hbase.modes.rolling import Rolling
from onefold.sinks.hbase.modes.row_key import ByRowKey
from onefold.spark.runtime.dataframe_columns import column, columns, mapped
from onefold.spark.runtime.workers import freeze_imports
from onefold.spark.verify.comparing.reconcile import EPOCH, fingerprint
from onefold.spark.verify.comparing.sides import Versions
from onefold.spark.verify.origin import SourceRecords


@dataclass(frozen=True)
class DueRows:
    """`rows` come from the source; with `versions` several may be of one row, else each is one. `shown` are those of
    their columns that the table has; `sums` those of doubles, with the sizes of what was added in `__size_` and their
    name."""

    rows: DataFrame
    key: tuple[str, ...]
    shown: tuple[str, ...]
    versions: Versions | None = None
    sums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Newest:
    order: tuple[str, ...]
    delete_when_true: str | None = None
    delete_when_null: str | None = None


def due(rows: DataFrame, sink: HBaseSink) -> DueRows:
    """The rows that the table must have once these rows are written."""
    settings = sink.settings
    mode, key = settings.mode, settings.declared.row_key.names
    mapping = mode.bound(settings.declared, to_arrow_schema(rows.schema, timezone="UTC"))
    shown = tuple(mapping.schema.names)
    match mode:
        case ByRowKey():
            return DueRows(rows, key, shown, _Newest(mode.order, mode.delete_when_true))
        case Rolling(merge=merge):
            return _merged(rows, merge, mapping)
        case Incremental(merge=merge):
            once = rows.dropDuplicates([*key, mode.sequence])
            return (
                DueRows(once, key, shown, _Newest((mode.sequence,))) if merge is None else _merged(once, merge, mapping)
            )
    raise AssertionError(mode)


def newest_by_epoch(wanted: DueRows, origin: SourceRecords) -> DueRows:
    """The same, with each row's epoch as its order, where rows have none of their own: then the newest epoch's stays.

    Only where some key has different rows: it takes all of the records a second time.
    """
    versions = wanted.versions
    if versions is None or versions.order:
        return wanted
    fields = {field.name: field for field in wanted.rows.schema.fields}
    compared = [fields[name] for name in (*wanted.shown, versions.delete_when_true) if name is not None]
    kinds = wanted.rows.groupBy(*columns(wanted.key)).agg(F.count_distinct(fingerprint(compared)).alias("__kinds"))
    if kinds.where("__kinds > 1").isEmpty():
        return wanted
    return replace(wanted, rows=origin.rows_by_epoch(), versions=_Newest((EPOCH,), versions.delete_when_true))


def _merged(rows: DataFrame, merge: Merge, mapping: TableMapping) -> DueRows:
    key, shown = mapping.row_key.names, tuple(mapping.schema.names)
    sums: tuple[str, ...] = ()
    if isinstance(merge, Declared):
        added = [name for name, one in merge.merges if one == "sum"]
        sums = tuple(name for name in added if pa.types.is_floating(mapping.schema.field(name).type))
        rows = rows.withColumns({f"__size_{name}": F.abs(column(name)).cast("double") for name in sums})
        merge = replace(merge, merges=(*merge.merges, *((f"__size_{name}", "sum") for name in sums)))
        given = to_arrow_schema(rows.schema, timezone="UTC")
        kept = from_arrow_schema(pa.schema([*map(given.field, key), *merge.states(given)]))
    else:
        rows = rows.select(columns(shown))
        kept = rows.schema
    return DueRows(mapped(rows.repartition(*columns(key)), _fold(merge, mapping), kept), key, shown, sums=sums)


def _fold(merge: Merge, mapping: TableMapping) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        one = aggregate_of(merge, mapping)
        folder, is_empty = Accumulator(one), True
        for batch in batches:
            if batch.num_rows:
                folder.add(mapping.keys(batch), batch)
                is_empty = False
        if not is_empty:
            keys, partials = folder.folded()
            states = one.finish(keys, partials, None)
            arrays = [*mapping.row_key.decode(keys), *states.columns]
            yield pa.RecordBatch.from_arrays(arrays, names=[*mapping.row_key.names, *states.schema.names])

    return fold

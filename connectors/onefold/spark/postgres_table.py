"""A Postgres table as a Spark DataFrame, for verification: COPY out, parsed as Arrow, split by the table's blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO

import psycopg
import psycopg.conninfo
import pyarrow as pa
import pyarrow.csv
from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from onefold.core import ConfigError
from onefold.sinks.postgres.naming import Table

__all__ = ["read_table"]

SPLITS = 8
CHUNK_BYTES = 8 << 20
NESTED = (ArrayType, MapType, StructType)


def read_table(spark: SparkSession, url: str, table: str, schema: StructType) -> DataFrame:
    """The columns of `schema` of a table (plain or partitioned) or view, each as exactly that type.

    `table` is written as for a sink: `orders`, `shop.orders`, `"odd.schema".orders`.
    """
    wire = StructType([StructField(f.name, _wire_type(f.dataType)) for f in schema.fields])
    arrow = to_arrow_schema(wire, timezone="UTC")
    parts = _parts(url, Table.parse(table), [field.name for field in schema.fields])
    columns = sql.SQL(", ").join(_selected(field) for field in schema.fields)

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                part, low, high = parts[number]
                yield from _copy_out(url, columns, sql.Identifier(*part), low, high, arrow)

    numbers = spark.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(fetch, wire).select(*(_column(field) for field in schema.fields))


_Part = tuple[tuple[str, str], int | None, int | None]  # a table's schema and name, first block, first one beyond

_LEAVES = """
SELECT n.nspname, c.relname, c.relkind, pg_relation_size(c.oid) / current_setting('block_size')::int
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %(oid)s AND c.relkind <> 'p' OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
"""
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"


def _parts(url: str, table: Table, wanted: Sequence[str]) -> list[_Part]:
    """Ranges of blocks of the table, or of each of its partitions; the last range is open. A view is one part."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT to_regclass(%s)::oid", (table.sql,)).fetchone()
        if row is None or row[0] is None:
            raise ConfigError(f"there is no table {table} in that database: check its name and the URL")
        leaves = connection.execute(_LEAVES, {"oid": row[0]}).fetchall()
        columns = {name for (name,) in connection.execute(_COLUMNS, (row[0],))}
    if missing := [name for name in wanted if name not in columns]:
        raise ConfigError(f"table {table} has no column {missing[0]!r}, which the rows have: check schema and select")
    parts: list[_Part] = []
    for namespace, name, kind, blocks in leaves:
        if kind != "r":
            parts.append(((namespace, name), None, None))
            continue
        step = max(blocks // SPLITS, 128)
        starts = list(range(0, max(blocks, 1), step))
        parts += [((namespace, name), low, high) for low, high in zip(starts, [*starts[1:], None], strict=True)]
    return parts


def _copy_out(
    url: str, columns: sql.Composed, table: sql.Identifier, low: int | None, high: int | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    bounds = [sql.SQL("true")]
    bounds += [sql.SQL(f"ctid {sign} '({n},0)'::tid") for sign, n in ((">=", low), ("<", high)) if n is not None]
    query = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT (FORMAT csv)").format(
        columns, table, sql.SQL(" AND ").join(bounds)
    )
    given = psycopg.conninfo.conninfo_to_dict(url).get("options") or ""
    options = f"{given} -c timezone=UTC -c datestyle=ISO -c bytea_output=hex -c extra_float_digits=1".strip()
    with psycopg.connect(url, options=options, autocommit=True) as connection, connection.cursor() as cursor:
        buffer = BytesIO()
        with cursor.copy(query) as copy:
            for data in copy:  # one row each
                buffer.write(data)
                if buffer.tell() >= CHUNK_BYTES:
                    yield from _parse(buffer, schema)
                    buffer = BytesIO()
        if buffer.tell():
            yield from _parse(buffer, schema)


def _parse(buffer: BytesIO, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    buffer.seek(0)
    table = pyarrow.csv.read_csv(
        buffer,
        # One block: a row must not reach over a block's end.
        read_options=pyarrow.csv.ReadOptions(
            column_names=schema.names, use_threads=False, block_size=buffer.getbuffer().nbytes + 1
        ),
        # A row whose only column is null is an empty line.
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # COPY writes null as nothing, and an empty string as ""
            true_values=["t"],
            false_values=["f"],
        ),
    )
    yield from table.to_batches()


def _wire_type(data_type: DataType) -> DataType:
    return StringType() if isinstance(data_type, (BinaryType, *NESTED)) else data_type


def _selected(field: StructField) -> sql.Composed:
    template = "to_jsonb({})::text" if isinstance(field.dataType, NESTED) else "{}"
    return sql.SQL(template).format(sql.Identifier(field.name))


def _column(field: StructField) -> Column:
    column = F.col(f"`{field.name}`")
    if isinstance(field.dataType, BinaryType):
        column = F.unhex(F.substring(column, 3, 2**31 - 1))
    elif isinstance(field.dataType, NESTED):
        column = F.from_json(column, field.dataType.simpleString())
    return column.alias(field.name)

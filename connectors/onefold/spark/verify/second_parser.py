"""Reads the values of records by Spark's own parsers: what onefold's parser changes shows, since these do not.

Making Spark's parser takes longer than its parsing, so many values are handed to it as one JSON array. Where onefold's
has taken all of them before, it is not asked again, unless Spark's does not take one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from onefold.core.source import Source
from onefold.core.waiting import Wait
from onefold.sources.kafka import KafkaSource
from onefold.sources.kafka.formats.record_columns import VALUE_COLUMN
from onefold.spark.runtime.dataframe_columns import columns

_OWN = uuid.uuid4().hex  # what no record says: its fields and texts may have any name
_UNREAD, _TEXT = f"__unread_{_OWN}", f"__text_{_OWN}"
_NOT_TAKEN = f"a value is not taken by Spark's parser ({_OWN})"
_TOLD_S_MAX = 5.0  # Spark tells of a query a little later
_ROWS_MAX, _BYTES = 1_000, 1 << 20  # of a bundle, but that a record may have more
_ROWS = "__rows"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _TEXT, "timeZone": "UTC"}
TEXTS = pa.schema({"text": pa.string(), "count": pa.int32()})  # of some values, as one JSON text
# An empty field is null, and a quoted one an empty text, only where null is written in some other way.
_OF_CSV = {"quote": '"', "escape": '"', "nullValue": _OWN, "emptyValue": ""}


def has_second_parser(spark: SparkSession, source: Source) -> bool:
    """Whether Spark can parse the values of the source's records. As of old it takes microseconds for milliseconds."""
    if spark.conf.get("spark.sql.legacy.timeParserPolicy") == "LEGACY":
        return False
    if not isinstance(source, KafkaSource) or source.format not in ("json", "csv"):
        return False
    return VALUE_COLUMN not in (name.lower() for name in source.arrow_schema().names)


def bundles(schema: pa.Schema) -> pa.Schema:
    """Of records with these columns: the `values` of some, all of them as one JSON `text`, and their columns."""
    ours = {_ours(name): pa.list_(schema.field(name).type) for name in schema.names if name != VALUE_COLUMN}
    return pa.schema({"values": pa.list_(pa.string()), "text": pa.string(), **ours})


def bundled(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Records with their VALUE_COLUMN as `bundles`."""
    ends, values, text = _bundled(records.column(VALUE_COLUMN))
    ours = [pa.ListArray.from_arrays(ends, column) for column in records.drop_columns([VALUE_COLUMN]).columns]
    yield pa.RecordBatch.from_arrays([values, text, *ours], schema=bundles(records.schema))


def texts(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Raw records with their value alone as TEXTS."""
    _, values, text = _bundled(records.column("value"))
    yield pa.RecordBatch.from_arrays([text, pc.list_value_length(values)], schema=TEXTS)


def _bundled(records: pa.Array) -> tuple[pa.Array, pa.ListArray, pa.StringArray]:
    values = records.cast(pa.string())
    size = max(1, min(_ROWS_MAX, _BYTES * len(values) // max(1, values.nbytes)))
    ends = pa.array([*range(0, len(values), size), len(values)], pa.int32())
    lists = pa.ListArray.from_arrays(ends, values)
    return ends, lists, pc.binary_join_element_wise(f'{{"{_ROWS}":[', pc.binary_join(lists, ","), "]}", "")


def read_texts(found: DataFrame, parsed: pa.Schema) -> DataFrame:
    """The records of TEXTS, in the columns `parsed` as Spark's JSON parser reads them. Where it does not take a value
    the query fails, and the error `is_not_taken`: rows that lack on both sides would pass for exact."""
    whole = _whole(from_arrow_schema(parsed).fields, F.col("count"))
    return found.select(F.inline(F.coalesce(whole, F.raise_error(F.lit(_NOT_TAKEN))))).drop(_UNREAD)


def is_not_taken(error: Exception) -> bool:
    return _NOT_TAKEN in str(error)


def read_again(
    found: DataFrame, names: Sequence[str], parsed: pa.Schema, delimiter: str | None
) -> tuple[DataFrame, Observation]:
    """The records of `bundles` with these columns, of which Spark's JSON parser reads the `parsed` ones (with a
    `delimiter`, its CSV parser), or onefold's where Spark's does not take a value; of these the observation has the
    `unread`."""
    fields = from_arrow_schema(parsed).fields
    one = StructType([*fields, StructField(_TEXT, StringType())])
    ours = F.arrays_zip(*columns(map(_ours, names)))
    if delimiter is None:
        each = F.transform("values", lambda value: F.from_json(value, one, _OPTIONS))
    else:
        options = {**_OPTIONS, **_OF_CSV, "sep": delimiter.replace("\\", r"\\")}
        each = F.transform("values", lambda value: F.from_csv(value, one.toDDL(), options))

    def joined(their: Column, our: Column) -> Column:
        is_read = their[_TEXT].isNull()
        of = {name: F.when(is_read, their[name]).otherwise(our[_ours(name)]) for name in parsed.names}
        return F.struct(*(of.get(name, our[_ours(name)]).alias(name) for name in names), (~is_read).alias(_UNREAD))

    rows = F.zip_with(each, ours, joined)
    if delimiter is None:  # all at once, or null where one of them is not taken
        whole = _whole(fields, F.size("values"))
        if [*names] != parsed.names:
            more = F.arrays_zip(*columns(_ours(name) for name in names if name not in parsed.names))
            whole = F.zip_with(whole, more, _beside(names, parsed))
        rows = F.coalesce(whole, rows)
    observed = Observation()
    read = found.select(F.inline(rows)).observe(observed, F.count_if(_UNREAD).alias(_UNREAD))
    return read.drop(_UNREAD), observed


def _whole(fields: list[StructField], count: Column) -> Column:
    """All rows of a `text`, with _UNREAD, which is null; or null where one of so many values is not taken."""
    elements = ArrayType(StructType([*fields, StructField(_UNREAD, BooleanType())]))
    found = F.from_json("text", StructType([StructField(_ROWS, elements), StructField(_TEXT, StringType())]), _OPTIONS)
    # By a lambda, for what is named twice is parsed twice.
    whole = F.transform(
        F.array(found), lambda one: F.when(one[_TEXT].isNull() & (F.size(one[_ROWS]) == count), one[_ROWS])
    )
    return whole[0]


def _beside(names: Sequence[str], parsed: pa.Schema) -> Callable[[Column, Column], Column]:
    def join(their: Column, our: Column) -> Column:
        of = (their[name] if name in parsed.names else our[_ours(name)] for name in names)
        return F.struct(
            *(value.alias(name) for value, name in zip(of, names, strict=True)), F.lit(False).alias(_UNREAD)
        )

    return join


def _ours(name: str) -> str:
    return f"__our_{name}"


def unread(observed: Observation) -> int | None:
    """How many values Spark's parser did not take when the rows were asked for first; None where Spark does not say."""
    wait = Wait(_TOLD_S_MAX, pause_max_s=0.1)
    while not (is_told := observed._jo.future().isCompleted()) and wait.again():  # type: ignore[union-attr]  # `get` would wait for ever
        pass
    return int(observed.get[_UNREAD]) if is_told else None

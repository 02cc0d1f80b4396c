"""Reads the values of records by Spark's own parsers: what onefold's parser changes shows, since these do not."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from onefold.core.source import Source
from onefold.core.waiting import Wait
from onefold.sources.kafka import KafkaSource
from onefold.sources.kafka.formats.record_columns import VALUE_COLUMN
from onefold.spark.runtime.dataframe_columns import column

__all__ = ["has_second_parser", "read_again", "unread"]

_UNREAD = "unread"
_TOLD_S_MAX = 5.0  # Spark tells of a query a little later
_PARSED, _TEXT = "__parsed", "__text"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _TEXT, "timeZone": "UTC"}
# An empty field is null, and a quoted one an empty text, only where null is written in some other way.
_OF_CSV = {"quote": '"', "escape": '"', "nullValue": "\0\0", "emptyValue": ""}


def has_second_parser(source: Source) -> bool:
    """Whether Spark can parse the values of the source's records."""
    if not isinstance(source, KafkaSource) or source.format not in ("json", "csv"):
        return False
    return VALUE_COLUMN not in (name.lower() for name in source.arrow_schema().names)


def read_again(records: DataFrame, columns: pa.Schema, delimiter: str | None) -> tuple[DataFrame, Observation]:
    """Records with their VALUE_COLUMN, in these columns as Spark's JSON parser reads that (with a `delimiter`,
    its CSV parser), or as onefold's where Spark's does not take the value; of these the observation
    has the `unread` ones."""
    text = column(VALUE_COLUMN).cast("string")
    schema = StructType([*(records.schema[name] for name in columns.names), StructField(_TEXT, StringType())])
    if delimiter is None:
        found = F.from_json(text, schema, _OPTIONS)
    else:
        found = F.from_csv(text, schema.toDDL(), {**_OPTIONS, **_OF_CSV, "sep": delimiter})
    is_read = F.col(_PARSED)[_TEXT].isNull()
    theirs = {name: F.when(is_read, F.col(_PARSED)[name]).otherwise(column(name)) for name in columns.names}
    observed = Observation()
    both = records.withColumn(_PARSED, found).observe(observed, F.count_if(~is_read).alias(_UNREAD))
    return both.withColumns(theirs).drop(_PARSED, VALUE_COLUMN), observed


def unread(observed: Observation) -> int:
    """How many values Spark's parser did not take when the rows were asked for first; 0 where they never were."""
    wait = Wait(_TOLD_S_MAX, pause_max_s=0.1)
    while not (is_told := observed._jo.future().isCompleted()) and wait.again():  # type: ignore[union-attr]  # `get` would wait for ever
        pass
    return int(observed.get[_UNREAD]) if is_told else 0

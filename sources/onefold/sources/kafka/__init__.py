"""Kafka topics as a replayable source, on confluent-kafka. Knows nothing of Spark.

`KafkaSource` is what a user names; `Broker` answers where topics stand; `read` turns an `OffsetRange` into Arrow, and
`read_parts` also gives the records that could not be read.
"""

from onefold.core.values.ids import IdsWithin, OrderedIds
from onefold.sources.kafka.fetching.fetched_records import FetchedRecords, WantedFields
from onefold.sources.kafka.fetching.fetcher import close_consumers, fetch
from onefold.sources.kafka.formats.dispatch import check_schema, record_ddl
from onefold.sources.kafka.formats.inferring import find_schema
from onefold.sources.kafka.formats.record_columns import POSITION_COLUMNS, RAW_COLUMNS
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.planning.broker import Broker
from onefold.sources.kafka.planning.lag import LagFigures, LagMeter, PartitionLag, lag
from onefold.sources.kafka.planning.limits import limit
from onefold.sources.kafka.planning.moving import wanted_positions
from onefold.sources.kafka.planning.offset_planner import Planner, ranges
from onefold.sources.kafka.range_reader import read, read_parts
from onefold.sources.kafka.source import KafkaSource

__all__ = [
    "POSITION_COLUMNS",
    "RAW_COLUMNS",
    "Broker",
    "FetchedRecords",
    "IdsWithin",
    "KafkaSource",
    "LagFigures",
    "LagMeter",
    "OffsetRange",
    "OrderedIds",
    "PartitionLag",
    "Planner",
    "WantedFields",
    "check_schema",
    "close_consumers",
    "fetch",
    "find_schema",
    "lag",
    "limit",
    "ranges",
    "read",
    "read_parts",
    "record_ddl",
    "wanted_positions",
]

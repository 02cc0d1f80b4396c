"""Kafka topics as a replayable source, on confluent-kafka. Knows nothing of Spark.

`KafkaSource` is what a user names; `Broker` answers where topics stand; `read` turns an `OffsetRange` into Arrow.
"""

from onefold.sources.kafka.deduplication import IdsWithin, OrderedIds
from onefold.sources.kafka.fetching import close_consumers, fetch
from onefold.sources.kafka.offsets import Broker, OffsetRange, limit, ranges
from onefold.sources.kafka.positions import POSITION_COLUMNS
from onefold.sources.kafka.reading import RAW_COLUMNS, check_schema, read
from onefold.sources.kafka.source import KafkaSource

__all__ = [
    "POSITION_COLUMNS",
    "RAW_COLUMNS",
    "Broker",
    "IdsWithin",
    "KafkaSource",
    "OffsetRange",
    "OrderedIds",
    "check_schema",
    "close_consumers",
    "fetch",
    "limit",
    "ranges",
    "read",
]

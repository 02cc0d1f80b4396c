"""What a pipeline reads. A source's own libraries are only imported when the source is named."""

from typing import TYPE_CHECKING

from onefold.core.extras import on_demand

if TYPE_CHECKING:
    from onefold.sources.files import FileSource
    from onefold.sources.hbase import HBaseSource
    from onefold.sources.kafka import IdsWithin, KafkaSource, OrderedIds
    from onefold.sources.postgres import PostgresSource

__all__ = ["FileSource", "HBaseSource", "IdsWithin", "KafkaSource", "OrderedIds", "PostgresSource"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "onefold.sources.files": ("FileSource",),
        "onefold.sources.hbase": ("HBaseSource",),
        "onefold.sources.kafka": ("IdsWithin", "KafkaSource", "OrderedIds"),
        "onefold.sources.postgres": ("PostgresSource",),
    },
)

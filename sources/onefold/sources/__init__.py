"""What a pipeline reads. A source's own libraries are only imported when the source is named."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.sources.hbase import HBaseSource
    from onefold.sources.kafka import IdsWithin, KafkaSource, OrderedIds
    from onefold.sources.postgres import PostgresSource

__all__ = ["HBaseSource", "IdsWithin", "KafkaSource", "OrderedIds", "PostgresSource"]


def __getattr__(name: str) -> object:
    if name == "HBaseSource":
        from onefold.sources.hbase import HBaseSource

        return HBaseSource
    if name in ("IdsWithin", "KafkaSource", "OrderedIds"):
        from onefold.sources import kafka

        return getattr(kafka, name)
    if name == "PostgresSource":
        from onefold.sources.postgres import PostgresSource

        return PostgresSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

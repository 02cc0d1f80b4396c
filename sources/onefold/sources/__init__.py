"""What a pipeline reads. A source's own libraries are only imported when the source is named."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold.sources.kafka import KafkaSource
    from onefold.sources.postgres import PostgresSource

__all__ = ["KafkaSource", "PostgresSource"]


def __getattr__(name: str) -> object:
    if name == "KafkaSource":
        from onefold.sources.kafka import KafkaSource

        return KafkaSource
    if name == "PostgresSource":
        from onefold.sources.postgres import PostgresSource

        return PostgresSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

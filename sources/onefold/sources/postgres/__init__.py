"""A Postgres table or query as a bounded source: COPY out to Arrow, in parts. Knows nothing of Spark.

`PostgresSource` is what a user names; `plan` divides it into parts that pickle; `read` turns a `TablePart` into Arrow.
"""

from onefold.sources.postgres.copy_reader import read
from onefold.sources.postgres.planning import HeldSnapshot, TablePart, describe, hold, plan, resolve
from onefold.sources.postgres.source import PostgresSource

__all__ = ["HeldSnapshot", "PostgresSource", "TablePart", "describe", "hold", "plan", "read", "resolve"]

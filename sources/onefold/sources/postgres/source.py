"""PostgresSource: what a user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from onefold.clients.options import options_model
from onefold.sources.postgres.config import PostgresSourceConfig
from onefold.sources.postgres.snapshot import hold

__all__ = ["PostgresSource"]


@options_model
@dataclass(frozen=True)
class PostgresSource(PostgresSourceConfig):
    """A table, view or query, read once and as a whole.

        PostgresSource("postgresql://localhost/shop", "orders", columns=["id", "amount"], where="amount > 0")

    `table` is written as for a sink (`orders`, `shop.orders`, `"odd.schema".orders`); `query` is a SELECT instead of
    it. `columns` and `where` (an SQL condition) are applied by Postgres.

    It is read in about `splits` parts: ranges of the table's blocks, or with `split_by` ranges of an integer, date or
    timestamp column. A view or query is one part unless there is a `split_by`.

    `snapshot="shared"`: all parts read one snapshot of the database, which `frozen()` holds, for `hold_s` seconds at
    the most (0: without end). `"each"`: every part has its own, so a row that moves meanwhile may come twice or not at
    all. Anything else is the id of a snapshot that somebody holds (pg_export_snapshot).

    `narrowing="refuse"` refuses a given schema that has less room than Postgres's types; `"check"` checks each value.
    `statement_timeout_s` bounds each part (0: no bound), whatever the role's own setting says; `lock_timeout_s` each
    wait for a table's lock.
    """

    @contextmanager
    def frozen(self) -> Iterator[PostgresSource]:
        """The same source at one snapshot, which is held until the block is left.

        While it is held, the table cannot be truncated, dropped or rewritten, and VACUUM keeps all row versions that
        the snapshot sees, in the whole database. Raises `ConfigError`, `Retriable`.
        """
        held = hold(self)
        try:
            yield replace(self, snapshot=held.id)
        finally:
            held.release()

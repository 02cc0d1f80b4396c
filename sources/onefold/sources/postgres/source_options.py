"""What a user names: a table or a query, what of it, how it is split; and the same as a data source's options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from onefold.clients.option_texts import from_texts, to_texts
from onefold.clients.options import in_one_form
from onefold.core.errors import ConfigError

SPLITS_MAX = 10_000
_SNAPSHOT = re.compile(r"[0-9A-F]+-[0-9A-F]+(-[0-9A-F]+)?(@[0-9]+)?")

_REFUSED_OPTIONS = {
    "dbtable": "say table=..., or query=... for a SELECT",
    "user": "put it into the url, postgresql://user@host/database, or leave it to libpq's own means",
    "password": "put it into the url, or leave it to libpq's own means (a passfile, PGPASSWORD)",
    "driver": "no JDBC driver takes part",
    "fetchsize": "rows come in Arrow batches of some megabytes",
    "partitioncolumn": "use splitBy",
    "numpartitions": "use splits",
    "lowerbound": "splitBy asks the table for its bounds",
    "upperbound": "splitBy asks the table for its bounds",
}


@dataclass(frozen=True)
class PostgresSourceConfig:
    """What is read, how it is split, and within which bounds. `PostgresSource` says what each setting means."""

    url: str = field(repr=False)  # it may hold a password
    table: str | None = None
    query: str | None = None
    columns: Sequence[str] | None = None
    where: str | None = None
    split_by: str | None = None
    splits: int = 8
    snapshot: Literal["shared", "each"] | str = "shared"
    narrowing: Literal["refuse", "check"] = "refuse"
    statement_timeout_s: float = 0.0
    lock_timeout_s: float = 10.0
    schema: str | None = field(default=None, metadata={"option": None})  # Spark has a call of its own for it
    name: str = field(default="", metadata={"option": None})
    hold_s: float = field(default=3600.0, metadata={"option": None})  # what is held has an id, which `snapshot` takes

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.strip():
            raise ConfigError("option-missing", "the url is missing: postgresql://user@host:port/database")
        if bool(self.table) == bool(self.query):
            raise ConfigError(
                "option-missing", "name either a table or a query: PostgresSource(url, 'orders'), or query='SELECT ...'"
            )
        in_one_form(self, name=self.name or (f"table {self.table}" if self.table else "the query"))
        if isinstance(self.columns, str):
            raise ConfigError("option-value", f"columns is a list of names, not a text: columns=[{self.columns!r}]")
        if self.columns is not None:
            names = tuple(self.columns)
            in_one_form(self, columns=names)
            if not names or len(set(names)) != len(names):
                raise ConfigError(
                    "option-value",
                    f"columns names each column once, and at least one; not {', '.join(names) or 'none'}",
                )
        if isinstance(self.splits, bool) or not isinstance(self.splits, int) or not 1 <= self.splits <= SPLITS_MAX:
            raise ConfigError("option-value", f"splits is a whole number from 1 to {SPLITS_MAX}, not {self.splits!r}")
        if self.snapshot not in ("shared", "each") and not _SNAPSHOT.fullmatch(self.snapshot):
            raise ConfigError(
                "option-value",
                f"snapshot is 'shared', 'each', or an id from pg_export_snapshot(), not {self.snapshot!r}",
            )
        if self.narrowing not in ("refuse", "check"):
            raise ConfigError("option-value", f"narrowing is 'refuse' or 'check', not {self.narrowing!r}")
        for name in ("statement_timeout_s", "lock_timeout_s", "hold_s"):
            if not 0 <= getattr(self, name) < 2**31 / 1000:
                raise ConfigError(
                    "option-value", f"{name} is a time in seconds, 0 for no bound, not {getattr(self, name)!r}"
                )

    def options(self) -> dict[str, str]:
        """The options of the data source `onefold_postgres`."""
        return to_texts(self)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The source that these data source options describe. Names are matched without regard to case."""
        given = from_texts("onefold_postgres", options, cls, required=["url"], refused=_REFUSED_OPTIONS)
        return cls(**given)

"""What a user names: a table or a query, what of it, how it is split; and the same as a data source's options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from onefold.core.errors import ConfigError

__all__ = ["PostgresSourceConfig"]

SPLITS_MAX = 10_000
_SNAPSHOT = re.compile(r"[0-9A-F]+-[0-9A-F]+(-[0-9A-F]+)?(@[0-9]+)?")

_OPTIONS = {
    "url": "url",
    "table": "table",
    "query": "query",
    "columns": "columns",
    "where": "where",
    "splitBy": "split_by",
    "splits": "splits",
    "snapshot": "snapshot",
    "narrowing": "narrowing",
    "statementTimeoutS": "statement_timeout_s",
    "lockTimeoutS": "lock_timeout_s",
}
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
    snapshot: str = "shared"
    narrowing: str = "refuse"
    statement_timeout_s: float = 0.0
    lock_timeout_s: float = 10.0
    hold_s: float = 3600.0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.strip():
            raise ConfigError("option-missing", "the url is missing: postgresql://user@host:port/database")
        if bool(self.table) == bool(self.query):
            raise ConfigError(
                "option-missing", "name either a table or a query: PostgresSource(url, 'orders'), or query='SELECT ...'"
            )
        if isinstance(self.columns, str):
            raise ConfigError("option-value", f"columns is a list of names, not a text: columns=[{self.columns!r}]")
        if self.columns is not None:
            names = tuple(self.columns)
            object.__setattr__(self, "columns", names)
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

    @property
    def name(self) -> str:
        """For people."""
        return f"table {self.table}" if self.table else "the query"

    def options(self) -> dict[str, str]:
        """The options of the data source `onefold_postgres`."""
        given = {}
        for option, name in _OPTIONS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if name == "columns":
                given[option] = ",".join(_quoted(column) for column in value)
            else:
                given[option] = str(value)
        return given

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The source that these data source options describe. Names are matched without regard to case."""
        known = {option.lower(): option for option in _OPTIONS}
        given: dict[str, object] = {}
        for key, value in options.items():
            if (refusal := _REFUSED_OPTIONS.get(key.lower())) is not None:
                raise ConfigError("option-not-allowed", f"onefold_postgres has no option {key!r}: {refusal}")
            if key.lower() not in known:
                near = difflib.get_close_matches(key.lower(), known, 1)
                hint = f"did you mean {known[near[0]]!r}?" if near else f"known are {', '.join(_OPTIONS)}"
                raise ConfigError("option-unknown", f"onefold_postgres has no option {key!r}; {hint}")
            option = known[key.lower()]
            given[_OPTIONS[option]] = _parsed(option, value)
        if "url" not in given:
            raise ConfigError("option-missing", "the option 'url' is missing: postgresql://user@host:port/database")
        return cls(**given)  # type: ignore[arg-type]  # __post_init__ looks at each


def _parsed(option: str, text: str) -> object:
    if option == "columns":
        return [_unquoted(name.strip()) for name in re.findall(r'(?:"(?:[^"]|"")*"|[^",])+', text)]
    if option == "splits" or option.endswith("S"):
        try:
            return int(text) if option == "splits" else float(text)
        except ValueError:
            raise ConfigError("option-value", f"{option} is a number, not {text!r}") from None
    word = text.strip().lower()
    return word if option in ("snapshot", "narrowing") and word.isalpha() else text


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if re.search(r'[",]|^\s|\s$', name) else name


def _unquoted(name: str) -> str:
    is_quoted = len(name) >= 2 and name[0] == name[-1] == '"'
    return name[1:-1].replace('""', '"') if is_quoted else name

"""What both checks end with: nothing went unchecked, or there is no report."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable

from onefold.core.errors import ConfigError
from onefold.core.testing.conformance.promises import Book, ConformanceReport, Promise

STORE_MODULES = (
    "onefold.store.checkpoint_store",
    "onefold.clients.sql.database",
    "onefold.clients.sql.database_backend",
    "onefold.store.store_rows",
)


def passed(subject: str, book: Book, due: Iterable[Promise], seconds: float) -> ConformanceReport:
    """The report, unless something went unchecked: then nothing has been shown."""
    unchecked = [promise.value for promise in due if not book.checked[promise]]
    if unchecked:
        raise ConfigError(
            "promises-unchecked", f"nothing was shown of {subject}: these went unchecked: {'; '.join(unchecked)}"
        )
    for call, struck in book.strikes.items():
        if not (struck.before and struck.inside and struck.after):
            raise ConfigError(
                "nothing-shown", f"nothing was shown of {subject}: in {call}, these processes were killed: {struck}"
            )
    promises = {promise: book.checked[promise] for promise in Promise if book.checked[promise]}
    return ConformanceReport(subject, promises, dict(book.strikes), seconds)


def modules_of(cls: type) -> tuple[str, ...]:
    """The code whose lines count as steps: the packages of a class and its bases, or their modules where these are in
    none; and the checkpoint store, which shares a last-resource sink's transaction."""
    own = [base.__module__ for base in inspect.getmro(cls)]
    own = [name for name in own if not name.startswith(("builtins", "typing", "onefold.core"))]
    packages = [getattr(sys.modules[name], "__package__", "") or name for name in own]
    return tuple(dict.fromkeys([*packages, *STORE_MODULES]))

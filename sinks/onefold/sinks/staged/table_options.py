"""The options of a sink that writes into a table of a SQL database: SqlSink's, and of PostgresSink's the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Literal

from onefold.clients.options import in_one_form, names_of, options_model
from onefold.core.errors import ConfigError
from onefold.sinks.name_parts import TableName
from onefold.sinks.staged.upsert import DELETES_KEPT_S, Changes


@options_model
@dataclass(frozen=True)
class SqlSinkConfig:
    """The options of SqlSink, whose docstring explains them. The URL, which may hold a password, is in no `repr`."""

    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    name: str = ""
    mode: Literal["append", "upsert"] = field(default="append", metadata={"option": None})  # there a key tells
    key: str | Sequence[str] = ()
    order: str | Sequence[str] = ()
    delete_when_true: str | None = None
    delete_when_null: str | None = None
    deletes_kept_s: float = DELETES_KEPT_S
    lock_timeout_s: float = 30

    def __post_init__(self) -> None:
        in_one_form(self, name=self.name or self.table, key=names_of(self.key), order=names_of(self.order))
        if self.lock_timeout_s <= 0:
            raise ConfigError("option-value", "lock_timeout_s must be above 0: to wait for ever is no setting")
        if self.mode == "append" and (self.key or self.order or self.delete_when_true or self.delete_when_null):
            raise ConfigError(
                "options-conflict", "key, order, delete_when_true and delete_when_null go with mode='upsert'"
            )
        _ = self.changes

    @cached_property
    def target(self) -> TableName:
        return TableName.parse(self.table)

    @cached_property
    def changes(self) -> Changes | None:
        """How rows become versions of those that are there; None where they are appended."""
        if self.mode == "append":
            return None
        return Changes(
            tuple(self.key), tuple(self.order), self.delete_when_true, self.delete_when_null, self.deletes_kept_s
        )

    def where(self, pipeline: str) -> str:
        """For errors."""
        return f"sink {self.name!r} of pipeline {pipeline!r}"

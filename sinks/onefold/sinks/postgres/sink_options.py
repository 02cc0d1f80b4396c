"""The options of a Postgres sink. They pickle, and travel to the executors inside the sink."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from onefold.clients.options import in_one_form, names_of, options_model
from onefold.clients.postgres import sessions
from onefold.core.errors import ConfigError
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.naming import BOOKKEEPING, TargetName
from onefold.sinks.staged.table_options import SqlSinkConfig


class Delivery(enum.Enum):
    TWO_PHASE = "two_phase"
    STAGED = "staged"
    DIRECT = "direct"


@options_model
@dataclass(frozen=True, kw_only=True)
class PostgresSinkConfig(SqlSinkConfig):
    """The options of PostgresSink, whose docstring explains them."""

    delivery: Literal["auto", "two_phase", "staged", "direct"] = "auto"
    on_error: Literal["fail", "dead_letter"] = "fail"
    rejects_table: str | None = None
    rejects_max: int = 1000
    source_position: str | Sequence[str] = ()
    connect_timeout_s: int = 10
    ledger: str = BOOKKEEPING
    evolve: bool = False
    role: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        in_one_form(self, source_position=names_of(self.source_position))
        if self.connect_timeout_s <= 0:
            raise ConfigError("option-value", "connect_timeout_s must be above 0: to wait for ever is no setting")
        if self.on_error == "fail" and (self.rejects_table is not None or self.source_position):
            raise ConfigError("options-conflict", "rejects_table and source_position go with on_error='dead_letter'")
        if self.on_error == "dead_letter" and self.delivery == "direct":
            raise ConfigError(
                "options-conflict",
                "delivery='direct' has no stage in which rows that Postgres refuses could be told from others: use"
                " delivery='staged' with on_error='dead_letter'",
            )
        if self.rejects_max < 0:
            raise ConfigError("option-value", "rejects_max is how many rows may be put aside: 0 or more")
        # Names that are none and an unreadable URL are best known now.
        _ = self.target, self.rejects, self.conninfo("")

    @cached_property
    def target(self) -> TargetName:
        return TargetName.parse(self.table)

    @cached_property
    def rejects(self) -> TargetName:
        """Where rows go that Postgres refuses: `rejects_table`, or a table beside the ledger."""
        if self.rejects_table is None:
            return TargetName(self.ledger, "onefold_dead_letters")
        return TargetName.parse(self.rejects_table)

    @property
    def wanted(self) -> Delivery | None:
        """None: auto."""
        return None if self.delivery == "auto" else Delivery(self.delivery)

    def conninfo(self, pipeline: str) -> str:
        return sessions.conninfo(self.url, pipeline, self.connect_timeout_s, self.role)

    def bookkeeping(self, pipeline: str) -> Bookkeeping:
        return Bookkeeping(pipeline, self.name, schema=self.ledger)

"""What a PostgresSink was told, and what `open` made of it: both travel to the executors."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from onefold.core.errors import ConfigError
from onefold.sinks.postgres import connection
from onefold.sinks.postgres.bookkeeping import Bookkeeping
from onefold.sinks.postgres.naming import Table, identifier, stage_name
from onefold.sinks.postgres.target import Target
from onefold.sinks.postgres.types import Column

__all__ = ["Delivery", "Plan", "Settings", "choose"]


class Delivery(enum.Enum):
    TWO_PHASE = "two_phase"
    STAGED = "staged"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class Settings:
    """A sink's settings as the user gave them; the URL, which may hold a password, stays out of every text."""

    url: str = field(repr=False)
    table: Table
    name: str
    delivery: Delivery | None  # None: auto
    lock_timeout_s: float
    connect_timeout_s: int
    bookkeeping_schema: str
    role: str | None = None

    def conninfo(self, pipeline: str) -> str:
        return connection.conninfo(self.url, pipeline, self.connect_timeout_s, self.role)

    def bookkeeping(self, pipeline: str) -> Bookkeeping:
        return Bookkeeping(self.bookkeeping_schema, pipeline, self.name)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one `open` found out. Stage and target names are SQL already."""

    pipeline: str
    delivery: Delivery
    reason: str
    target: str
    columns: tuple[Column, ...]
    stage: str  # the stage's bare name
    writers_max: int | None

    @property
    def column_list(self) -> str:
        return ", ".join(identifier(column.name) for column in self.columns)


def stage_sql(schema: str, stage: str) -> str:
    return f"{identifier(schema)}.{identifier(stage)}"


def stage_of(settings: Settings, pipeline: str) -> str:
    return stage_name(pipeline, settings.name)


def slots(conn: connection.Connection) -> tuple[int, int]:
    """`max_prepared_transactions`, and how many of them are taken, by anybody."""
    row = conn.execute(
        "SELECT current_setting('max_prepared_transactions')::int, (SELECT count(*) FROM pg_prepared_xacts)"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def choose(wanted: Delivery | None, slots_max: int, target: Target | None) -> tuple[Delivery, str]:
    """The delivery, and why. Raises ConfigError where what was asked for cannot work."""
    blockers = target.blockers if target is not None else ()
    cautions = target.cautions if target is not None else ()
    if wanted is Delivery.TWO_PHASE:
        if slots_max == 0:
            raise ConfigError(
                "delivery='two_phase' needs prepared transactions, and max_prepared_transactions is 0: "
                "ALTER SYSTEM SET max_prepared_transactions = 64 and restart the server, or use delivery='staged'"
            )
        if blockers:
            raise ConfigError(
                f"delivery='two_phase' does not suit table {target.table if target else ''} ({', '.join(blockers)}): "
                "the prepared transactions of sibling tasks would wait for one another; use delivery='staged'"
            )
    if wanted is Delivery.AT_LEAST_ONCE and target is not None and not target.takes_copy:
        raise ConfigError(f"{target.table} is a view, which COPY does not fill: use delivery='staged'")
    if wanted is not None:
        return wanted, "as set"
    if slots_max == 0:
        return Delivery.STAGED, "max_prepared_transactions is 0"
    if blockers or cautions:
        return Delivery.STAGED, f"the target has {', '.join((*blockers, *cautions))}"
    return Delivery.TWO_PHASE, f"max_prepared_transactions is {slots_max}, and nothing makes sibling tasks wait"

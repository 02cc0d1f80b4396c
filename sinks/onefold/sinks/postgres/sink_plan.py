"""What `open` made of a Postgres sink's options: it travels to the executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from onefold.clients.postgres import sessions
from onefold.clients.postgres.quoting import identifier
from onefold.core.errors import ConfigError, SchemaMismatch
from onefold.sinks.postgres.naming import stage_name
from onefold.sinks.postgres.schema.column_comparison import columns_of
from onefold.sinks.postgres.schema.target import TargetTable
from onefold.sinks.postgres.schema.type_mapping import Column, own
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.staged.upsert import Changes

# Columns of the stage beside the rows' own.
ATTEMPT = "onefold_attempt"
DELETED = "onefold_deleted"
_POSITION = "onefold_position_"
DIRECT_BYTES_MAX = 64 << 20  # of an epoch's rows that come to the driver


@dataclass(frozen=True, slots=True)
class PostgresPlan:
    """What one `open` found out. The names of tables are SQL already, but for the stage's bare name `stage`."""

    pipeline: str
    delivery: Delivery
    reason: str
    target: str
    columns: tuple[Column, ...]  # what is written into the target
    types: dict[str, str]  # of these columns in the target, as `target.types` says them
    stage: str
    stage_table: str | None  # None: rows go to the target directly
    writers_max: int | None
    names: tuple[str, ...]  # all columns that the rows have
    has_unique: bool = False  # whether the target had a unique index
    changes: Changes | None = None
    tombstones: str | None = None  # where deletions are remembered
    rejects: str | None = None  # None: a row that is refused stops the pipeline
    position: tuple[Column, ...] = ()  # what says in a dead letter where the row came from
    # Of an epoch's rows that come to the driver: an attempt with more than its share fills the stage.
    direct_bytes_max: int = DIRECT_BYTES_MAX

    @property
    def column_list(self) -> str:
        return ", ".join(identifier(column.name) for column in self.columns)

    @property
    def stage_columns(self) -> list[tuple[str, str]]:
        """The stage's columns and their types in SQL."""
        return [*((column.name, column.sql) for column in self.columns), *_own_columns(self.position, self.changes)]

    @property
    def position_names(self) -> list[str]:
        """The position's columns as the stage calls them: the rows may have columns of the same names."""
        return [f"{_POSITION}{number}" for number, _ in enumerate(self.position, 1)]


def _own_columns(position: Sequence[Column], changes: Changes | None) -> list[tuple[str, str]]:
    """The stage's columns beside the rows' own."""
    own = [(f"{_POSITION}{number}", column.sql) for number, column in enumerate(position, 1)]
    own.append((ATTEMPT, "bigint"))
    if changes is not None and changes.deletes:
        own.append((DELETED, "boolean"))
    return own


def check_stage(names: Sequence[str], position: Sequence[Column], changes: Changes | None) -> None:
    """Raise ConfigError where the rows have a column that the stage has for itself."""
    if taken := [name for name, _ in _own_columns(position, changes) if name in names]:
        raise ConfigError(
            "column-name-taken",
            f"{taken[0]!r} is a column of the stage: rename it in the rows, or use 'two_phase'",
        )


def stage_sql(schema: str, stage: str) -> str:
    return f"{identifier(schema)}.{identifier(stage)}"


def slots(conn: sessions.Connection) -> tuple[int, int]:
    """`max_prepared_transactions`, and how many of them are taken, by anybody."""
    ((slots_max, taken),) = conn.execute(
        "SELECT current_setting('max_prepared_transactions')::int, (SELECT count(*) FROM pg_prepared_xacts)"
    )
    return slots_max, taken


def check_direct(connection: sessions.Connection, target: TargetTable | None, changes: Changes | None) -> None:
    """Raise ConfigError where direct delivery cannot work."""
    against = list(target.obstacles) if target is not None and changes is None else []
    if connection.execute("SELECT has_database_privilege(current_database(), 'TEMP')").fetchone() != (True,):
        against.append("its role may make no temporary tables: GRANT TEMPORARY ON DATABASE")
    if against:
        raise ConfigError(
            "direct-unsuitable",
            f"delivery='direct' does not suit table {target.table if target else ''} ({', '.join(against)}): use"
            " delivery='staged'",
        )


def choose(
    wanted: Delivery | None, slots_max: int, target: TargetTable | None, changes: Changes | None
) -> tuple[Delivery, str]:
    """The delivery, and why. Raises ConfigError where what was asked for cannot work."""
    blockers = target.blockers(changes.key if changes is not None else ()) if target is not None else ()
    cautions = target.cautions if target is not None else ()
    if wanted is Delivery.TWO_PHASE:
        if slots_max == 0:
            raise ConfigError(
                "prepared-transactions-disabled",
                "delivery='two_phase' needs prepared transactions, and max_prepared_transactions is 0: "
                "ALTER SYSTEM SET max_prepared_transactions = 64 and restart the server, or use delivery='staged'",
            )
        if blockers:
            raise ConfigError(
                "two-phase-unsuitable",
                f"delivery='two_phase' does not suit table {target.table if target else ''} ({', '.join(blockers)}): "
                "the prepared transactions of sibling tasks would wait for one another; use delivery='staged'",
            )
    if wanted is not None:
        return wanted, "as set"
    if slots_max == 0:
        return Delivery.STAGED, "max_prepared_transactions is 0"
    if changes is not None:
        return Delivery.STAGED, "upserts merge at once, so that no two tasks wait for the same key"
    if blockers or cautions:
        return Delivery.STAGED, f"the target has {', '.join((*blockers, *cautions))}"
    return Delivery.TWO_PHASE, f"max_prepared_transactions is {slots_max}, and nothing makes sibling tasks wait"


def is_staged(delivery: Delivery, changes: Changes | None) -> bool:
    """Whether there is a stage that rows go to first; of `direct` only those of a large attempt do."""
    return delivery is not Delivery.TWO_PHASE or changes is not None


def _writers_max(free: int) -> int:
    return max(1, free - 1 if free > 4 else free)  # one is left for somebody else's


def written_of(schema: pa.Schema, settings: PostgresSinkConfig, found: TargetTable | None) -> pa.Schema:
    """The columns that go into the table: not the mark of deletions, nor a position that the table has no place for."""
    theirs = {column.name for column in found.columns} if found is not None else set()
    left_out = {name for name in settings.source_position if name not in theirs}
    if settings.changes is not None:
        left_out.difference_update(settings.changes.required)
        if settings.changes.delete_when_true is not None:
            left_out.add(settings.changes.delete_when_true)
    return pa.schema([field for field in schema if field.name not in left_out])


def position_of(schema: pa.Schema, names: Sequence[str]) -> tuple[Column, ...]:
    columns = []
    for name in names:
        column = own(name, schema.field(name).type) if name in schema.names else None
        if column is None:
            has = ", ".join(schema.names)
            raise SchemaMismatch(
                "column-type", f"source_position={name!r} must be a column of the rows that is no list or struct: {has}"
            )
        columns.append(column)
    return tuple(columns)


def planned(
    settings: PostgresSinkConfig,
    pipeline: str,
    schema: pa.Schema,
    target: TargetTable,
    delivery: tuple[Delivery, str],
    slots_free: int,
) -> PostgresPlan:
    """The plan for a table that is there as it is to be, without what is kept beside it. Raises SchemaMismatch."""
    chosen, reason = delivery
    written = written_of(schema, settings, target)
    stage = stage_name(pipeline, settings.name)
    return PostgresPlan(
        pipeline=pipeline,
        delivery=chosen,
        reason=reason,
        target=target.table.sql,
        columns=columns_of(target, written),
        types={c.name: c.own_type for c in target.columns if c.name in written.names},
        stage=stage,
        stage_table=stage_sql(settings.ledger, stage) if is_staged(chosen, settings.changes) else None,
        writers_max=_writers_max(slots_free) if chosen is Delivery.TWO_PHASE else None,
        names=tuple(schema.names),
        has_unique=bool(target.unique),
        changes=settings.changes,
        position=position_of(schema, settings.source_position),
    )

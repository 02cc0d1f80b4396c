"""What a Postgres sink's guarantee rests on, as it is now: which server this is and what it keeps, and which table the
target is. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import psycopg

from onefold.clients.postgres import sessions as pool
from onefold.core.contract import Committable, SinkKind
from onefold.core.findings import Finding, Held, Level, Target
from onefold.core.invariants import NoLoss
from onefold.sinks.postgres import prepared
from onefold.sinks.postgres.naming import Gid, TargetName, gid_prefix
from onefold.sinks.postgres.sink_options import PostgresSinkConfig

# Of the WAL that is written now: pg_control_checkpoint() has the old timeline until the first checkpoint after it.
_TIMELINE = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_SYSTEM = "SELECT system_identifier::text FROM pg_control_system()"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A replica that was promoted, or a restored backup, has the same address and another history.

    The timeline's number grows with each promotion and each restore to a point in time; the system identifier is made
    with the cluster and copied to its replicas (Postgres manual, 25.3.6 and 9.28). Both are open to every role in
    Postgres itself; a managed server that hides them leaves None.
    """

    system: str | None
    timeline: int | None

    @classmethod
    def of(cls, connection: pool.Connection) -> ServerIdentity:
        both = _asked(connection, f"SELECT ({_SYSTEM}), ({_TIMELINE})")
        system, timeline = both or (
            (_asked(connection, _SYSTEM) or [None])[0],
            (_asked(connection, _TIMELINE) or [None])[0],
        )
        return cls(system, int(timeline, 16) if timeline is not None else None)

    def became(self, now: ServerIdentity) -> str | None:
        """What happened between two looks, as a sentence's end; None if it is the same server as far as one can see."""
        if None not in (self.system, now.system) and self.system != now.system:
            return f"this is another server than before (system identifier {now.system}, it was {self.system})"
        if None not in (self.timeline, now.timeline) and self.timeline != now.timeline:
            return (
                f"this server is on timeline {now.timeline}, and was on {self.timeline}: a replica was promoted, or a "
                "backup restored"
            )
        return None


def _asked(connection: pool.Connection, query: str) -> Sequence[str | None] | None:
    """The row; None where the server hides part of it."""
    is_idle = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    try:
        with nullcontext() if is_idle else connection.transaction():
            return connection.execute(query.encode()).fetchone()
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedFunction,
        psycopg.errors.FeatureNotSupported,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ):
        return None


_FORGOTTEN_S = 600  # what docs/operations.md has people watch for
_SHOWN_MAX = 3
_SETTINGS = """
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit')
"""
_STANDBYS = "SELECT application_name, sync_state FROM pg_stat_replication ORDER BY 1"
_LISTED = """
SELECT gid, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts
WHERE gid = ANY(%s) ORDER BY prepared
"""
_COSTS = (
    "It holds locks, and a slot of max_prepared_transactions, until the pipeline's next start, or `onefold txn resolve"
    " PIPELINE --gid {}`"
)


def examine(settings: PostgresSinkConfig, pipeline: str) -> Iterator[Finding]:
    with pool.borrow(settings.conninfo("doctor"), f"{settings.where(pipeline)}, examining the server") as connection:
        yield from _durability(connection)
        yield from _standbys(connection)
        yield from _prepared(connection, pipeline, settings.name)


def held(settings: PostgresSinkConfig, pipeline: str) -> list[Held]:
    """The prepared transactions of the sink that this role may end."""
    doing = f"{settings.where(pipeline)}, listing prepared transactions"
    with pool.borrow(settings.conninfo("doctor"), doing) as connection:
        ours, _ = prepared.named(connection, gid_prefix(pipeline, settings.name))
        rows = connection.execute(_LISTED, (list(ours),)).fetchall()
    found = []
    for name, age_s in rows:
        gid = Gid.parse_any(name)
        if gid is not None:
            committable = Committable(settings.name, SinkKind.TWO_PHASE, name, gid.generation, gid.epoch, 0)
            found.append(Held(committable, age_s, _COSTS.format(name)))
    return found


def _durability(connection: pool.Connection) -> Iterator[Finding]:
    ((version, fsync, full_pages, synchronous_commit),) = connection.execute(_SETTINGS)
    here = ServerIdentity.of(connection)
    yield Finding(
        Level.FINE,
        f"Postgres {version}, system identifier {here.system or 'hidden'}, timeline {here.timeline or 'hidden'}: a "
        "server with others in its place is noticed",
    )
    for name, value in (("fsync", fsync), ("full_page_writes", full_pages)):
        if value != "on":
            yield Finding(
                Level.PROBLEM,
                f"{name} is {value}: a crash of the server's machine loses or damages what it acknowledged. ALTER "
                f"SYSTEM SET {name} = on, and reload",
                (NoLoss.name,),
            )
    kept = "on, which the sink leaves" if synchronous_commit == "on" else f"{synchronous_commit}, and the sink sets on"
    if synchronous_commit == "remote_apply":
        kept = "remote_apply, which is stricter than on, and the sink leaves"
    yield Finding(Level.FINE, f"synchronous_commit is {kept} in each transaction of its own")


def _standbys(connection: pool.Connection) -> Iterator[Finding]:
    standbys = connection.execute(_STANDBYS).fetchall()
    waiting = ("sync", "quorum")
    lax = [name for name, state in standbys if state not in waiting]
    if not standbys:
        yield Finding(Level.FINE, "no replica is connected: what this server acknowledged is on its disk alone")
    elif any(state is None for _, state in standbys):  # Postgres tells others only that they are there
        yield Finding(
            Level.CAUTION,
            f"replicas are connected ({len(standbys)}), and whether commits wait for one is not shown to us (GRANT "
            "pg_read_all_stats): one that is promoted without that may lack what was acknowledged",
        )
    elif len(lax) == len(standbys):
        yield Finding(
            Level.CAUTION,
            f"none of the {len(standbys)} replicas ({', '.join(lax)}) is synchronous: one that is promoted may lack "
            "what was acknowledged. That is noticed (DataLoss), and cannot be made right: set "
            "synchronous_standby_names, or promote none that lags",
        )
    else:
        synchronous = [name for name, state in standbys if state in waiting]
        others = f"; promote none of {', '.join(lax)}, which don't wait" if lax else ""
        yield Finding(Level.FINE, f"commits wait for the replicas {', '.join(synchronous)}{others}")


def _prepared(connection: pool.Connection, pipeline: str, sink: str) -> Iterator[Finding]:
    ours, others = prepared.named(connection, gid_prefix(pipeline, sink))
    ages_s = [age_s for _, age_s in connection.execute(_LISTED, (list(ours),))]
    if not ages_s:
        yield Finding(Level.FINE, "nothing of this sink is prepared now")
    elif ages_s[0] < _FORGOTTEN_S:
        yield Finding(
            Level.FINE, f"prepared transactions of this sink: {len(ages_s)}, the oldest for {ages_s[0]:.0f} s"
        )
    else:
        yield Finding(
            Level.CAUTION,
            f"prepared transactions of this sink: {len(ages_s)}, the oldest for {ages_s[0] / 60:,.0f} minutes: they "
            "hold locks until the pipeline is started, or `onefold txn resolve`",
        )
    if others:
        owners = sorted({repr(other.owner) if other.owner else "a role that was dropped" for other in others})
        yield Finding(
            Level.CAUTION,
            f"{len(others)} prepared transactions under this sink's names are not its own: {', '.join(owners)} "
            "prepared them, of which this role is no member. The pipeline leaves them alone; ROLLBACK PREPARED as "
            f"their owner frees their slots and locks: {', '.join(other.gid for other in others[:_SHOWN_MAX])}",
        )


# A partitioned table has no file, and its partitions have one each. A view has no rows, so it may be made anew.
_LOOK = """
SELECT CASE WHEN relkind = 'v' THEN '' ELSE c.oid::text END, (
    SELECT coalesce(md5(string_agg(pg_relation_filenode(relid)::text, ',' ORDER BY relid)), '')
    FROM (SELECT c.oid AS relid UNION SELECT relid FROM pg_partition_tree(c.oid)) tree)
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
# Nobody can tell of a view, of rows that a policy hides, or of those that this role may not read.
_READABLE = """
SELECT FROM pg_class c WHERE c.oid = to_regclass(%s) AND relkind IN ('r', 'p') AND NOT row_security_active(c.oid)
    AND has_table_privilege(c.oid, 'SELECT')
"""


def target_now(connection: pool.Connection, table: TargetName) -> Target:
    """Tells a target from another one of its name, in a transaction with the safe path: by its OID, which a table that
    is made anew does not have, and by its files, of which TRUNCATE begins new ones (as do VACUUM FULL, CLUSTER and some
    ALTER TABLE, which keep the rows)."""
    row = connection.execute(_LOOK, (table.sql,)).fetchone()
    name = f"table {table}"
    return Target(name, is_there=False) if row is None else Target(name, True, *row)


def is_empty(connection: pool.Connection, table: TargetName) -> bool:
    if connection.execute(_READABLE, (table.sql,)).fetchone() is None:
        return False
    ((has_rows,),) = connection.execute(f"SELECT EXISTS (SELECT FROM {table.sql})".encode())
    return not has_rows

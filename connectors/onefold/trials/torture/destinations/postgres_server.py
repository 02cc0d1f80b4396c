"""What every audit of a table asks its Postgres server: what is in doubt, and which transactions show as committed."""

from __future__ import annotations

import psycopg

from onefold.core import Committable, LedgerEntry, SinkKind
from onefold.trials.torture.destinations.destination import CommittedParts
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.workload_settings import TABLE

_IN_DOUBT = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
_OPEN = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND application_name <> 'torture' AND xact_start < now() - interval '5 seconds'
"""
_PARTS = "SELECT epoch, generation, gid, rows FROM onefold_sinks.onefold_parts WHERE pipeline = %s AND sink = %s"
_STAGES = """
SELECT relname FROM pg_class WHERE relnamespace = 'onefold_sinks'::regnamespace AND relname LIKE 'onefold\\_stage\\_%'
"""


def leftovers(url: str) -> tuple[Committable, ...]:
    """Prepared and open transactions of anybody in the pipeline's database, and every row in a stage. Raises
    psycopg.Error."""
    found = []
    with psycopg.connect(url, autocommit=True, application_name="torture") as connection:
        for query, what in ((_IN_DOUBT, ""), (_OPEN, "open transaction of backend ")):
            for (name,) in connection.execute(query):
                found.append(Committable(TABLE, SinkKind.TWO_PHASE, f"{what}{name}", 0, 0, 0))
        for (stage,) in connection.execute(_STAGES).fetchall():
            query = f'SELECT onefold_attempt, count(*) FROM onefold_sinks."{stage}" GROUP BY 1'
            for attempt, rows in connection.execute(query.encode()):
                found.append(Committable(TABLE, SinkKind.LAST_RESOURCE, f"{stage}/{attempt}", 0, 0, rows))
        listed = "SELECT stage, attempt, generation, epoch FROM onefold_sinks.onefold_staged"
        for stage, attempt, generation, epoch in connection.execute(listed):
            handle = f"listed {stage}/{attempt}"
            found.append(Committable(TABLE, SinkKind.LAST_RESOURCE, handle, generation, epoch, 0))
    return tuple(found)


def committed_parts(url: str, sink: str, ledger: LedgerEntry | None) -> CommittedParts:
    """What two_phase has noted of a sink's parts, as far as the ledger row keeps it. Raises psycopg.Error."""
    with psycopg.connect(url, autocommit=True) as connection:
        parts = connection.execute(_PARTS, (PIPELINE, sink)).fetchall()
    found = tuple(
        Committable(sink, SinkKind.TWO_PHASE, gid, generation, epoch, rows) for epoch, generation, gid, rows in parts
    )
    return CommittedParts(found, since=ledger.epoch if ledger else 0)

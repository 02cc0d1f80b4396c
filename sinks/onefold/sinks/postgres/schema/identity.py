"""Tells a target from another one of its name: by its OID, which a table that is made anew does not have, and by its
files, of which TRUNCATE begins new ones (as do VACUUM FULL, CLUSTER and some ALTER TABLE, which keep the rows)."""

from __future__ import annotations

from onefold.clients.postgres.sessions import Connection
from onefold.core.findings import Target
from onefold.sinks.postgres.naming import TargetName

__all__ = ["is_empty", "look"]

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


def look(connection: Connection, table: TargetName) -> Target:
    """For a transaction with the safe path."""
    row = connection.execute(_LOOK, (table.sql,)).fetchone()
    name = f"table {table}"
    return Target(name, is_there=False) if row is None else Target(name, True, *row)


def is_empty(connection: Connection, table: TargetName) -> bool:
    if connection.execute(_READABLE, (table.sql,)).fetchone() is None:
        return False
    ((has_rows,),) = connection.execute(f"SELECT EXISTS (SELECT FROM {table.sql})".encode())
    return not has_rows

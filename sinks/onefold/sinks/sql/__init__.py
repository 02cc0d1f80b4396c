"""Rows into a table of a SQL database with transactions, exactly once: `staged`.

sink.py         SqlSink: settings, the guarantee in words; on Postgres, a PostgresSink
open_checks.py  what `open` checks and makes ready
adapters/       what differs per database, a class for each; sql_kinds.py: Arrow type -> the kind of column it is
target.py       the user's table: created or compared
staging.py      the stage: made, verified, merged, cleared
upsert.py       the newest version of a key wins; deletes
writer.py       executors: rows into the stage, one transaction for each attempt
committer.py    driver: verify, merge, commit, abort, leftovers
bookkeeping.py  ledger and staged attempts: the tables that onefold keeps beside the target
databases.py    connections, kept per process
naming.py       names of tables, stages and attempts
sink_plan.py    settings and what `open` made of them
"""

from onefold.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]

"""Rows into a Postgres table, exactly once: `two_phase` or `staged` (DESIGN, section 5).

sink.py        PostgresSink: settings, what `open` found out, the guarantee in words
target.py      the user's table: found or made
comparison.py  the rows and the table side by side: how each column travels, or why it cannot
evolution.py   the table altered for the rows; widening.py: what that may do to a column
types.py       Arrow type -> Postgres type
wire.py        columns -> what COPY wants
jsontext.py    nested values -> JSON, a column at a time
writer.py      executors: BEGIN, COPY, PREPARE TRANSACTION or COMMIT
committer.py   driver: verify, commit, abort, leftovers, merge
bookkeeping.py ledger, parts and staged attempts: the tables that onefold keeps in the destination
layout.py      those tables' versions and migrations
naming.py      names of transactions, stages and attempts; quoting
connection.py  connections, kept per process
errors.py      SQLSTATE -> onefold's errors
"""

from onefold.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]

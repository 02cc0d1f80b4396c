"""Rows into a Postgres table, exactly once: `two_phase` or `staged` (DESIGN, section 5).

sink.py        PostgresSink: its settings, and the guarantee in words; changes.py: those of upserts
opening.py     what `open` finds out and makes ready; plan.py: what it knows then, and which delivery that gives
target.py      the user's table: found or made
comparison.py  the rows and the table side by side: how each column travels, or why it cannot
evolution.py   the table altered for the rows; widening.py: what that may do to a column
types.py       Arrow type -> Postgres type
wire.py        columns -> what COPY wants; encoding.py: whole batches
jsontext.py    nested values -> JSON, a column at a time
writer.py      executors: BEGIN, COPY (loading.py), PREPARE TRANSACTION or COMMIT
committer.py   driver: verify, commit, abort, leftovers, merge; prepared.py: COMMIT and ROLLBACK PREPARED
staging.py     the stage: made, verified, merged, cleared
applying.py    its rows into the target: appended, or merged by key; tombstones.py: deletions, remembered
merging.py     the same with those left out that Postgres refuses: isolating.py finds them, dead_letters.py keeps them
bookkeeping.py ledger, parts and staged attempts: the tables that onefold keeps in the destination
layout.py      those tables' versions and migrations; pruning.py: what nobody comes back for
operations.py  an operator's view of a database
naming.py      names of transactions, stages and attempts; quoting
connection.py  connections, kept per process; incarnation.py: which server that is
errors.py      SQLSTATE -> onefold's errors
"""

from onefold.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]

"""Rows into a Postgres table, exactly once: `two_phase` or `staged`.

sink.py         PostgresSink: its settings, and the guarantee in words
open_checks.py  what `open` checks and makes ready; sink_plan.py: what it knows then, and which delivery that gives
writer.py       executors: BEGIN, COPY, PREPARE TRANSACTION or COMMIT
schema/         the user's table: found, made, compared with the rows, evolved
copy/           rows in COPY's binary format
merge/          the stage, and its rows into the target: appended, or the newest version of each key
committer.py    driver: verify, commit, abort, leftovers, merge; prepared.py: how a prepared transaction ends
dead_letters.py rows that Postgres refuses: found, and kept
ledger/         ledger, parts and staged attempts: the tables that onefold keeps in the destination
admin.py        an operator's view of a database; guarantee_checks.py: what the guarantee rests on
naming.py       names of transactions, stages and attempts
"""

from onefold.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]

"""What sinks that stage an epoch's rows share: Postgres, and other SQL databases.

table_options.py     the options of a sink that writes into a table
table_sink.py        what such sinks have in common as Python objects
upsert.py            which row is meant, which version of it is newer, and which deletes it
attempts.py          staged attempts: their handles, and whether what a manifest names is there
ledger.py            the ledger's row: how it is bound, and moves forward
ledger_committer.py  the driver's hand in the ledger, and around the merge; a destination that has lost what it
                     acknowledged is noticed
"""

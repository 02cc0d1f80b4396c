"""A Postgres server on this machine."""

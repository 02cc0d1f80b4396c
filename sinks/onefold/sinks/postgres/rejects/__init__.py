"""Rows that Postgres refuses: found by bisection, kept as dead letters."""

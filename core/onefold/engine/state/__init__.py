"""Keyed and operator state: backends, snapshots and their storage."""

"""row_key, rolling and incremental: how each mode writes an epoch."""

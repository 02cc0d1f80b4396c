"""SQL databases, as the checkpoint store and the SQL sinks use them, and what onefold believes of each."""

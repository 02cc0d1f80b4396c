"""Random programs over a processor's state, on each backend and on Spark's tables, beside a plain model."""

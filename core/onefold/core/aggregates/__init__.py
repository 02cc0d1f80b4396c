"""Aggregates of the rows of a key, exactly: `sum_`, `count` and others, and the accumulation that runtimes run."""

from onefold.core.aggregates.accumulation import Accumulation, merged
from onefold.core.aggregates.functions import Aggregate, aggregated_schema, count, first, last, max_, mean, min_, sum_

__all__ = [
    "Accumulation",
    "Aggregate",
    "aggregated_schema",
    "count",
    "first",
    "last",
    "max_",
    "mean",
    "merged",
    "min_",
    "sum_",
]

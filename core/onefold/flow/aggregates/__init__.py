"""Aggregates of the rows of a key, exactly: `sum_`, `count` and others, and the accumulation that runtimes run."""

from onefold.flow.aggregates.accumulation import Accumulation
from onefold.flow.aggregates.functions import Aggregate, aggregated_schema, count, first, last, max_, mean, min_, sum_

__all__ = [
    "Accumulation",
    "Aggregate",
    "aggregated_schema",
    "count",
    "first",
    "last",
    "max_",
    "mean",
    "min_",
    "sum_",
]

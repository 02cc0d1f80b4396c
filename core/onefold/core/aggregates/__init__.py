"""Aggregates of the rows of a key: `sum_`, `count` and others, and the accumulation that runtimes run."""

from onefold.core.aggregates.accumulation import Accumulation, merged
from onefold.core.aggregates.functions import Aggregate, aggregated_schema, count, max_, mean, min_, sum_
from onefold.core.aggregates.own import Aggregator
from onefold.core.aggregates.ranked import first, last, top
from onefold.core.aggregates.sketches import approx_distinct, quantile, quantiles
from onefold.core.aggregates.sub_keys import count_distinct

__all__ = [
    "Accumulation",
    "Aggregate",
    "Aggregator",
    "aggregated_schema",
    "approx_distinct",
    "count",
    "count_distinct",
    "first",
    "last",
    "max_",
    "mean",
    "merged",
    "min_",
    "quantile",
    "quantiles",
    "sum_",
    "top",
]

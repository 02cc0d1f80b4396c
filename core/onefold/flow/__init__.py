"""What users write as a flow: streams of records, functions on them, keyed state, sinks. Knows no runtime."""

from onefold.core.aggregates import (
    Aggregate,
    Aggregator,
    approx_distinct,
    count,
    count_distinct,
    first,
    last,
    max_,
    mean,
    min_,
    quantile,
    quantiles,
    sum_,
    top,
)
from onefold.core.values.ids import IdsWithin, OrderedIds
from onefold.flow.flow import Flow
from onefold.flow.graph import Edge, Graph, Node, Shipping
from onefold.flow.processing.evolution import Evolution
from onefold.flow.processing.processor import (
    BroadcastProcessor,
    BroadcastState,
    BytesState,
    ExpiredTimer,
    ListState,
    MapState,
    OperatorListState,
    ProcessorHandle,
    StatefulProcessor,
    TimerValues,
    ValueState,
)
from onefold.flow.processing.rows import Side
from onefold.flow.streams import BroadcastStream, ConnectedStream, KeyedStream, SparkStream, Stream, WindowedStream
from onefold.flow.time.triggers import EachEpoch, Every, timing
from onefold.flow.time.ttl import Ttl
from onefold.flow.time.watermarks import Watermarks, bounded, monotonic, punctuated
from onefold.flow.time.windows import Session, Sliding, Tumbling

__all__ = [
    "Aggregate",
    "Aggregator",
    "BroadcastProcessor",
    "BroadcastState",
    "BroadcastStream",
    "BytesState",
    "ConnectedStream",
    "EachEpoch",
    "Edge",
    "Every",
    "Evolution",
    "ExpiredTimer",
    "Flow",
    "Graph",
    "IdsWithin",
    "KeyedStream",
    "ListState",
    "MapState",
    "Node",
    "OperatorListState",
    "OrderedIds",
    "ProcessorHandle",
    "Session",
    "Shipping",
    "Side",
    "Sliding",
    "SparkStream",
    "StatefulProcessor",
    "Stream",
    "TimerValues",
    "Ttl",
    "Tumbling",
    "ValueState",
    "Watermarks",
    "WindowedStream",
    "approx_distinct",
    "bounded",
    "count",
    "count_distinct",
    "first",
    "last",
    "max_",
    "mean",
    "min_",
    "monotonic",
    "punctuated",
    "quantile",
    "quantiles",
    "sum_",
    "timing",
    "top",
]

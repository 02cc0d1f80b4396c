"""Flows of shapes, as a user would write them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from harness.differential import shapes as s
from harness.differential.processors import PROCESSORS, Copies, Raised, Totals, joined, larger, largest

from onefold.core.source import Source
from onefold.flow import Flow, Stream, count, first, last, max_, mean, min_, sum_
from onefold.sinks import PostgresSink

__all__ = ["Building", "table_of"]

AGGREGATES: Mapping[str, Callable[[str], Any]] = {
    "sum": sum_,
    "count": count,
    "min": min_,
    "max": max_,
    "mean": mean,
    "first": first,
    "last": last,
}
FUNCTIONS: Mapping[str, Callable[..., pc.Expression]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negate": pc.negate_checked,
    "abs": pc.abs_checked,
    "coalesce": pc.coalesce,
    "least": pc.min_element_wise,
    "if_else": pc.if_else,
    "length": lambda a: pc.utf8_length(a).cast(pa.int64()),
    "text": lambda a: a.cast(pa.string()),
    "upper": pc.utf8_upper,
    "join": lambda a, b: pc.binary_join_element_wise(a, b, "-"),
    "cents": lambda a: a.cast(pa.decimal128(12, 2)),
    "less": operator.lt,
    "at_least": operator.ge,
    "equal": operator.eq,
    "differs": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.invert,
    "is_null": lambda a: a.is_null(),
    "is_valid": lambda a: a.is_valid(),
    "is_small": lambda a: a.isin([0, 1, 2, 3]),
    "over": lambda a, b: pc.divide(a.cast(pa.float64()), b),
    "is_nan": pc.is_nan,
    "begins": lambda a: pc.starts_with(a, pattern="a"),
}


def expression(of: s.Expression) -> pc.Expression:
    match of:
        case s.Field(name):
            return pc.field(name)
        case s.Const(value):
            return pc.scalar(value)
        case _:
            return FUNCTIONS[of.function](*map(expression, of.arguments))


def table_of(name: str, end: int) -> str:
    return f"{name}_{end}"


@dataclass(frozen=True)
class Building:
    """`flow` makes the flow `name`, which writes tables of that name to `url`."""

    shape: s.Shape
    name: str
    url: str

    def flow(self, *sources: Source) -> Flow:
        flow = Flow(self.name, self.shape.max_parallelism)
        streams = [flow.source(source, uid=f"source{number}") for number, source in enumerate(sources)]
        for number, step in enumerate(self.shape.steps):
            made = _stepped(step, streams, f"step{number}")
            streams.append(made)
            if isinstance(step, s.Mapped | s.FlatMapped | s.Processed):
                streams.append(made.side("rest"))
        for number, end in enumerate(self.shape.ends):
            self._end(end, streams[end.of], number)
        return flow

    def _end(self, end: s.End, stream: Stream, number: int) -> None:
        uid = f"end{number}"
        match end:
            case s.Appended():
                stream.sink(self._sink(number))
            case s.Newest():
                some = _without_nulls(stream.select("account", "n", "id"), ("account", "n", "id"))
                some.sink(self._sink(number, ("account",), ("n", "id")))
            case s.Aggregated(_, key, aggregates):
                made = {f"{name}_{column}": AGGREGATES[name](column) for name, column in aggregates}
                totals = _without_nulls(stream, key).key_by(*key).aggregate(uid=uid, **made)
                totals.sink(self._sink(number, key))
            case s.Busiest(_, key, reduces):
                some = _without_nulls(stream, ("team",)).key_by(*key, "team")
                counts = some.aggregate(uid=f"{uid}.all", most=count()).select("team", "most").key_by("team")
                most = counts.reduce(larger, uid=uid) if reduces else counts.aggregate(uid=uid, most=max_("most"))
                most.sink(self._sink(number, ("team",)))
            case s.Reduced(_, key, kind):
                keyed = _without_nulls(stream, key).key_by(*key)
                keyed.reduce({"largest": largest, "joined": joined}[kind], uid=uid).sink(self._sink(number, key))
            case s.Timed(_, key):
                some = _without_nulls(stream, key)
                schema = pa.schema([*map(some.schema.field, key), ("number", pa.int64()), ("total", pa.int64())])
                some.key_by(*key).process(Totals(), schema, uid=uid).sink(
                    self._sink(number, key, ("onefold_epoch", "number"))
                )

    def _sink(self, number: int, key: tuple[str, ...] = (), order: tuple[str, ...] = ("onefold_epoch",)) -> Any:
        upserts: dict[str, Any] = {"mode": "upsert", "key": key, "order": order} if key else {}
        delivery: Any = "staged" if number == self.shape.staged else "two_phase"
        return PostgresSink(self.url, table_of(self.name, number), delivery=delivery, **upserts)


def _stepped(step: s.Step, streams: list[Stream], uid: str) -> Stream:
    match step:
        case s.Filtered(of, condition):
            return streams[of].filter(expression(condition))
        case s.Computed(of, columns, selects):
            made = {name: expression(each) for name, each in columns}
            if selects:
                return streams[of].select(**{name: made.get(name, pc.field(name)) for name in s.COLUMNS})
            return streams[of].with_columns(**made)
        case s.Mapped(of, bound):
            return streams[of].map_batches(Raised(bound), sides={"rest": s.SCHEMA})
        case s.FlatMapped(of, most):
            return streams[of].flat_map(Copies(most), s.SCHEMA, sides={"rest": s.SCHEMA})
        case s.United((of, *others)):
            return streams[of].union(*(streams[other] for other in others))
        case s.Rebalanced(of):
            return streams[of].rebalance()
        case s.Processed(of, key, kind):
            keyed = streams[of].key_by(*key)
            return keyed.process(PROCESSORS[kind](), s.SCHEMA, uid=uid, sides={"rest": s.SCHEMA})
    raise AssertionError(step)


def _without_nulls(stream: Stream, columns: tuple[str, ...]) -> Stream:
    for name in columns:
        stream = stream.filter(pc.field(name).is_valid())
    return stream

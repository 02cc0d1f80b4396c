"""The streams of a flow: what users call to say what happens to records. Each call adds a node, and checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates import Aggregate, aggregated_schema
from onefold.core.contract import Sink
from onefold.core.errors import ConfigError
from onefold.core.values.batches import empty_batch
from onefold.core.values.durations import duration_us
from onefold.core.values.ids import Deduplication
from onefold.core.values.names import check_columns, near
from onefold.core.writing.replacing import check_mode
from onefold.flow.building import Nodes, check_state_key, needs_uid
from onefold.flow.deduplicating import deduplicated
from onefold.flow.evaluation import column_of, expression_types, given_by, shaped
from onefold.flow.expressions import expression_of
from onefold.flow.graph.nodes import Edge, Node, Shipping
from onefold.flow.graph.operators import (
    Aggregating,
    Batches,
    Connecting,
    Dict,
    Filtering,
    FlatMapping,
    MappingBatches,
    Operator,
    Processing,
    Querying,
    Reducing,
    Selecting,
    TimersOf,
    Uniting,
)
from onefold.flow.joining import joined
from onefold.flow.processing.declaring import as_schema, declared_states
from onefold.flow.processing.processor import BroadcastProcessor, Schema, StatefulProcessor
from onefold.flow.processing.rows import Side
from onefold.flow.time.evictors import Evictor
from onefold.flow.time.joins import AsOf, How, Within
from onefold.flow.time.triggers import Purging, Timing, Trigger
from onefold.flow.time.ttl import Ttl, check_ttl
from onefold.flow.time.window_processor import Reducer, WindowProcessor
from onefold.flow.time.windows import SIZE_US_MAX, Aligned, Sliding, Tumbling, aligned
from onefold.flow.windowing import ResultsOf, Window, WindowOptions, Windows, windows_of
from onefold.flow.writing import add_sink

Sides = Mapping[str, Schema] | None
Expressed: TypeAlias = "pc.Expression | str"  # a text of the language in docs/flows.md


class Stream:
    """Records of one schema, on their way."""

    def __init__(self, nodes: Nodes, edge: Edge) -> None:
        self._nodes = nodes
        self._edge = edge

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self._nodes.schema(self._edge)

    def filter(self, condition: Expressed) -> Stream:
        """The rows for which an expression is true: a text, `filter("amount > 0")`, or one of pyarrow,
        `filter(pc.field("amount") > Decimal(0))`."""
        (made,), (kind,) = self._types("filter", [condition])
        if kind != pa.bool_():
            raise ConfigError("expression-type", f"filter({condition}) gives {kind}: give a condition, which is a bool")
        return self._next(Filtering(made, condition if isinstance(condition, str) else None), self.schema)

    def select(self, /, *names: str, **expressions: Expressed) -> Stream:
        """Rows of these columns: by name, and computed: `select("id", cents="amount * 100")`."""
        check_columns(names, self.schema, "select")
        columns = [*((name, pc.field(name)) for name in names), *expressions.items()]
        if not columns or len({name for name, _ in columns}) != len(columns):
            raise ConfigError("option-value", "select names no column, or one of them twice: name each once")
        return self._selected("select", columns)

    def with_columns(self, /, **expressions: Expressed) -> Stream:
        """The rows with more columns, or with others in the place of those that they have, each computed from the rows
        as they were."""
        columns = {**{name: pc.field(name) for name in self.schema.names}, **expressions}
        return self._selected("with_columns", [*columns.items()])

    def map_batches(self, function: Batches, schema: Schema | None = None, sides: Sides = None) -> Stream:
        """What a function makes of each record batch: it returns a batch, or yields several.

        schema  of the batches it gives. Without it, that of what it makes of a batch without rows, which is tried here
        sides   schemas of side outputs by their names; the function yields `Side("late", batch)` for them

        Batches have any number of rows, one or more. Where records are processed again after a crash, they may be cut
        into other batches. A batch is shared with other branches of the flow: give a new one, and never write into its
        memory.
        """
        given = self._tried(function)
        found = next((batch.schema for output, batch in given if output is None), None)
        if schema is None and found is None:
            raise ConfigError(
                "schema-missing",
                "map_batches: the function gives no batch for a batch without rows, so that the schema of its rows is"
                " not known: give schema=",
            )
        node = self._node(
            MappingBatches(function), found if schema is None else as_schema(schema, "map_batches"), sides
        )
        for output, batch in given:
            shaped(node, output, batch)
        return Stream(self._nodes, Edge(node.number))

    def flat_map(
        self, function: Callable[[Dict], Iterable[Dict | Side] | None], schema: Schema, sides: Sides = None
    ) -> Stream:
        """What a function makes of each row, a dict: it yields any number of rows, dicts (or tuples) of `schema`, and
        `Side("late", row)` for the side outputs that `sides` has the schemas of. None is no row."""
        return self._next(FlatMapping(function), as_schema(schema, "flat_map"), sides)

    def deduplicate(self, ids: Deduplication, uid: str | None = None) -> Stream:
        """The rows whose id has not been seen: `deduplicate(OrderedIds(), uid="once")`, where ids are numbered within
        their source, or `IdsWithin("2 hours", id="event")`. Of a source's own stream, which says where each record was;
        with `IdsWithin` and a column of ids also of any other.

        A record whose id is missing or malformed ends the flow with `BadRecord`.
        """
        return Stream(self._nodes, deduplicated(self._nodes, self._edge, ids, needs_uid(uid, "deduplicate")))

    def spark_sql(self, query: str, schema: Schema, output_mode: Literal["append", "update"] = "append") -> SparkStream:
        """What a SELECT of Spark's SQL over the view `source`, which has these rows, gives. Only Spark runs it.

            orders.spark_sql("SELECT id, amount FROM source WHERE amount > 0", schema="id long, amount decimal(12,2)")

        schema       the columns of its rows, which a start compares with those that Spark finds
        output_mode  "update" for an aggregation whose sinks replace the rows of groups that change

        It stands between operators without state and the sinks, once in a flow. Its state, as of an aggregation under a
        watermark, is Spark's own, and in the checkpoint.
        """
        return self._queried("spark_sql", query, schema, output_mode)

    def spark_dataframe(
        self, function: Callable[[Any], Any], schema: Schema, output_mode: Literal["append", "update"] = "append"
    ) -> SparkStream:
        """As `spark_sql`, of a deterministic function from a streaming DataFrame of these rows to another. A start
        calls it twice: first on a DataFrame without rows, to compare its columns."""
        return self._queried("spark_dataframe", function, schema, output_mode)

    def key_by(self, *columns: str) -> KeyedStream:
        """The same rows, all of a key in one task and in the order in which they come there."""
        check_state_key(columns, self.schema, "key_by")
        return KeyedStream(self._nodes, self._edge, columns)

    def window(
        self,
        window: Window,
        *,
        on: str | None = None,
        lateness: str = "0 seconds",
        late: str | None = None,
        trigger: Trigger | Purging | None = None,
        evictor: Evictor | None = None,
        results: ResultsOf = "accumulating",
    ) -> WindowedStream:
        """The rows by windows of time alone, as `KeyedStream.window` has them by key too. One task has them all."""
        edge = Edge(self._edge.source, Shipping.KEYED, output=self._edge.output)
        options = WindowOptions(on, lateness, late, trigger, evictor, results)
        return WindowedStream(windows_of(self._nodes, edge, window, options))

    def union(self, *streams: Stream) -> Stream:
        """The rows of several streams of one schema, in no order among them."""
        for other in streams:
            _check_ours(self._nodes, other, "union")
            _check_same(self.schema, other.schema)
        schema = pa.schema(
            [
                field.with_nullable(any(each.schema.field(at).nullable for each in (self, *streams)))
                for at, field in enumerate(self.schema)
            ]
        )
        node = self._nodes.add(Uniting(), [each._edge for each in (self, *streams)], schema)
        return Stream(self._nodes, Edge(node.number))

    def broadcast(self) -> BroadcastStream:
        """The same rows, all of them in every task: to connect a keyed stream with."""
        return BroadcastStream(self._nodes, Edge(self._edge.source, Shipping.BROADCAST, output=self._edge.output))

    def rebalance(self) -> Stream:
        """The same rows, evenly among the tasks: for a source with fewer partitions than there are workers."""
        return Stream(self._nodes, Edge(self._edge.source, Shipping.REBALANCE, output=self._edge.output))

    def side(self, name: str) -> Stream:
        """A side output of the function or processor whose rows these are; `bad` of a source that has dead letters."""
        sides = [side for side, _ in self._nodes.made[self._edge.source].sides]
        if self._edge.output is not None or name not in sides:
            told = near(name, sides) or f"; there are {', '.join(sides) or 'none'}"
            raise ConfigError("side-not-declared", f"the stream has no side output {name!r}{told}")
        return Stream(self._nodes, Edge(self._edge.source, output=name))

    def sink(self, sink: Sink) -> None:
        """Write the rows to a sink. Where its writers need rows of one key in one task, they are brought there."""
        add_sink(self._nodes, self._edge, sink)

    def _queried(self, label: str, query: str | Callable[[Any], Any], schema: Schema, output_mode: str) -> SparkStream:
        is_given = isinstance(query, str) and query.strip() if label == "spark_sql" else callable(query)
        if not is_given:
            raise ConfigError(
                "option-value",
                f"{label} has {query!r:.100}: give a SELECT over the view source, as a text; or to spark_dataframe a"
                " function",
            )
        check_mode(output_mode)
        node = self._node(Querying(query, output_mode), as_schema(schema, label))
        return SparkStream(self._nodes, Edge(node.number))

    def _types(self, label: str, given: list[Expressed]) -> tuple[list[pc.Expression], list[pa.DataType]]:
        made = [expression_of(each, self.schema, label) if isinstance(each, str) else each for each in given]
        for each in made:
            if not isinstance(each, pc.Expression):
                raise ConfigError(
                    "expression-type",
                    f"{label}: {each!r:.100} is no expression: write a text, 'amount * 100', or one of pyarrow.compute,"
                    " with pc.field('column') for a column and pc.scalar(value) for a value",
                )
        return made, expression_types(self.schema, made, label)

    def _selected(self, label: str, given: list[tuple[str, Expressed]]) -> Stream:
        names = [name for name, _ in given]
        made, kinds = self._types(label, [expression for _, expression in given])
        columns = tuple(zip(names, made, strict=True))
        fields = [_field(self.schema, *column, kind) for column, kind in zip(columns, kinds, strict=True)]
        texts = {name: text for name, text in given if isinstance(text, str)}
        return self._next(Selecting(columns, texts), pa.schema(fields))

    def _tried(self, function: Batches) -> list[tuple[str | None, pa.RecordBatch]]:
        try:
            return list(given_by("map_batches", function, empty_batch(self.schema)))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                "function-fails-empty",
                f"map_batches: the function fails on a batch without rows, with {error!r}: let it take one, so that the"
                " flow is checked before there are records",
            ) from error

    def _node(self, operator: Operator, schema: pa.Schema, sides: Sides = None) -> Node:
        return self._nodes.add(operator, [self._edge], schema, sides)

    def _next(self, operator: Operator, schema: pa.Schema, sides: Sides = None) -> Stream:
        return Stream(self._nodes, Edge(self._node(operator, schema, sides).number))


class KeyedStream:
    """Records by key: all of one key in one task, where they may share state."""

    def __init__(self, nodes: Nodes, edge: Edge, key: tuple[str, ...]) -> None:
        self._nodes = nodes
        self._edge = Edge(edge.source, Shipping.KEYED, key, edge.output)
        self._key = key

    def process(
        self,
        processor: StatefulProcessor,
        schema: Schema,
        uid: str | None = None,
        sides: Sides = None,
        timers: TimersOf = "processing",
        queryable: bool = False,
    ) -> Stream:
        """What a stateful processor makes of the rows of each key: rows of `schema`, and `Side("late", row)` for the
        side outputs that `sides` has the schemas of.

        timers     "event": its timers are of event time, and due once the watermark of the sources has come to theirs
        queryable  its states can be asked for while it runs (`onefold.pipeline.StateReader`)
        """
        label = type(processor).__name__
        if isinstance(processor, BroadcastProcessor) or not isinstance(processor, StatefulProcessor):
            raise ConfigError(
                "processor-kind",
                f"process takes an instance of a subclass of StatefulProcessor, and {label} is none: a"
                " BroadcastProcessor belongs to keyed.connect(other.broadcast()).process(...)",
            )
        if timers not in get_args(TimersOf):
            raise ConfigError("option-value", f"{label}: timers={timers!r:.100} is processing or event")
        operator = Processing(processor, self._key, declared_states(processor, label), timers)
        return self._next(operator, as_schema(schema, label), needs_uid(uid, f"process({label})"), sides, queryable)

    def reduce(
        self,
        function: Callable[[Dict, Dict], Dict],
        uid: str | None = None,
        ttl: Ttl | None = None,
        *,
        queryable: bool = False,
    ) -> Stream:
        """One row of each key: `function(kept, row)`, of dicts, makes the kept row of the one that was and of the next,
        in the order in which they come. Each key's kept row comes out once an epoch in which the key had rows. With
        `ttl` it begins anew once it has expired. `queryable`: it can be asked for while the flow runs."""
        schema = self._nodes.schema(self._edge)
        operator = Reducing(function, self._key, check_ttl("reduce", ttl))
        return self._next(operator, schema, needs_uid(uid, "reduce"), queryable=queryable)

    def aggregate(
        self, uid: str | None = None, ttl: Ttl | None = None, *, queryable: bool = False, **aggregates: Aggregate
    ) -> Stream:
        """One row of each key: its columns, and aggregates of all its rows so far by their names:
        `aggregate(uid="totals", total=sum_("amount"), orders=count())`. It comes out once an epoch in which the key had
        rows. With `ttl` it begins anew once it has expired. `queryable`: it can be asked for while the flow runs."""
        schema = aggregated_schema(self._nodes.schema(self._edge), self._key, aggregates)
        operator = Aggregating(tuple(aggregates.items()), self._key, check_ttl("aggregate", ttl))
        return self._next(operator, schema, needs_uid(uid, "aggregate"), queryable=queryable)

    def window(
        self,
        window: Window,
        *,
        on: str | None = None,
        lateness: str = "0 seconds",
        late: str | None = None,
        trigger: Trigger | Purging | None = None,
        evictor: Evictor | None = None,
        results: ResultsOf = "accumulating",
    ) -> WindowedStream:
        """The rows of each key by windows of event time: `window(Tumbling("1 minute")).aggregate(...)`.

        on        their time, a timestamp or a date; by default the column that the source's watermarks go by, as long
                  as the stream has it. Behind a window that is `window_end`
        lateness  how much longer than to its end a window is kept for rows that come late. Its result then comes again,
                  with the next number in the column `emission`, once an epoch in which it got rows
        late      the name of a side output for rows that come later than that; without it they are only counted
        trigger   when a window fires: `Every("10 seconds")`, `EachEpoch()`, `AfterRows(100)`, `OnDelta("price", 5)`,
                  `Purging(...)` of one of them, or one's own; by default at its end
        evictor   which rows a firing leaves: `KeepLast(10)`, `KeepTime("1 minute")`, `KeepDelta("price", 5)`
        results   where a window's result comes again it is of all rows so far ("accumulating"), for sinks that replace
                  rows; of those since it last came ("discarding"), for sinks that append or add; or of all, and the row
                  that it takes back comes first, with `retracts` true ("retracting"), for sinks that append
        """
        options = WindowOptions(on, lateness, late, trigger, evictor, results)
        return WindowedStream(windows_of(self._nodes, self._edge, window, options))

    def join(
        self,
        other: KeyedStream,
        window: Tumbling | Sliding,
        uid: str | None = None,
        *,
        how: How = "inner",
        columns: Sequence[str] | None = None,
        late: str | None = None,
        other_late: str | None = None,
    ) -> Stream:
        """Each pair of this stream's rows and the other's that have one key and are in one window of event time: the
        key's columns, `window_start`, `window_end`, this stream's columns, and the other's, with `_right` behind a name
        that is there already. It comes out in the epoch in which the watermark comes to the window's end.

        how         "left": also this stream's rows without one of the other's, whose columns are null then; "right";
                    "full"
        columns     those that are taken of the other's rows; by default all but its key
        late        the name of a side output for rows of this stream whose windows have ended; without it they are only
                    counted; `other_late` for the other's
        """
        of, text = aligned(window), f"windows of {window}"
        if of.calendar is not None or window.clock != "event":
            raise ConfigError(
                "window-zone", "join: windows of a zone, or of processing time, have no joins: leave it out"
            )
        return self._joined(other, "join", of, text, how, uid, columns, (late, other_late))

    def join_within(
        self,
        other: KeyedStream,
        uid: str | None = None,
        *,
        before: str = "0 seconds",
        after: str = "0 seconds",
        columns: Sequence[str] | None = None,
        late: str | None = None,
        other_late: str | None = None,
    ) -> Stream:
        """Each pair of rows that have one key, and whose times are so that the other's is at most `before` earlier or
        `after` later than this stream's, bounds included. It comes out in the epoch that has the second of the two.
        Options and columns are as `join` has them; a row is late once nothing is kept that it could belong to."""
        of = Within(duration_us(before, "before"), duration_us(after, "after"))
        if of.before_us + of.after_us >= SIZE_US_MAX:
            raise ConfigError("option-value", f"join_within: {before!r} and {after!r} are together over 36,000 years")
        text = f"the other's times from {before} before to {after} after"
        return self._joined(other, "join_within", of, text, "inner", uid, columns, (late, other_late))

    def as_of(
        self,
        other: KeyedStream,
        uid: str | None = None,
        *,
        how: Literal["left", "inner"] = "left",
        columns: Sequence[str] | None = None,
    ) -> Stream:
        """Each row with the newest row of the other stream that has its key and is not later than it: an order with the
        rate that was valid then. It comes out in the epoch in which the watermark passes its time, with nulls where
        there is none; with how="inner" not at all. Of the other's rows that the watermark has passed the newest of each
        key is kept for good. A row that comes late is answered from these, and counted."""
        if how not in ("left", "inner"):
            raise ConfigError("option-value", f"as_of: how={how!r:.100} is left or inner")
        text = "the other's newest of its time"
        return self._joined(other, "as_of", AsOf(), text, how, uid, columns, (None, None))

    def connect(self, other: BroadcastStream) -> ConnectedStream:
        """This stream and a broadcast one, of rules for one, for a processor that sees both."""
        if not isinstance(other, BroadcastStream):
            raise ConfigError("stream-not-broadcast", "connect takes a stream that is in every task: other.broadcast()")
        _check_ours(self._nodes, other, "connect")
        return ConnectedStream(self._nodes, self._edge, other._edge)

    def _joined(
        self,
        other: KeyedStream,
        label: str,
        of: Aligned | Within | AsOf,
        text: str,
        how: How,
        uid: str | None,
        columns: Sequence[str] | None,
        late: tuple[str | None, str | None],
    ) -> Stream:
        if not isinstance(other, KeyedStream):
            raise ConfigError("stream-not-keyed", f"{label} takes another stream by key: other.key_by('id')")
        _check_ours(self._nodes, other, label)
        made = joined(self._nodes, (self._edge, other._edge), of, text, how, uid, columns, late)
        return Stream(self._nodes, made)

    def _next(
        self, operator: Operator, schema: pa.Schema, uid: str, sides: Sides = None, queryable: bool = False
    ) -> Stream:
        node = self._nodes.add(operator, [self._edge], schema, sides, uid, queryable)
        return Stream(self._nodes, Edge(node.number))


class WindowedStream:
    """Records by key and window of time."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def aggregate(self, uid: str | None = None, *, queryable: bool = False, **aggregates: Aggregate | Timing) -> Stream:
        """One row of each key and window that has rows: the key's columns, `window_start`, `window_end`, and aggregates
        by their names. It comes out in the epoch in which the watermark comes to the window's end: the watermark is the
        time that no later record is older than. `queryable`: what open windows have can be asked for before."""
        return Stream(self._windows.nodes, self._windows.aggregated(uid, aggregates, queryable))

    def reduce(self, function: Callable[[Dict, Dict], Dict], uid: str | None = None) -> Stream:
        """One row of each key and window: `function(kept, row)`, of dicts, makes one of the row that was and the next,
        in the order in which they came. Its columns are the rows' own, behind those of the key and the window."""
        reducer = Reducer(function, self._windows.windowing.key)
        return Stream(self._windows.nodes, self._windows.processed(reducer, None, uid))

    def process(
        self, processor: WindowProcessor, schema: Schema, uid: str | None = None, sides: Sides = None
    ) -> Stream:
        """What a processor makes of all rows of each key and window when it fires: rows of `schema`, behind the columns
        of the key and the window, and `Side("late", row)` for the side outputs that `sides` has the schemas of."""
        return Stream(self._windows.nodes, self._windows.processed(processor, schema, uid, sides))


class BroadcastStream:
    """Records that are all in every task."""

    def __init__(self, nodes: Nodes, edge: Edge) -> None:
        self._nodes = nodes
        self._edge = edge


class ConnectedStream:
    """A keyed stream and a broadcast one, for one processor."""

    def __init__(self, nodes: Nodes, keyed: Edge, broadcast: Edge) -> None:
        self._nodes = nodes
        self._edges = (keyed, broadcast)

    def process(
        self,
        processor: BroadcastProcessor,
        schema: Schema,
        uid: str | None = None,
        sides: Sides = None,
        queryable: bool = False,
    ) -> Stream:
        """As `KeyedStream.process`, with a processor that also gets the rows of the broadcast stream. Which of the two
        streams' rows come first is chance."""
        label = type(processor).__name__
        if not isinstance(processor, BroadcastProcessor):
            raise ConfigError("processor-kind", f"connect takes a BroadcastProcessor, and {label} is none: subclass it")
        operator = Connecting(processor, self._edges[0].key, declared_states(processor, label))
        uid = needs_uid(uid, f"process({label})")
        node = self._nodes.add(operator, self._edges, as_schema(schema, label), sides, uid, queryable)
        return Stream(self._nodes, Edge(node.number))


class SparkStream:
    """Rows that Spark makes: they go to sinks, and to nothing else."""

    def __init__(self, nodes: Nodes, edge: Edge) -> None:
        self._nodes = nodes
        self._edge = edge

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows, as they were declared."""
        return self._nodes.schema(self._edge)

    def sink(self, sink: Sink) -> None:
        """Write the rows to a sink. It may be called for several sinks, which all get the same rows."""
        add_sink(self._nodes, self._edge, sink)


def _field(schema: pa.Schema, name: str, expression: pc.Expression, kind: pa.DataType) -> pa.Field:
    """A column that is taken as it is keeps what is said of it."""
    taken = column_of(expression)
    return pa.field(name, kind) if taken is None else schema.field(taken).with_name(name)


def _check_ours(nodes: Nodes, other: Stream | KeyedStream | BroadcastStream, label: str) -> None:
    if other._nodes is not nodes:
        raise ConfigError(
            "stream-of-another-flow", f"{label}: a stream of flow {other._nodes.flow!r} is none of flow {nodes.flow!r}"
        )


def _check_same(schema: pa.Schema, other: pa.Schema) -> None:
    if schema.names != other.names or schema.types != other.types:
        pairs = zip(schema, other, strict=False)
        differ = next((f"{a} in one and {b} in another" for a, b in pairs if (a.name, a.type) != (b.name, b.type)), "")
        raise ConfigError(
            "union-schemas",
            "union takes streams of the same columns in the same order, and these have"
            f" {differ or f'{len(schema)} and {len(other)} columns'}: select() and cast them first",
        )

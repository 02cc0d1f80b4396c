"""What the simulator's flows do: their records, where epochs end and when, and what must come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from onefold.core.aggregates import count
from onefold.core.positions import Positions, Range
from onefold.engine.dataflow.alignment import ALIGNED, Alignment
from onefold.flow.graph.nodes import Edge, Node, Shipping
from onefold.flow.graph.operators import Connecting, Elements, MappingBatches, Processing, TimersOf, Uniting, Windowing
from onefold.flow.processing.processor import BroadcastProcessor, StatefulProcessor
from onefold.flow.processing.rows import values_of
from onefold.flow.time.triggers import Every, Trigger
from onefold.flow.time.watermarks import Watermarks, monotonic
from onefold.flow.time.windows import Aligned, Sessions

ROWS = pa.schema([("key", pa.string()), ("record", pa.string()), ("at", pa.timestamp("ms"))])
_OUT = pa.schema([("out", pa.string())])
WINDOW_MS, _SECOND_US = 10_000, 1_000_000
_EPOCH = datetime(1970, 1, 1)
_KEYED = (Edge(0, Shipping.KEYED, ("key",)),)


@dataclass(frozen=True)
class FlowJob:
    """Two partitions, `t/0` and `t/1`, and a keyed operator.

    records     keys, and their times in seconds, by partition
    cuts        where an epoch with records ends in both, and its time in seconds
    nodes       the operator, whose input is the node 0, and what makes its rows words
    watermarks  where it has event time
    ends        whether the source has an end, behind its last record
    expected    the words of the rows that a sink has in the end
    alignment   how barriers are aligned
    workers     of one driver after the other, from the first again after the last
    """

    records: Mapping[str, Sequence[tuple[str, int]]]
    cuts: Sequence[tuple[int, int, int]]
    nodes: tuple[Node, ...]
    expected: Counter[str]
    watermarks: Watermarks | None = None
    ends: bool = False
    alignment: Alignment = ALIGNED
    workers: tuple[int, ...] = (2,)

    @property
    def begin(self) -> Positions:
        return _at(0, 0)

    def cut_of(self, at: Positions) -> int:
        """The number of the epoch with records that ends there; 0 at the begin."""
        return [self.begin, *(_at(*ends) for *ends, _ in self.cuts)].index(at)

    def next_range(self, at: Positions) -> Range | None:
        number = self.cut_of(at)
        return Range(at, _at(*self.cuts[number][:2])) if number < len(self.cuts) else None

    def time_ms(self, span: Range, timer_ms: int | None) -> int:
        """The time at which the epoch of a range is planned: of one without records, when the timer is due."""
        return timer_ms or 0 if span.start == span.end else self.cuts[self.cut_of(span.end) - 1][2] * 1_000

    def rows(self, partition: str, at: int) -> pa.RecordBatch:
        key, at_s = self.records[partition][at]
        return pa.record_batch(
            [[key], [f"{partition}:{at}"], pa.array([at_s * 1_000], pa.timestamp("ms"))], schema=ROWS
        )


def _at(first: int, second: int) -> Positions:
    return Positions.of({"t/0": first, "t/1": second})


class _Counting(StatefulProcessor):
    """Numbers the rows of each key as they come, and gives one more row a key in the epoch after its first: of d in
    one after the last that has records."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        (count,) = self._count.get() or (0,)
        if count == 0:
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        for row in rows:
            count += 1
            yield (f"{key[0]}/{count} {row.record}",)
        self._count.update((count,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues, expiredTimerInfo
        yield (f"{key[0]}/timer no",)


class _Ordered(StatefulProcessor):
    """Numbers the rows of each key, and says which came behind a later one of its partition."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")
        self._last = handle.getMapState("last", "partition string", "record string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (count,) = self._count.get() or (0,)
        for row in rows:
            count += 1
            partition = (row.record[:3],)
            (last,) = self._last.getValue(partition) or ("",)
            self._last.updateValue(partition, (row.record,))
            yield (row.record[:3], f"{key[0]}/{count} {row.record}{'' if last < row.record else '-late'}")
        self._count.update((count,))


class _Numbered(StatefulProcessor):
    """Numbers the rows of each partition."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (count,) = self._count.get() or (0,)
        for row in rows:
            count += 1
            yield (f"{row.text} {key[0]}={count}",)
        self._count.update((count,))


class _Ruled(BroadcastProcessor):
    """Says of each row how many rules there are; rows of the key r are some."""

    def init(self, handle: Any) -> None:
        self._rules = handle.getBroadcastState("rules", "name string", "n long")

    def handleBroadcastRows(self, rows: Iterator[Any], timerValues: Any) -> None:
        del timerValues
        for row in rows:
            if row.key == "r":
                (n,) = self._rules.getValue(("all",)) or (0,)
                self._rules.updateValue(("all",), (n + 1,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (n,) = self._rules.getValue(("all",)) or (0,)
        yield from ((f"{row.record}-by-{n}",) for row in rows if key[0] != "r")


class _Windows(StatefulProcessor):
    """Counts the rows of each key in ten seconds. Rows say by which watermark they were judged, firings with which one
    they came."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._counts = handle.getMapState("counts", "window_end long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del key
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        for row in rows:
            end_ms = ((row.at - _EPOCH).seconds // 10 + 1) * WINDOW_MS
            is_late = end_ms <= watermark_ms
            by = "none" if watermark_ms < 0 else watermark_ms // 1_000
            yield (f"{row.record}{'-late' if is_late else ''}-by-{by}",)
            if not is_late:
                (n,) = self._counts.getValue((end_ms,)) or (0,)
                self._counts.updateValue((end_ms,), (n + 1,))
                self._handle.registerTimer(end_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        end_ms, watermark_ms = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        (n,) = self._counts.getValue((end_ms,))
        self._counts.removeKey((end_ms,))
        with_ = "end" if watermark_ms > 1_000_000 else watermark_ms // 1_000
        yield (f"{key[0]}[{end_ms // 1_000})={n}-with-{with_}",)


def _counting() -> FlowJob:
    keys = {"t/0": "abac", "t/1": "acbd"}  # d comes last
    expected = [f"{key}/{n + 1}" for key, of in Counter("".join(keys.values())).items() for n in range(of)]
    expected += [f"{key}/timer" for key in "abcd"] + 4 * ["no"]
    expected += [f"{partition}:{at}" for partition, of in keys.items() for at in range(len(of))]
    records = {partition: [(key, 0) for key in of] for partition, of in keys.items()}
    return FlowJob(records, ((2, 1, 1), (3, 3, 2), (4, 4, 3)), _processed(_Counting(), "processing"), Counter(expected))


def _overtaken(alignment: Alignment) -> FlowJob:
    """Three exchanges, one behind the other: two by key, and one in turns."""
    keys = {"t/0": "aba", "t/1": "bca"}
    expected = [f"{key}/{n + 1}" for key, of in Counter("".join(keys.values())).items() for n in range(of)]
    for partition, of in keys.items():
        expected += [word for at in range(len(of)) for word in (f"{partition}:{at}", f"{partition}={at + 1}")]
    texts = pa.schema([("partition", pa.string()), ("text", pa.string())])
    by_partition = (Edge(1, Shipping.KEYED, ("partition",)),)
    nodes = (
        Node(1, Processing(_Ordered(), ("key",), (), "processing"), _KEYED, texts, (), "ordered"),
        Node(2, Processing(_Numbered(), ("partition",), (), "processing"), by_partition, _OUT, (), "numbered"),
        Node(3, MappingBatches(_same), (Edge(2, Shipping.REBALANCE),), _OUT),
    )
    records = {partition: [(key, 0) for key in of] for partition, of in keys.items()}
    cuts = ((2, 1, 1), (3, 3, 2))
    return FlowJob(records, cuts, nodes, Counter(expected), alignment=alignment, workers=(2, 3, 1))


def _ruled() -> FlowJob:
    """Two rules in the first epoch, and then rows that they are for."""
    records = {"t/0": [("r", 0), ("a", 0)], "t/1": [("r", 0), ("b", 0)]}
    edges = (*_KEYED, Edge(0, Shipping.BROADCAST))
    nodes = (Node(1, Connecting(_Ruled(), ("key",), ()), edges, _OUT, (), "ruled"),)
    expected, alignment = Counter(f"{partition}:1-by-2" for partition in records), Alignment("unaligned")
    return FlowJob(records, ((1, 1, 1), (2, 2, 2)), nodes, expected, alignment=alignment, workers=(2, 3, 1))


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _processed(processor: StatefulProcessor, timers: TimersOf) -> tuple[Node, ...]:
    return (Node(1, Processing(processor, ("key",), (), timers), _KEYED, _OUT, (), "count", queryable=True),)


def _windowed(
    windows: Aligned | Sessions,
    lateness_s: int,
    results: str = "accumulating",
    trigger: Trigger | None = None,
    elements: Elements | None = None,
) -> tuple[Node, ...]:
    """They take late rows for so long; and give rows that come later still."""
    time = pa.timestamp("us")
    schema = pa.schema({"key": pa.string(), "start": time, "end": time, "n": pa.int64(), "emission": pa.int64()})
    lateness_us = lateness_s * _SECOND_US
    of = Windowing(
        windows, "", "at", False, ("key",), (("n", count()),), lateness_us, results, trigger, elements=elements
    )
    schema = schema.append(pa.field("retracts", pa.bool_())) if of.takes_back else schema
    return (
        Node(1, of, _KEYED, schema, (("late", ROWS),), "count"),
        Node(2, MappingBatches(_told), (Edge(1),), _OUT),
        Node(3, MappingBatches(_told_late), (Edge(1, output="late"),), _OUT),
        Node(4, Uniting(), (Edge(2), Edge(3)), _OUT),
    )


def _told(batch: pa.RecordBatch) -> pa.RecordBatch:
    words = []
    for row in (dict(zip(batch.schema.names, row, strict=True)) for row in values_of(batch)):
        start, end = ((row[name] - _EPOCH).seconds for name in ("start", "end"))
        words += [f"{'-' * row.get('retracts', False)}{row['key']}[{start},{end})={row['n']}#{row['emission']}"]
    return pa.RecordBatch.from_arrays([pa.array(words, pa.string())], schema=_OUT)


def _told_late(batch: pa.RecordBatch) -> pa.RecordBatch:
    words = [f"{record}-late" for record in batch["record"].to_pylist()]
    return pa.RecordBatch.from_arrays([pa.array(words, pa.string())], schema=_OUT)


# Of its second partition: silent in the third epoch, so that the watermark goes on to 20; behind it when it wakes.
_TIMED = {
    "t/0": (("a", 1), ("b", 4), ("a", 12), ("b", 20), ("a", 31)),
    "t/1": (("b", 2), ("a", 3), ("c", 5), ("c", 43)),
}
_TIMED_CUTS = ((2, 1, 1), (3, 1, 5), (4, 1, 12), (4, 3, 14), (5, 4, 15))
_ROWS = (
    *("t/0:0-by-none", "t/0:1-by-none", "t/1:0-by-none", "t/0:2-by-2", "t/0:3-by-2"),
    *("a[10)=1-with-20", "b[10)=2-with-20", "a[20)=1-with-20"),
    *("t/1:1-late-by-20", "t/1:2-late-by-20", "t/0:4-by-20", "t/1:3-by-20"),
)
_IDLE = monotonic("at", idle="10 seconds")
_AT_END = ("b[30)=1-with-end", "a[40)=1-with-end", "c[50)=1-with-end")
_SILENT = ("b[30)=1-with-31", "a[40)=1-with-43")  # the last one in an epoch without records, when all are silent

_TIMERS = _processed(_Windows(), "event")
# In the fourth and fifth epochs the second partition wakes: with rows for a window that has fired, and one of a window
# that is closed.
_LATE = {**_TIMED, "t/1": (("b", 2), ("a", 13), ("c", 5), ("a", 14), ("c", 43))}
_LATE_CUTS = (*_TIMED_CUTS[:-1], (5, 5, 15))
_WINDOWS = (
    *("a[0,10)=1#1", "b[0,10)=2#1", "a[10,20)=1#1", "a[10,20)=2#2", "t/1:2-late", "a[10,20)=3#3"),
    *("b[20,30)=1#1", "a[30,40)=1#1", "c[40,50)=1#1"),
)
# The second epoch has one for a part of its window that is past, and waits; the first one some of the part that is not.
_EARLY = {"t/0": (("a", 1), ("a", 7), ("a", 12)), "t/1": (("a", 6), ("b", 2), ("a", 11), ("b", 13))}
_EARLY_CUTS = ((2, 1, 1), (2, 2, 2), (3, 3, 3), (3, 4, 4))
_EARLY_RESULTS = (
    *("a[0,20)=1#1", "-a[0,20)=1#2", "a[0,20)=3#2", "b[0,20)=1#1"),
    *("-a[0,20)=3#3", "a[0,20)=5#3", "-b[0,20)=1#2", "b[0,20)=2#2"),
)
# Two that have come out become one in the third epoch, by a row between them; the one behind it is of none.
_VISITS = {"t/0": (("a", 0), ("a", 5), ("c", 9)), "t/1": (("b", 9), ("a", 2), ("b", 1), ("a", 4))}
_VISITS_CUTS = ((2, 1, 1), (3, 1, 2), (3, 3, 3), (3, 4, 4))
_VISITS_RESULTS = (
    *("a[0,3)=1#1", "a[5,8)=1#1", "-a[0,3)=1#3", "-a[5,8)=1#3", "a[0,8)=3#3", "t/1:2-late"),
    *("-a[0,8)=3#4", "a[0,8)=4#4", "b[9,12)=1#1", "c[9,12)=1#1"),
)


def _windows_of(size_s: int, pane_s: int = 0) -> Aligned:
    return Aligned(size_s * _SECOND_US, size_s * _SECOND_US, 0, pane_s * _SECOND_US)


def _to_an_end(
    records: Mapping[str, Sequence[tuple[str, int]]],
    cuts: Sequence[tuple[int, int, int]],
    nodes: tuple[Node, ...],
    words: Sequence[str],
) -> FlowJob:
    return FlowJob(records, cuts, nodes, Counter(words), _IDLE, ends=True)


JOBS = {
    "processing time": _counting(),
    "event time to an end": _to_an_end(_TIMED, _TIMED_CUTS, _TIMERS, (*_ROWS, *_AT_END)),
    "event time and silence": FlowJob(_TIMED, _TIMED_CUTS, _TIMERS, Counter((*_ROWS, *_SILENT)), _IDLE),
    "windows and late rows": _to_an_end(_LATE, _LATE_CUTS, _windowed(_windows_of(10), 5), _WINDOWS),
    "early results": _to_an_end(
        _EARLY, _EARLY_CUTS, _windowed(_windows_of(20, 5), 5, "retracting", Every("5 seconds")), _EARLY_RESULTS
    ),
    "sessions": _to_an_end(
        _VISITS, _VISITS_CUTS, _windowed(Sessions(3 * _SECOND_US, None), 7, "retracting"), _VISITS_RESULTS
    ),
    "sessions by elements": _to_an_end(
        _VISITS,
        _VISITS_CUTS,
        _windowed(Sessions(3 * _SECOND_US, None), 7, "retracting", elements=Elements(late="late")),
        _VISITS_RESULTS,
    ),
}
# Not before sinks that write through.
OVERTAKING, RULES, STAGES, UNWAITED = "unaligned", "unaligned, with rules", "in stages", "at least once"
IN_TIME, WINDOWS_IN_TIME = "unaligned, with event time", "unaligned, with windows"
OF_ALIGNMENT = {
    OVERTAKING: _overtaken(Alignment("unaligned")),
    RULES: _ruled(),
    IN_TIME: replace(JOBS["event time to an end"], alignment=Alignment("unaligned")),
    WINDOWS_IN_TIME: replace(JOBS["windows and late rows"], alignment=Alignment("unaligned")),
    STAGES: _overtaken(Alignment("staged")),
    UNWAITED: _overtaken(Alignment("at_least_once")),
}

DEFAULT_JOB = next(iter(JOBS))

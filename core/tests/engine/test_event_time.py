"""How what records say of event time gets from readers to operators, and when the driver runs an epoch for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import Terminal
from onefold.core.positions import Positions, Range
from onefold.core.restart import Restart
from onefold.core.source import Part, Split
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow.inbound import Inbound, InOrder
from onefold.engine.dataflow.items import Barrier
from onefold.engine.driver.flow_run import FlowRun, RunSettings
from onefold.engine.driver.resume_point import ResumePoint
from onefold.engine.driver.writers import Writers
from onefold.engine.workers.messages import Ready
from onefold.engine.workers.worker import Reader
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import Processing
from onefold.flow.time.alignment import Alignment
from onefold.flow.time.clocks import END, NO_TIMES, ClockStatus, Highest, SourceEnd, Times
from onefold.flow.time.watermarks import Watermarks, monotonic

P, Q = ("s", "t/0"), ("s", "t/1")
ALL = frozenset({P, Q})
NONE_BAD = empty_batch(BAD_COLUMNS)


def times(read: dict[tuple[str, str], int | None], ended: tuple[str, ...] = ()) -> Times:
    return Times(ALL, read, frozenset(ended))


def inbounds() -> list[Inbound]:
    return [Inbound(2), InOrder((0, 1))]


@pytest.mark.parametrize("inbound", inbounds(), ids=lambda each: type(each).__name__)
def test_the_times_of_all_channels_are_joined_and_those_of_the_next_run_wait_for_it(inbound: Inbound) -> None:
    for item in (times({P: 3, Q: 9}), Barrier(1), times({P: 50}), Barrier(2)):
        inbound.put(0, item)
    assert inbound.take() is None and inbound.barrier is None
    for item in (times({P: 5}, ("s",)), Barrier(1)):
        inbound.put(1, item)
    assert inbound.take() is None and inbound.barrier == Barrier(1)
    assert inbound.times == times({P: 5, Q: 9}, ("s",))
    inbound.reopen()
    assert inbound.times == NO_TIMES
    inbound.put(1, Barrier(2))
    assert inbound.take() is None
    assert inbound.times == times({P: 50})


class Timed:
    """A source, each of whose splits is one part of these times."""

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        del guarded
        yield Part(pa.record_batch([pa.array(split.range, pa.timestamp("us"))], ["at"]), NONE_BAD)


def read(watermarks: Watermarks, *splits: Split) -> list[Any]:
    reader = Reader(cast(Any, Timed()), highest=Highest("s", watermarks))
    reader.begin(1, splits, SourceEnd(("t/0", "t/1")))
    reader.begin(2, (), SourceEnd(("t/0", "t/1"), is_last=True))
    found = []
    while reader.has_orders:
        found.append(reader.read())
    return [item for item in found if item is not None and not isinstance(item, Part)]


def test_a_reader_tells_the_times_of_a_run_before_its_barrier() -> None:
    found = read(monotonic("at"), Split("t/0", [3, 9]), Split("t/0", [4]))
    assert found == [times({P: 9}), Barrier(1), times({}, ("s",)), Barrier(2)]


def test_a_policy_that_fails_is_named_by_its_source() -> None:
    class Broken(Watermarks):
        def of(self, batch: pa.RecordBatch) -> int | None:
            raise ZeroDivisionError(batch.num_rows)

    with raises(Terminal, "operator-failed"):
        read(Broken(), Split("t/0", [3]))


SPAN = Range(Positions.of({"t/0": 1}), Positions.of({"t/0": 1}))
LATER_MS = 2**62


class Fleet:
    def __init__(self, ready: Ready | None) -> None:
        self.ready = ready

    def look(self) -> Ready | None:
        return self.ready


def next_span(
    ready: Ready | None,
    *,
    is_done: bool = False,
    cut: tuple[str, ...] = (),
    end: int = 1,
    drift: Alignment | None = None,
) -> tuple[Range | None, Writers]:
    """What the driver runs next where the sources end at `end` and an operator goes by event time."""
    operator = Processing(cast(Any, None), ("key",), (), "event")
    graph = Graph("shop", (Node(0, operator, (), None, (), "timed"),), alignments=() if drift is None else (drift,))
    plan: Any = SimpleNamespace(chains=(), graph=graph)
    planners: Any = SimpleNamespace(
        end=lambda _: Positions.of({"t/0": end}), cut=lambda: cut, is_done=lambda _: is_done, splits=lambda _: {}
    )
    at = ResumePoint(SPAN.start)
    run = Writers(
        plan, cast(Any, Fleet(ready)), planners, cast(Any, None), at, lambda *_: None, lambda _: None, lambda _: None
    )
    patience, holds = SimpleNamespace(retry=lambda ask, _: ask()), SimpleNamespace(is_asked=False)
    session: Any = SimpleNamespace(patience=patience, holds=holds)
    fleet, settings = cast(Any, SimpleNamespace()), RunSettings(1, "memory", 0.0, Restart(), None)
    flow = FlowRun(plan, session, fleet, settings, None, cast(Any, None))
    return flow._next(planners, run, at), run


@pytest.mark.parametrize(
    ("ready", "given", "expected"),
    [
        (Ready(None, {"timed": ClockStatus(5)}), {}, None),
        (Ready(0, {"timed": ClockStatus(5)}), {}, SPAN),
        (Ready(LATER_MS, {"timed": ClockStatus(5)}), {}, None),
        (Ready(0, {"timed": ClockStatus(5)}), {"cut": ("t/0",)}, None),
        (Ready(0, {"timed": ClockStatus(5)}), {"end": 2}, Range(SPAN.start, Positions.of({"t/0": 2}))),
        (Ready(None, {"timed": ClockStatus(5)}), {"is_done": True}, SPAN),
        (Ready(None, {"timed": ClockStatus(None)}), {"is_done": True}, SPAN),
        (Ready(None, {"timed": ClockStatus(END)}), {"is_done": True}, None),
    ],
    ids=[
        "nothing",
        "due",
        "due later",
        "due, and what is there is held back by a limit: no silence",
        "records",
        "77: ended before this start",
        "ended, without a record",
        "ended, and known to be",
    ],
)
def test_an_epoch_without_records_is_run_for(ready: Ready, given: dict[str, Any], expected: Range | None) -> None:
    assert next_span(ready, **given)[0] == expected


def test_a_flow_whose_sources_have_ended_waits_until_workers_say_what_event_time_it_is() -> None:
    assert next_span(None, is_done=True)[1].waits_to_know
    assert not next_span(Ready(None, {"timed": ClockStatus(END)}), is_done=True)[1].waits_to_know
    assert time.time_ns() // 1_000_000 < LATER_MS


def test_sources_that_wait_for_each_other_are_not_read_before_it_is_known_how_far_they_are() -> None:
    drift = Alignment(1, frozenset("st"))
    assert next_span(None, end=2, drift=drift)[0] is None
    assert next_span(Ready(None, {"timed": ClockStatus(None)}), end=2, drift=drift)[0] is not None

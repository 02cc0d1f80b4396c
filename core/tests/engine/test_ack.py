"""Acknowledgement by XOR: which roots are done, and up to where positions move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySink
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.contract import Upsert
from onefold.core.positions import Positions, Range
from onefold.core.source import Split
from onefold.engine.driver.flow_run import FlowRun
from onefold.engine.mechanisms.ack.driver import RUN
from onefold.engine.mechanisms.ack.subtask import AckSubtask
from onefold.engine.mechanisms.ack.tracking import ROOT_ROWS, ROOTS_MAX, Order, Told, Tracking
from onefold.flow.graph.operators import Writing


class Planned:
    """Two partitions, that end where a test says."""

    def __init__(self, **ends: int | str) -> None:
        self.ends = Positions.of({name.replace("_", "/"): end for name, end in ends.items()})

    def end(self, start: Positions) -> Positions:
        del start
        return self.ends

    def splits(self, span: Range) -> Mapping[int, Sequence[Split]]:
        begin = dict(span.start.items)
        return {
            7: [Split(name, (begin.get(name, 0), end)) for name, end in span.end.items if begin.get(name, 0) != end]
        }


def tracking(planned: Planned) -> Tracking:
    return Tracking(planned.end, planned.splits, Positions.of({"t/0": 0, "t/1": 0}), Random(1))


def done(*roots: Order) -> Told:
    """Those whose first edge ends without another."""
    return Told(Counter({root: root for root, _, _ in roots}))


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(0, 1_000))
def test_a_root_is_done_when_all_its_edges_are_acknowledged_in_whatever_order(of: list[int], seed: int) -> None:
    chance, tracked = Random(seed), tracking(Planned(t_0=5, t_1=0))
    ((root, _, _),) = tracked.next()
    edges = [root, *(chance.getrandbits(64) for _ in of)]
    told = [*edges]  # each with those that were sent for it
    for number, parent in enumerate(of, start=1):
        told[parent % number] ^= edges[number]
    chance.shuffle(told)
    for each in told:
        assert not tracked.is_idle and dict(tracked.done_at.items)["t/0"] == 0
        tracked.hear(Told(Counter({root: each})))
    assert tracked.is_idle and dict(tracked.done_at.items)["t/0"] == 5


def test_positions_move_over_steps_whose_roots_are_all_done_in_their_order() -> None:
    tracked = tracking(Planned(t_0=ROOT_ROWS + 5, t_1=3))
    first, second, third = [*tracked.next(), *tracked.next()]
    assert [split.range for _, _, split in (first, second, third)] == [(0, 1000), (0, 3), (1000, 1005)]
    assert tracked.next() == []
    tracked.hear(done(first, third))
    assert dict(tracked.done_at.items) == {"t/0": 0, "t/1": 0}
    tracked.hear(done(second))
    assert dict(tracked.done_at.items) == {"t/0": 1005, "t/1": 3} and tracked.is_idle


def test_where_positions_are_no_numbers_a_step_is_all_that_is_planned() -> None:
    planned = Planned(files="list-2")
    tracked = Tracking(planned.end, planned.splits, Positions.of({"files": "list-1"}), Random(1))
    (root,) = tracked.next()
    assert root[2].range == ("list-1", "list-2")
    tracked.hear(done(root))
    assert dict(tracked.done_at.items) == {"files": "list-2"}


def test_no_more_is_read_while_many_roots_are_under_way() -> None:
    tracked = tracking(Planned(t_0=10 * ROOTS_MAX * ROOT_ROWS, t_1=0))
    roots = []
    while some := tracked.next():
        roots += some
    assert len(roots) == ROOTS_MAX and tracked.is_full
    tracked.hear(done(roots[0]))
    assert len(tracked.next()) == 1


def test_a_root_that_is_not_done_in_time_is_read_again_and_is_waited_for() -> None:
    tracked = tracking(Planned(t_0=5, t_1=3))
    first, second = tracked.next()
    tracked.hear(done(first))
    assert tracked.rotate() == tracked.rotate() == []
    (again,) = tracked.rotate()
    assert again[0] != second[0] and again[1:] == second[1:]
    tracked.hear(done(second))  # too late
    assert dict(tracked.done_at.items) == {"t/0": 0, "t/1": 0}
    tracked.hear(done(again))
    assert dict(tracked.done_at.items) == {"t/0": 5, "t/1": 3}


def test_a_root_that_waits_behind_one_that_goes_on_has_not_failed() -> None:
    tracked = tracking(Planned(t_0=3 * ROOT_ROWS, t_1=0))
    first, second, third = [*tracked.next(), *tracked.next(), *tracked.next()]
    for edge in range(1, 10):  # its batches come to the end of a slow operator, one in each turn
        assert tracked.rotate() == []
        tracked.hear(Told(Counter({first[0]: edge})))
    assert tracked.rotate() == []
    tracked.hear(done(third))
    tracked.hear(Told(Counter({first[0]: first[0] ^ 1})))  # nine edges and their ends
    assert dict(tracked.done_at.items)["t/0"] == ROOT_ROWS
    assert tracked.rotate() == tracked.rotate() == []
    (again,) = tracked.rotate()  # nothing is left that it could wait for
    assert again[1:] == second[1:]
    tracked.hear(done(second))  # too late, but it shows that something goes on
    assert tracked.rotate() == []


def test_each_time_that_roots_have_failed_the_next_ones_get_twice_as_long() -> None:
    tracked = tracking(Planned(t_0=5, t_1=0))
    ((root, _, _),) = tracked.next()
    turns = []
    for _ in range(3):
        turns.append(1)
        while not (orders := tracked.rotate()):
            turns[-1] += 1
        ((root, _, _),) = orders
    assert turns == [3, 6, 12]
    tracked.hear(Told(Counter({root: root})))
    assert tracked.is_idle and dict(tracked.done_at.items)["t/0"] == 5


def test_what_ends_in_a_sink_counts_once_the_epoch_is_committed_and_not_where_its_workers_are_lost() -> None:
    tracked = tracking(Planned(t_0=5, t_1=0))
    (root,) = tracked.next()
    tracked.hear(Told(ended=done(root).xors))
    tracked.restart()
    tracked.committed()
    assert dict(tracked.done_at.items)["t/0"] == 0
    (root,) = tracked.next()
    tracked.hear(Told(ended=done(root).xors))
    tracked.committed()
    assert dict(tracked.done_at.items)["t/0"] == 5


def test_what_operators_flush_to_others_is_flushed_by_one_more_epoch_once_it_is_taken() -> None:
    tracked = tracking(Planned(t_0=5, t_1=0))
    (root,) = tracked.next()
    begin = tracked.done_at
    tracked.hear(done(root))
    assert tracked.has_work(begin) and not tracked.has_work(tracked.done_at)
    tracked.hear(Told(Counter({-1: 7 ^ 9}), flushed=2))
    tracked.committed()
    tracked.hear(Told(Counter({-1: 7})))
    assert not tracked.is_idle and not tracked.has_work(tracked.done_at)
    tracked.hear(Told(Counter({-1: 9})))
    assert tracked.is_idle and tracked.has_work(tracked.done_at)
    tracked.committed()
    assert not tracked.has_work(tracked.done_at)


def test_batches_that_wait_before_sinks_are_worth_an_epoch() -> None:
    tracked = tracking(Planned(t_0=0, t_1=0))
    tracked.hear(Told(waiting=3))
    tracked.hear(Told(waiting=-1))
    assert tracked.has_work(tracked.done_at)
    tracked.hear(Told(waiting=-2))
    assert not tracked.has_work(tracked.done_at)


@pytest.mark.parametrize(("order", "left"), [(("onefold_epoch",), [3]), (("n", "onefold_epoch"), [5, 3])])
def test_the_last_row_of_a_key_alone_goes_on_where_nothing_but_its_epoch_tells_it_from_others(
    order: tuple[str, ...], left: list[int]
) -> None:
    subtask: Any = AckSubtask.__new__(AckSubtask)
    subtask._writing = Writing(AnySink("newest", replaces=Upsert(("key",), order)), is_numbered=True)
    found = subtask._newest([pa.record_batch({"key": ["a"], "n": [n]}) for n in (5, 3)])
    assert [n for batch in found for n in batch["n"].to_pylist()] == left


def test_roots_of_a_source_that_was_added_begin_where_its_own_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowRun, "_epochs", lambda *_: None)
    run: Any = RUN.__new__(RUN)
    run._fleet, planned = SimpleNamespace(), Planned(t_0=5, late_0=5_001_000)
    added, at = Positions.of({"late/0": 5_000_000}), SimpleNamespace(at=Positions.of({"t/0": 5}))
    planners: Any = SimpleNamespace(end=planned.end, splits=planned.splits, added=added)
    run._epochs(planners, None, at, "")
    assert [split.range for _, _, split in run._tracking.next()] == [(5_000_000, 5_001_000)]


def test_a_root_is_not_taken_for_failed_between_two_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = RUN.__new__(RUN)
    asked = list[int]()
    tracking = SimpleNamespace(rotate=lambda: [*map(asked.append, (1,))], next=list, done_at=1, is_full=False)
    tracking.has_work = lambda *_: False
    run._fleet, run._tracking = SimpleNamespace(is_up=True, read=list), tracking
    run._settings = SimpleNamespace(epoch_interval_s=600.0)
    run._session = SimpleNamespace(patience=SimpleNamespace(retry=lambda ask, _: ask()))
    run._drains, run._rotated_s = False, 100.0
    writers, at = SimpleNamespace(look=lambda: None, timer_ms=None), SimpleNamespace(at=1)
    for now_s, rotated in ((400.0, 0), (416.0, 1)):  # three of these: it has failed after 630 s at the earliest
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
        run._next(None, writers, at)
        assert len(asked) == rotated

"""Epochs as marks: consecutive ones are summed up, and what has happened is at the right mark."""

from __future__ import annotations

import re
import time

import pytest
from harness.reports import BEGIN_S, an_epoch, epochs, report

from onefold.core.contract import MOVED
from onefold.core.invariants import ADOPTED
from onefold.core.values.plain import counted
from onefold.report.page import page
from onefold.report.timeline import FIGURES, MARKS_MAX, EpochMark, Incident, clock, marks


def events(mark: EpochMark) -> dict[str, str]:
    """Its events' words."""
    return {name: mark.cells[name] for name in mark.bars if name not in FIGURES}


def test_an_epoch_says_when_it_was_how_long_it_took_and_what_it_read() -> None:
    _, mark = marks([an_epoch(1), an_epoch(2, generation=3, at_s=7, took_s=0.25, rows=1_234)])
    assert mark.cells == {
        "epochs": "2",
        "opened, UTC": "2026-11-23 18:00:07",
        "ended": "2026-11-23 18:00:07",
        "rows": "1,234",
        "longest, s": "0.25",
        "wait before, s": "4.0",
        "generation": "3",
        "positions": "orders/0: 50 to 100; orders/1: 50 to 100",
        "takeovers": "epoch 2: generation 3 after 1",
    }
    assert mark.bars == {"rows": 1_234, "longest, s": 0.25, "wait before, s": 4, "takeovers": 1}


@pytest.mark.parametrize(("count", "each"), [(1, 1), (200, 1), (201, 2), (400, 2), (401, 3), (1_000, 5)])
def test_many_epochs_are_summed_up_in_equal_numbers_and_none_is_left_out(count: int, each: int) -> None:
    every = epochs(count)
    found = marks(every)
    assert len(found) == -(-count // each) <= MARKS_MAX
    assert sum(mark.bars["rows"] for mark in found) == sum(epoch.record.rows for epoch in every)
    assert max(mark.bars["longest, s"] for mark in found) == max(epoch.duration_s or 0 for epoch in every)
    assert sum(mark.bars.get("takeovers", 0) for mark in found) == count // 15
    spans = [[int(number) for number in mark.cells["epochs"].split(" to ")] for mark in found]
    assert [span[0] for span in spans] == [*range(1, count + 1, each)]
    assert spans[-1][-1] == count
    says = f"Each bar is {counted(each, 'epoch')} of the {count:,} on record, 2026-11-23 18:00:02 to 2026-"
    assert says in page(report(count, incidents=[]))


@pytest.mark.slow
def test_fifty_thousand_epochs_are_a_page_in_seconds_and_less_than_a_megabyte() -> None:
    told = report(50_000)
    began_s = time.process_time()
    text = page(told)
    assert time.process_time() - began_s < 10
    assert len(text) < 1_000_000
    assert text.count("<rect") <= MARKS_MAX * 6
    assert "Each bar is 250 epochs of the 50,000 on record, 2026-11-23 18:00:02 to 2026-11-25 03:19:59 UTC." in text


def test_what_became_of_epochs_is_told_by_kind() -> None:
    found = marks(
        [
            an_epoch(1),
            an_epoch(2, state="given_up"),
            an_epoch(3, generation=2),
            an_epoch(4, generation=2, query_id=MOVED),
            an_epoch(5, generation=2, query_id=ADOPTED),
            an_epoch(6, generation=2, state="damaged", error="a transaction is gone"),
            an_epoch(7, generation=2, state="open"),
        ]
    )
    assert [events(mark) for mark in found] == [
        {},
        {"given up": "epoch 2"},
        {"takeovers": "epoch 3: generation 2 after 1"},
        {"moves": "epoch 4 moved the positions"},
        {"moves": "epoch 5 was adopted from a ledger"},
        {"damaged": "epoch 6: a transaction is gone"},
        {"open": "epoch 7"},
    ]


@pytest.mark.parametrize(
    ("at_s", "epoch"),
    [(-100, 1), (2.5, 1), (3.0, 1), (3.5, 2), (4.5, 2), (6.9, 3), (7.5, 3), (1e6, 3)],
    ids=["before", "within", "at its end", "between", "within the next", "within the last", "after", "long after"],
)
def test_an_incident_is_at_the_epoch_that_it_struck_or_that_came_next(at_s: float, epoch: int) -> None:
    found = marks([an_epoch(number) for number in (1, 2, 3)], [Incident("faults", BEGIN_S + at_s, "kill")])
    assert [mark.cells["epochs"] for mark in found if "faults" in mark.bars] == [f"{epoch}"]


def test_of_many_events_of_a_mark_five_are_told_and_the_rest_counted() -> None:
    struck = [Incident("faults", BEGIN_S + 2, f"fault {at}") for at in range(1, 9)]
    (mark,) = marks([an_epoch(1)], struck)
    assert mark.bars["faults"] == 8
    assert mark.cells["faults"].endswith("fault 5; 3 more")


def test_a_bar_is_as_high_as_its_share_of_the_highest_and_nothing_has_none() -> None:
    drawn = page(report(epochs=[an_epoch(1, rows=50), an_epoch(2, rows=200), an_epoch(3, rows=0)], incidents=[]))
    rows = drawn.split("<svg")[1]
    assert re.findall(r'<rect x="(\d)" y="([\d.]+)" width="0.8" height="([\d.]+)"', rows) == [
        ("0", "30.0", "10.0"),
        ("1", "0.0", "40.0"),
    ]
    assert 'aria-label="rows: up to 200"' in rows
    assert "<title>2: 200</title>" in rows


def test_a_time_that_no_calendar_has_is_the_nearest_that_it_has() -> None:
    times = (BEGIN_S, -1, 1e15)
    assert [*map(clock, times)] == ["2026-11-23 18:00:00", "1970-01-01 00:00:00", "9999-12-31 23:59:59"]

"""The line of a flow's log that says how far it is, and the one that moves along on a terminal."""

from __future__ import annotations

import io
import logging
import re
import time
from dataclasses import replace

import pytest

from onefold.core.contract import EpochRecord, EpochState
from onefold.core.positions import Positions, Range
from onefold.engine.driver import progress as of_progress
from onefold.engine.driver.progress import Progress, counted, moving_line
from onefold.flow.time.clocks import END, ClockStatus
from onefold.flow.time.told import ToldClock
from onefold.store.job.logs import Console

_AT = Range(Positions(()), Positions(()))
EPOCH = EpochRecord("orders", 7, 1, EpochState.COMPLETE, _AT, 1, "orders", 7, "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """What each line said, one after the other, where the last one stood; an empty one was taken away."""
        return self.getvalue().split("\r\x1b[K")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(of_progress, "MOVES_S", 0.01)
    return Terminal()


def until_shown(terminal: Terminal, line: str) -> None:
    until_s = time.monotonic() + 120
    while terminal.shown()[-1] != line:
        assert time.monotonic() < until_s, terminal.shown()[-3:]
        time.sleep(0.005)


def test_on_a_terminal_one_line_shows_where_the_flow_stands_and_is_gone_at_its_end(terminal: Terminal) -> None:
    console, progress, state = Console(terminal), Progress("orders"), ["starting", ""]
    with moving_line(console, progress, lambda: (state[0], state[1])):
        until_shown(terminal, "flow 'orders': starting")
        progress.last = EPOCH
        state[0] = "paused"
        until_shown(terminal, "flow 'orders': paused, epoch 7, 0 rows/s")
        console.handle(logging.LogRecord("onefold.epochs", logging.INFO, "x.py", 1, "epoch 8", None, None))
        console.handle(logging.LogRecord("onefold", logging.INFO, "x.py", 1, "it starts again", None, None))
        state[:] = ["waiting", "the broker is away, and has been for a while"]
        until_shown(terminal, "flow 'orders': waiting, epoch 7, 0 rows/s: the broker is aw")
    assert terminal.shown()[-1] == ""
    assert "epoch 8" not in terminal.getvalue(), "the line that moves along says it"
    assert terminal.getvalue().count("\n") == 1, "what is logged stays, and nothing else"
    console.handle(logging.LogRecord("onefold.epochs", logging.INFO, "x.py", 1, "epoch 9", None, None))
    assert terminal.shown()[-1] == "epoch 9"


def test_it_counts_the_rows_a_second_of_its_last_moves(terminal: Terminal) -> None:
    progress = Progress("orders")
    progress.last = EPOCH
    with moving_line(Console(terminal), progress, lambda: ("running", "")):
        progress.rows = 1_000
        until_s = time.monotonic() + 10
        while not any(re.search(r", [1-9][\d,]* rows/s", line) for line in terminal.shown()):
            assert time.monotonic() < until_s
        until_shown(terminal, "flow 'orders': running, epoch 7, 0 rows/s")


@pytest.mark.parametrize(
    ("term", "is_terminal", "is_alone"), [("dumb", True, True), ("xterm", False, True), ("xterm", True, False)]
)
def test_elsewhere_nothing_moves(monkeypatch: pytest.MonkeyPatch, term: str, is_terminal: bool, is_alone: bool) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(of_progress, "MOVES_S", 0.001)
    stream = Terminal() if is_terminal else io.StringIO()
    shared = Console(stream)
    shared.is_alone = is_alone
    for console in (shared, None):
        with moving_line(console, Progress("orders"), lambda: ("running", "")):
            time.sleep(0.02)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("number", "thing", "said"), [(0, "row", "0 rows"), (1, "epoch", "1 epoch"), (1200, "record", "1,200 records")]
)
def test_one_is_no_plural(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said


NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00


@pytest.mark.parametrize(
    ("clock", "told"),
    [
        (ClockStatus(NOON_US), "watermark 2026-01-01 12:00:00.0 (2.1 s behind)"),
        (
            ClockStatus(NOON_US, "t/3", NOON_US // 1_000 + 2_100, 60_000),
            "watermark 2026-01-01 12:00:00.0 (2.1 s behind)",
        ),
        (
            ClockStatus(NOON_US, "t/3", NOON_US // 1_000 - 38_900, 60_000),
            "watermark 2026-01-01 12:00:00.0 (2.1 s behind), waits for t/3 (silent for 41 s, idle after 60 s)",
        ),
        (
            ClockStatus(None, "t/3", NOON_US // 1_000 + 100),
            "no watermark yet, waits for t/3 (silent for 2 s, never idle)",
        ),
        (ClockStatus(END), "watermark at the end of its sources"),
        (ClockStatus(END - 1), f"watermark {END - 1:,} us (9,221,604,768,052.7 s ahead)"),
    ],
)
def test_a_watermark_is_told_with_what_it_waits_for(clock: ClockStatus, told: str) -> None:
    assert str(ToldClock.of(clock, NOON_US // 1_000 + 2_100)) == told


def test_the_line_has_the_watermark_that_is_furthest_behind(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("orders")
    at = replace(EPOCH, timestamp_ms=NOON_US // 1_000)
    progress.count(at, lambda: {}, {"one": ClockStatus(NOON_US), "other": ClockStatus(NOON_US - 1_500_000)})
    with caplog.at_level(logging.INFO, "onefold.epochs"):
        progress.end()
    told = "other: watermark 2026-01-01 11:59:58.5 (1.5 s behind)"
    assert told in caplog.text and told in progress.line(1.0, "running")
    progress.count(at, lambda: {}, {"one": ClockStatus(NOON_US), "other": ClockStatus(None)})
    assert "other: no watermark yet" in progress.line(1.0, "running")


def test_the_line_has_the_rows_that_came_too_late_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("orders")
    with caplog.at_level(logging.INFO, "onefold.epochs"):
        for late in (2, 0, 1):
            progress.count(EPOCH, lambda: {}, {"one": ClockStatus(0, late=late), "other": ClockStatus(0)})
        progress.end()
        assert "3 late rows (one)" in caplog.text
        caplog.clear()
        progress.count(EPOCH, lambda: {}, {"one": ClockStatus(0)})
        progress.end()
        assert "late" not in caplog.text
    assert progress.late == {"one": 3}


def test_a_watermark_of_a_day_in_the_future_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("orders")
    for days, warnings in ((1, 0), (2, 1), (3, 1)):
        far = ClockStatus(NOON_US + days * 86_400_000_000)
        progress.count(replace(EPOCH, timestamp_ms=NOON_US // 1_000), lambda: {}, {"one": far})
        assert caplog.text.count("over a day ahead") == warnings
    progress.count(replace(EPOCH, timestamp_ms=0), lambda: {}, {"two": ClockStatus(END)})
    assert caplog.text.count("over a day ahead") == 1

"""The line of a flow's log that says how far it is, and the one that moves along on a terminal."""

from __future__ import annotations

import io
import logging
import re
import time

import pytest

from onefold.core.contract import EpochRecord, EpochState
from onefold.core.positions import Positions, Range
from onefold.engine.driver import progress as of_progress
from onefold.engine.driver.progress import Progress, counted, moving_line
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
    until_s = time.monotonic() + 10
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

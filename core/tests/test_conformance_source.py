"""check_source: a simple source passes, and each wrong one fails by the promise that it breaks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import broken_sources as broken
import pytest
from lines_source import LinesSource

from onefold.core.testing import BrokenPromise, ConformanceReport, Promise, check_source

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def check(tmp_path: Path) -> Callable[[type[LinesSource]], ConformanceReport]:
    path = tmp_path / "lines"
    path.touch()

    def add(text: str) -> None:
        path.write_text(path.read_text() + text)

    def put(ids: Sequence[int]) -> None:
        add("".join(f"{number}\n" for number in ids))

    def checked(source: type[LinesSource]) -> ConformanceReport:
        return check_source(
            lambda on_error, bad_max: source(str(path), on_error, bad_max),
            put,
            spoil=lambda: add("x\n"),
            lose=lambda: path.write_text(""),
        )

    return checked


def test_a_source_that_keeps_every_promise_passes(check: Callable[[type[LinesSource]], ConformanceReport]) -> None:
    report = check(LinesSource)
    mine = {promise for promise in Promise if promise.name.startswith("SOURCE_")} - {Promise.SOURCE_ONCE}
    assert mine == report.promises.keys()
    assert str(report).startswith("LinesSource 'lines': 12 promises held in 12 checks")


def test_a_source_that_is_read_once_passes_by_other_promises(
    check: Callable[[type[LinesSource]], ConformanceReport],
) -> None:
    report = check(broken.ReadOnce)
    assert Promise.SOURCE_ONCE in report.promises
    assert Promise.SOURCE_REPLAY not in report.promises


@pytest.mark.parametrize(
    ("source", "promise", "seen"),
    [
        (broken.HoldsALock, Promise.SOURCE_PICKLES, "cannot pickle this"),
        (broken.BeginsAtTheEnd, Promise.SOURCE_INITIAL, "('lines/0', 20)"),
        (broken.StopsShort, Promise.SOURCE_END, "('lines/0', 29)"),
        (broken.SaysThatThisWasAll, Promise.SOURCE_CUT, "[]"),
        (broken.CountsNothing, Promise.SOURCE_BEHIND, "the unit ''"),
        (broken.CountsWhatItHasRead, Promise.SOURCE_BEHIND, "'lines/0': 30"),
        (broken.OthersColumns, Promise.SOURCE_SCHEMA, "id: int64"),
        (broken.Overlaps, Promise.SOURCE_SPLITS, "beyond [13, 19, 26, 29, 36, 6]"),
        (broken.LeavesOut, Promise.SOURCE_SPLITS, "lost [0, 7, 14, 20, 27, 30, 37]"),
        (broken.ReadsBackwardsElsewhere, Promise.SOURCE_REPLAY, "in another order"),
        (broken.SplitsAnew, Promise.SOURCE_RESTART, "size="),
        (broken.GoesBeyondItsEnd, Promise.SOURCE_UNTIL, "beyond [40, "),
        (broken.SaysNothingOfBadOnes, Promise.SOURCE_BAD, "it returned"),
        (broken.PassesOverLost, Promise.SOURCE_LOST, "it returned"),
        (broken.OnceAgain, Promise.SOURCE_ONCE, "('lines/0', 2)"),
        (broken.OfManyMoments, Promise.SOURCE_ONCE, "beyond [20, "),
        (broken.OfTheFirstMoment, Promise.SOURCE_ONCE, "lost [20, "),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_wrong_source_fails_by_the_promise_that_it_breaks(
    check: Callable[[type[LinesSource]], ConformanceReport], source: type[LinesSource], promise: Promise, seen: str
) -> None:
    with pytest.raises(BrokenPromise) as caught:
        check(source)
    print(caught.value)
    assert (caught.value.promise, seen in caught.value.seen) == (promise, True)


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES)}
    return subprocess.run(
        [sys.executable, folder / "script.py"], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_example_of_the_docs_says_what_held_and_without_its_guard_what_is_missing(tmp_path: Path) -> None:
    text = (EXAMPLES / "try_lines_source.py").read_text()
    whole = script(tmp_path, text)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.startswith("LinesSource 'lines': 12 promises held in 12 checks, in ")
    assert "killed" not in whole.stdout
    without = script(tmp_path, re.sub(r'if __name__ == "__main__":', "if True:", text))
    assert without.returncode != 0
    assert 'under `if __name__ == "__main__":`' in without.stderr and "[kit-process-ended]" in without.stderr
    assert "BrokenPromise" not in without.stderr

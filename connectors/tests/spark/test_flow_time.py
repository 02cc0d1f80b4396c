"""Event time on Spark, as Spark calls it: the cases of windows and timers that the engine has, epoch by epoch."""

from __future__ import annotations

from typing import Any

import pytest
import timer_cases
import window_cases
from spark_model import SparkTest

from onefold.flow import Watermarks


def windows_of(watermarks: Watermarks, window: Any, given: dict[str, Any], patch: pytest.MonkeyPatch) -> SparkTest:
    return SparkTest(window_cases.flow(watermarks, window, given), patch)


@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), window_cases.CASES)
def test_case_of_windows(
    monkeypatch: pytest.MonkeyPatch,
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
) -> None:
    test = windows_of(watermarks, window, given, monkeypatch)
    found = window_cases.numbered(window_cases.by_test(test, text, restores=False))
    assert {epoch: sorted(out) for epoch, out in found.items()} == {n: sorted(out) for n, out in expected.items()}


@pytest.mark.parametrize(("watermarks", "text", "expected"), timer_cases.CASES)
def test_case_of_timers(
    monkeypatch: pytest.MonkeyPatch, watermarks: Watermarks, text: str, expected: dict[str, list[str]]
) -> None:
    assert timer_cases.fired(SparkTest(timer_cases.flow(watermarks), monkeypatch), text) == expected

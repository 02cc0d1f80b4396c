"""The arithmetic of windows: beside what their definition says of each time."""

from __future__ import annotations

import numpy as np
import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core import ConfigError
from onefold.flow import Sliding, Tumbling
from onefold.flow.time.windows import Aligned, aligned

WINDOWS = st.builds(Aligned, st.integers(1, 12), st.integers(1, 12), st.integers(0, 11))
TIMES = st.integers(-50, 50)


def ends_of(windows: Aligned, us: int) -> set[int]:
    """Of all windows that have the time."""
    starts = range(windows.offset_us - 100 * windows.slide_us, 100 * windows.slide_us, windows.slide_us)
    return {start + windows.size_us for start in starts if start <= us < start + windows.size_us}


@given(WINDOWS, TIMES, TIMES, TIMES)
def test_a_slice_has_the_windows_of_each_of_its_times(windows: Aligned, us: int, after: int, up_to: int) -> None:
    slice_, expected = windows.slice_of(us), ends_of(windows, us)
    assert slice_ <= us < slice_ + windows.slice_us
    assert set(windows.ends(slice_, -1_000, 1_000)) == expected
    assert list(windows.ends(slice_, after, up_to)) == sorted(end for end in expected if after < end <= up_to)
    last = windows.last_end(slice_)
    assert last == max(expected) if expected else last <= slice_


@given(WINDOWS, st.lists(TIMES, min_size=1))
def test_times_of_a_batch_are_as_those_of_one_record(windows: Aligned, times: list[int]) -> None:
    slices = windows.slice_of(np.array(times))
    assert slices.tolist() == [windows.slice_of(us) for us in times]
    assert windows.last_end(slices).tolist() == [windows.last_end(windows.slice_of(us)) for us in times]


def test_windows_begin_at_multiples_of_their_slide() -> None:
    assert aligned(Tumbling("1 minute")) == Aligned(60_000_000, 60_000_000, 0)
    assert aligned(Tumbling("1 minute", offset="61 seconds")) == Aligned(60_000_000, 60_000_000, 1_000_000)
    assert aligned(Sliding("10 seconds", "4 seconds")).slice_us == 2_000_000


@pytest.mark.parametrize(
    ("window", "code"),
    [
        (Tumbling("0 seconds"), "option-value"),
        (Tumbling("a minute"), "option-value"),
        (Tumbling("1000000000 weeks"), "option-value"),
        (Sliding("1 minute", "0 seconds"), "option-value"),
        (Sliding("1 day", "1 second"), "window-slices"),
        (Sliding("1 hour", "7 milliseconds"), "window-slices"),
        ("1 minute", "option-value"),
    ],
)
def test_what_makes_no_windows_is_refused(window: Tumbling, code: str) -> None:
    with raises(ConfigError, code):
        aligned(window)

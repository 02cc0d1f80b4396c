"""Times of many rows as numbers of a calendar's units, and back."""

from __future__ import annotations

import numpy as np

from onefold.engine.logics.windows.window_logic import Numbers
from onefold.flow.time.calendar import Calendar
from onefold.flow.time.windows import Aligned


def slices_of(windows: Aligned, times_us: Numbers) -> Numbers:
    return windows.slice_of(times_us if windows.calendar is None else numbers_of(windows.calendar, times_us))


def numbers_of(calendar: Calendar, times_us: Numbers) -> Numbers:
    if not len(times_us):
        return times_us
    first, last = calendar.number(int(times_us.min())), calendar.number(int(times_us.max()))
    if last - first > len(times_us):  # some are centuries apart
        return np.array([calendar.number(int(us)) for us in times_us])
    begins = [calendar.begin_us(number) for number in range(first, last + 1)]
    found: Numbers = first - 1 + np.searchsorted(begins, times_us, "right")
    return found


def begins_of(calendar: Calendar, numbers: Numbers) -> Numbers:
    """In microseconds."""
    known, places = np.unique(numbers, return_inverse=True)
    return np.array([calendar.begin_us(int(number)) for number in known], np.int64)[places]

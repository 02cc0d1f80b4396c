"""Days, weeks, months and years of a zone, numbered: they are not of one length, and their numbers are.

A unit begins at the first moment that the zone's clocks show its midnight or later. So a day has 23 hours where clocks
go forward, and where a zone leaves a day out, that day is empty.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo

from onefold.core.errors import BadRecord, ConfigError

_TEXT = re.compile(r"\s*([0-9]+)\s+(day|week|month|year)s?\s*", re.IGNORECASE)
_MONTHS = {"month": 1, "year": 12}
_EPOCH, _US = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(microseconds=1)
_US_FIRST, _US_LAST = ((dt.datetime(year, 1, 1, tzinfo=dt.UTC) - _EPOCH) // _US for year in (2, 9_998))
_US_MIN, _US_MAX = _US_FIRST - 300 * 86_400_000_000, _US_LAST + 700 * 86_400_000_000  # Python has them in all zones


@dataclass(frozen=True)
class Calendar:
    """The units of a zone: a "day" or a "month". Numbers count from the one that has 1970."""

    zone: str
    unit: str

    def __str__(self) -> str:
        return f"{self.unit}s of {self.zone}"

    def number(self, us: int) -> int:
        """Of the unit that has a moment. Raises BadRecord for one of which Python has no calendar."""
        if not _US_FIRST <= us < _US_LAST:
            raise BadRecord(
                "event-time-range",
                f"a record's time is not in the years 2 to 9997, of which there are {self}: filter such records before"
                " the window",
            )
        date = (_EPOCH + us * _US).astimezone(ZoneInfo(self.zone)).date()
        days = (date - _EPOCH.date()).days
        found = days if self.unit == "day" else 12 * (date.year - 1970) + date.month - 1
        while self.begin_us(found + 1) <= us:  # clocks went back over midnight, and show the day before once more
            found += 1
        return found

    def begin_us(self, number: int) -> int:
        """Of a unit; of one that Python has no times of, the first or the last one that it has."""
        return _begin_us(self.zone, self.unit, number)

    def reached(self, us: int) -> int:
        """The number up to which a watermark has come; times beyond the calendar are those of its ends."""
        return self.number(min(max(us, _US_FIRST), _US_LAST - 1))


def calendar_of(size: str, slide: str, zone: str) -> tuple[Calendar, int, int, int]:
    """The calendar that windows of that size and slide go by, these as numbers of its units, and where windows begin.
    Raises ConfigError for other texts, and for a zone that there is not."""
    found = [_TEXT.fullmatch(text) if isinstance(text, str) else None for text in (size, slide)]
    counts = [(int(each[1]), each[2].lower()) for each in found if each is not None]
    is_of_months = [unit in _MONTHS for _, unit in counts]
    if len(counts) < 2 or not all(count for count, _ in counts) or len({*is_of_months}) > 1:
        raise ConfigError(
            "window-zone",
            f"windows of {size!r:.50} each {slide!r:.50} in a zone: give days and weeks, or months and years, such as"
            " '1 day'; for shorter ones leave out zone= and use offset=",
        )
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError("window-zone", f"there is no zone {zone!r:.100}: give one such as 'Europe/Berlin'") from error
    if is_of_months[0]:
        size_of, slide_of = (count * _MONTHS[unit] for count, unit in counts)
        return Calendar(zone, "month"), size_of, slide_of, 0
    size_of, slide_of = (count * (7 if unit == "week" else 1) for count, unit in counts)
    begins = -3 if "week" in {unit for _, unit in counts} else 0  # a Monday, three days before 1970
    return Calendar(zone, "day"), size_of, slide_of, begins % slide_of


@lru_cache(maxsize=100_000)
def _begin_us(zone: str, unit: str, number: int) -> int:
    try:
        if unit == "month":
            date = dt.date(1970 + number // 12, number % 12 + 1, 1)
        else:
            date = _EPOCH.date() + dt.timedelta(number)
        midnight = dt.datetime.combine(date, dt.time(), ZoneInfo(zone))
        # Of one that is missing, as before the clocks went forward.
        return min(max((midnight.astimezone(dt.UTC) - _EPOCH) // _US, _US_MIN), _US_MAX)
    except (ValueError, OverflowError):
        return _US_MAX if number > 0 else _US_MIN

"""Windows whose rows are kept one by one: functions of all rows, what they remember, calendars, and what is refused."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from timed_rows import ROWS, time_of
from window_cases import EVER, GAP, TEN, Summing, source
from window_subtasks import Subtasks

from onefold.core import BadRecord, ConfigError, Upsert
from onefold.engine.logics.windows.calendars import numbers_of
from onefold.engine.logics.windows.window_logic import WindowLogic
from onefold.flow import (
    CONTINUE,
    FIRE,
    AfterRows,
    Aggregator,
    Every,
    Evictor,
    Firing,
    Flow,
    Global,
    KeepDelta,
    KeepLast,
    OnDelta,
    Purging,
    Rows,
    Session,
    Side,
    Sliding,
    Trigger,
    Tumbling,
    Watermarks,
    WindowBounds,
    WindowContext,
    WindowProcessor,
    bounded,
    count,
    sum_,
)
from onefold.flow.testing import FlowTest, check_trigger, check_watermarks
from onefold.flow.time.calendar import Calendar, calendar_of
from onefold.flow.time.triggers import difference


class Seen(WindowProcessor):
    """Each amount, how many rows its window had when it fired last, and in how many windows its key was; large amounts
    to a side output."""

    def process(self, key: Any, window: WindowBounds, rows: pa.RecordBatch, at: WindowContext) -> Iterator[Any]:
        del key
        before = at.state.get("rows", 0)
        at.state.put("rows", len(rows))
        if not before:
            at.key_state["windows"] = at.key_state.get("windows", 0) + 1
        for amount in rows.column("amount").to_pylist():
            if amount > 100:
                yield Side("large", {"amount": amount, "start": window.start_us})
            else:
                yield amount, before, at.key_state["windows"]


@pytest.mark.parametrize("restores", [False, True])
def test_case_72_a_function_of_all_rows_has_several_outputs_and_state_until_the_close(restores: bool) -> None:
    made = Flow("windows")
    windowed = source(made).key_by("key").window(TEN, lateness="5 seconds", late="late")
    found = windowed.process(
        Seen(), "amount long, before long, windows long", uid="seen", sides={"large": "amount long, start long"}
    )
    assert found.schema.names == ["key", "window_start", "window_end", "amount", "before", "windows", "emission"]
    with raises(ConfigError, "update-into-appends", "what a function gives of all rows"):
        found.sink(AnySink("appends"))
    found.sink(AnySink("fired", replaces=Upsert(("key", "window_start", "amount"), ("emission",))))
    found.side("large").sink(AnySink("large"))
    found.side("late").sink(AnySink("late"))
    test, rows, large = FlowTest(made), [], []
    for epoch in ([("a", 1, 3), ("a", 2, 500)], [("a", 10, 4)], [("a", 3, 5)], [("a", 25, 6)], []):
        written = test.epoch({"rows": [(key, time_of(at), amount) for key, at, amount in epoch]})
        rows += [(row["amount"], row["before"], row["windows"], row["emission"]) for row in written["fired"]]
        large.append([(row["amount"], row["start"]) for row in written["large"]])
        if restores:
            test.restore()
    test.close()
    assert rows == [(3, 0, 1, 1), (3, 2, 1, 2), (5, 2, 1, 2), (4, 0, 2, 1)]
    assert large == [[], [(500, 0)], [(500, 0)], [], []]


def test_what_a_function_gives_of_sessions_again_is_only_to_be_taken_back() -> None:
    for window, said in ((TEN, "'discarding' or 'retracting'"), (Session("10 seconds"), "results='retracting'")):
        windowed = source(Flow("windows")).key_by("key").window(window, lateness="5 seconds")
        with raises(ConfigError, "update-into-appends", said):
            windowed.process(Seen(), "amount long, before long, windows long", uid="seen").sink(AnySink("appends"))


def test_what_is_remembered_of_a_window_is_gone_when_it_closes(tmp_path: Path) -> None:
    cleared: list[tuple[Any, int]] = []

    class Clearing(Seen):
        def clear(self, key: Any, window: WindowBounds, at: WindowContext) -> None:
            del window
            cleared.append((key, at.state.get("rows", 0)))

    made = Flow("windows", max_parallelism=16)
    processed = (
        source(made)
        .key_by("key")
        .window(TEN)
        .process(Clearing(), "a long, b long, c long", uid="seen", sides={"large": "amount long, start long"})
    )
    processed.sink(AnySink("fired"))
    processed.side("large").sink(AnySink("large"))
    run = Subtasks(made, EVER, tmp_path, "memory")
    run.epoch({"p": [("a", time_of(1), 1), ("b", time_of(2), 1)]}, 1)
    assert len(run.kept()) == 4  # of each window what is remembered, and its rows
    run.epoch({"p": [("a", time_of(100), 1)]}, 2)
    assert len(run.kept()) == 2 and sorted(cleared) == [(("a",), 1), (("b",), 1)]
    run.epoch({}, 3, is_last=True)
    assert run.kept() == [] and len(cleared) == 3
    run.close()


class FiresThird(Trigger):
    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        return FIRE if at.state.add("rows", 1) == 3 else CONTINUE

    def on_merge(self, at: WindowContext) -> None:
        at.on_event_time(at.window.end_us)


def test_sessions_that_become_one_have_what_triggers_remember_of_both(tmp_path: Path) -> None:
    made = Flow("windows", max_parallelism=16)
    windowed = source(made).key_by("key").window(GAP, trigger=FiresThird(), lateness="1 hour")
    windowed.aggregate(uid="n", n=count()).map_batches(lambda batch: batch).sink(AnySink("fired"))
    run = Subtasks(made, EVER, tmp_path, "memory")
    for at, expected in ((0, []), (5, []), (2.5, [3])):
        results, _ = run.epoch({"p": [("a", time_of(at), 1)]}, 1)
        assert [row["n"] for row in results] == expected
        run.restore(2)
    run.close()


@pytest.mark.parametrize("asks", ["process", "clear"])
def test_case_72_functions_of_sessions_have_no_state_of_the_window(asks: str) -> None:
    class Asking(WindowProcessor):
        def process(self, key: Any, window: WindowBounds, rows: pa.RecordBatch, at: WindowContext) -> Iterator[Any]:
            del key, window, rows
            at.key_state["firings"] = at.key_state.get("firings", 0) + 1
            yield (at.key_state["firings"] if asks == "clear" else at.state.add("firings", 1),)

        def clear(self, key: Any, window: WindowBounds, at: WindowContext) -> None:
            del key
            assert window == at.window
            at.state.get("firings")

    made = Flow("windows")
    source(made).key_by("key").window(GAP).process(Asking(), "firings long", uid="n").sink(AnySink("fired"))
    test = FlowTest(made)
    with raises(ConfigError, "window-state-sessions", "at.key_state"):
        test.epoch({"rows": [("a", time_of(0), 1)]}, ended=["rows"])
    test.close()


class Context(WindowProcessor):
    """The amounts, and what there is to see of the window."""

    cleared: ClassVar[list[Any]] = []

    def process(self, key: Any, window: WindowBounds, rows: pa.RecordBatch, at: WindowContext) -> Iterator[Any]:
        del key, window
        yield "".join(map(str, rows.column("amount").to_pylist())), at.time_us, at.state.get("rows")

    def clear(self, key: Any, window: WindowBounds, at: WindowContext) -> None:
        del key
        self.cleared.append((window.end_us // 1_000_000, at.time_us, at.watermark_us, at.has_ended))


EACH = AnySink("fired", replaces=Upsert(("key", "window_start", "emission"), ("emission",)))


class EachRow(Trigger):
    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        at.state.add("rows", 1)
        return FIRE


def test_a_function_sees_its_window_as_it_is_when_it_fires_and_when_it_closes() -> None:
    made = Flow("windows")
    windowed = source(made).key_by("key").window(TEN, trigger=EachRow(), lateness="1 second")
    windowed.process(Context(), "amounts string, at_us long, rows long", uid="seen").sink(EACH)
    Context.cleared.clear()
    test = FlowTest(made)
    written = test.epoch({"rows": [("a", time_of(at), at) for at in (1, 2, 3)]})["fired"]
    assert [(row["amounts"], row["at_us"], row["rows"]) for row in written] == [
        ("1", 1_000_000, 1),
        ("12", 2_000_000, 2),
        ("123", 3_000_000, 3),
    ]
    test.epoch({"rows": [("b", time_of(11), 1)]})
    test.close()
    assert Context.cleared == [(10, 10_000_000, 11_000_000, True)]


def test_rows_that_a_firing_leaves_out_stay_where_they_were() -> None:
    made = Flow("windows")
    windowed = source(made).key_by("key").window(TEN, trigger=Every("5 seconds"), evictor=KeepLast(2))
    windowed.process(Context(), "amounts string, at_us long, rows long", uid="seen").sink(EACH)
    test = FlowTest(made)
    epochs = [[(at, at) for at in (7, 1, 2, 3)], [(6, 6)], [(12, 0)]]
    out = [test.epoch({"rows": [("a", time_of(at), amount) for at, amount in each]})["fired"] for each in epochs]
    assert [[row["amounts"] for row in each] for each in out] == [["23"], [], ["36"]]
    test.close()


def test_a_reduce_makes_one_row_of_all_in_the_order_of_their_arrival() -> None:
    made = Flow("windows")
    rows = source(made).key_by("key").window(TEN)
    found = rows.reduce(lambda one, other: {**other, "amount": 10 * one["amount"] + other["amount"]}, uid="digits")
    assert found.schema.names == ["key", "window_start", "window_end", "at", "amount"]
    found.sink(AnySink("fired"))
    test = FlowTest(made)
    test.epoch({"rows": [("a", time_of(3), 1), ("b", time_of(3), 7), ("a", time_of(1), 2)]})
    written = test.epoch({"rows": [("a", time_of(2), 3)]}, ended=["rows"])
    assert {row["key"]: row["amount"] for row in written["fired"]} == {"a": 123, "b": 7}
    test.close()


def test_case_49_a_window_of_all_time_needs_a_trigger() -> None:
    with raises(ConfigError, "trigger-missing"):
        source(Flow("windows")).key_by("key").window(Global())


DAYS = [
    ("Europe/Berlin", "2024-03-30", 3, 3_600, {30: 24, 31: 23, 1: 24}),
    ("Europe/Berlin", "2024-10-26", 3, 3_600, {26: 24, 27: 25, 28: 24}),
    ("Africa/Cairo", "2023-04-28", 1, 60, {28: 1_380}),
    ("America/Havana", "2023-11-05", 1, 60, {5: 1_500}),
    ("Pacific/Apia", "2011-12-29", 3, 3_600, {29: 24, 31: 24}),
]


@pytest.mark.parametrize(("zone", "first", "days", "step_s", "expected"), DAYS)
@pytest.mark.parametrize("by_elements", [False, True], ids=["by slices", "by elements"])
def test_cases_19_to_21_days_are_as_long_as_the_clocks_of_their_zone_say(
    zone: str, first: str, days: int, step_s: int, expected: dict[int, int], by_elements: bool
) -> None:
    made = Flow("windows")
    windowed = source(made).window(Tumbling("1 day", zone=zone))
    found = windowed.process(Summing(), "n long", uid="n") if by_elements else windowed.aggregate(uid="n", n=count())
    found.sink(AnySink("fired"))
    begin = dt.datetime.fromisoformat(first).replace(tzinfo=ZoneInfo(zone))
    end = (begin.replace(tzinfo=None) + dt.timedelta(days)).replace(tzinfo=ZoneInfo(zone))
    at, rows = begin.astimezone(dt.UTC), []
    while at < end.astimezone(dt.UTC):
        rows.append(("a", at, 1))
        at += dt.timedelta(seconds=step_s)
    test, written = FlowTest(made), []
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        written += test.epoch({"rows": part})["fired"]
        test.restore()
    written += test.epoch(ended=["rows"])["fired"]
    test.close()
    starts = [row["window_start"].astimezone(ZoneInfo(zone)) for row in written]
    assert dict(zip((start.day for start in starts), (row["n"] for row in written), strict=True)) == expected
    assert [row["window_end"] for row in written[:-1]] == [row["window_start"] for row in written[1:]]
    assert {start.replace(tzinfo=None).time() for start in starts} <= {dt.time(), dt.time(1)}  # Cairo has no midnight


@pytest.mark.parametrize(
    ("window", "unit"),
    [
        (Tumbling("1 week", zone="Europe/Berlin"), "week"),
        (Tumbling("1 month", zone="Europe/Berlin"), "month"),
        (Tumbling("1 year", zone="Europe/Berlin"), "year"),
    ],
)
def test_case_22_weeks_months_and_years_are_those_of_pythons_calendar(window: Tumbling, unit: str) -> None:
    made = Flow("windows")
    source(made).window(window).aggregate(uid="n", n=count()).sink(AnySink("fired"))
    zone, begin = ZoneInfo("Europe/Berlin"), dt.datetime(2023, 12, 30, tzinfo=dt.UTC)
    times = [begin + dt.timedelta(hours=5 * number) for number in range(1_800)]
    test = FlowTest(made)
    written = test.epoch({"rows": [("a", at, 1) for at in times]}, ended=["rows"])["fired"]
    test.close()

    def first(at: dt.datetime) -> dt.date:
        day = at.astimezone(zone).date()
        if unit == "week":
            return day - dt.timedelta(day.weekday())
        return day.replace(day=1) if unit == "month" else day.replace(month=1, day=1)

    expected = Counter(map(first, times))
    assert {row["window_start"].astimezone(zone).date(): row["n"] for row in written} == expected
    assert {row["window_start"].astimezone(zone).time() for row in written} == {dt.time()}


def test_case_22_a_week_each_day_of_a_zone() -> None:
    made = Flow("windows")
    window = Sliding("7 days", "1 day", zone="Europe/Berlin")
    source(made).window(window).aggregate(uid="n", n=count()).sink(AnySink("fired"))
    test, zone = FlowTest(made), ZoneInfo("Europe/Berlin")
    noons = [dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(day) for day in range(366)]
    written = test.epoch({"rows": [("a", at, 1) for at in noons]}, ended=["rows"])["fired"]
    test.close()
    expected = Counter(at.date() - dt.timedelta(back) for at in noons for back in range(7))
    found = {row["window_start"].astimezone(zone): row for row in written}
    assert {start.date(): row["n"] for start, row in found.items()} == expected
    for start, row in found.items():
        end = row["window_end"].astimezone(zone)
        assert (start.time(), end.time(), end.date() - start.date()) == (dt.time(), dt.time(), dt.timedelta(7))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Apia", "America/Asuncion", "Africa/Cairo"])
@pytest.mark.parametrize("size", ["1 day", "1 week", "1 month"])
def test_each_moment_is_of_the_unit_that_has_begun_last(zone: str, size: str) -> None:
    calendar, *_ = calendar_of(size, size, zone)
    for us in range(1_290_000_000_000_000, 1_330_000_000_000_000, 7_777_777_777_777):
        number = calendar.number(us)
        assert calendar.begin_us(number) <= us < calendar.begin_us(number + 1)
    with raises(BadRecord, "event-time-range"):
        Calendar(zone, "day").number(2**60)


@pytest.mark.parametrize(
    ("window", "begins"),
    [
        (Sliding("2 weeks", "7 days", zone="Europe/Berlin"), "01-01 12-25"),
        (Sliding("14 days", "1 week", zone="Europe/Berlin"), "01-01 12-25"),
        (Sliding("10 days", "1 week", zone="Europe/Berlin"), "01-01 12-25"),
        (Tumbling("2 weeks", zone="Europe/Berlin"), "01-01"),
        (Tumbling("7 days", zone="Europe/Berlin"), "12-28"),  # days count from 1970, which began on a Thursday
    ],
    ids=str,
)
@pytest.mark.parametrize("by_elements", [False, True], ids=["by slices", "by elements"])
def test_case_22_windows_of_weeks_begin_on_mondays(window: Any, begins: str, by_elements: bool) -> None:
    """Of a Wednesday, the 3rd of January 2024."""
    made = Flow("windows")
    windowed = source(made).window(window)
    found = windowed.process(Summing(), "n long", uid="n") if by_elements else windowed.aggregate(uid="n", n=count())
    found.sink(AnySink("fired"))
    test = FlowTest(made)
    at = dt.datetime(2024, 1, 3, 12, tzinfo=dt.UTC)
    written = test.epoch({"rows": [("a", at, 1)]}, ended=["rows"])["fired"]
    test.close()
    starts = {row["window_start"].astimezone(ZoneInfo("Europe/Berlin")).strftime("%m-%d") for row in written}
    assert starts == {*begins.split()}


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("window", [("1 day", "1 day"), ("30 years", "10 years"), ("3000 days", "1000 days")], ids=str)
@pytest.mark.parametrize("by_elements", [False, True], ids=["by slices", "by elements"])
def test_windows_beyond_the_years_that_python_has_end_with_these(
    window: tuple[str, str], zone: str, by_elements: bool
) -> None:
    made = Flow("windows")
    windowed = source(made).window(Sliding(*window, zone=zone))
    found = windowed.process(Summing(), "n long", uid="n") if by_elements else windowed.aggregate(uid="n", n=count())
    found.sink(AnySink("fired"))
    last, first = (dt.datetime(year, month, 31, 23, tzinfo=dt.UTC) for year, month in ((9997, 12), (2, 1)))
    test = FlowTest(made)
    written = test.epoch({"rows": [("a", last, 1), ("a", first, 1)]}, ended=["rows"])["fired"]
    test.close()
    panes = {"1 day": 1, "30 years": 3, "3000 days": 3}[window[0]]
    assert len(written) == 2 * panes and {row["n"] for row in written} == {1}
    assert all(row["window_start"] < row["window_end"] for row in written)
    bounds = {(row["window_start"], row["window_end"]) for row in written}
    assert len(bounds) == 2 * panes
    assert sum(start <= at < end for start, end in bounds for at in (first, last)) == 2 * panes


PRICES = pa.schema({"price": pa.float64(), "at": pa.timestamp("us", "UTC"), "day": pa.date32()})


@pytest.mark.parametrize(
    ("rows", "fired"),
    [
        ([1.0, math.nan, 2.0, 9.0], [4]),  # one that is no number is passed over
        ([math.nan, 1.0, 9.0], [3]),
        ([1.0, math.inf, math.inf, -math.inf], [2, 4]),
        ([None, math.nan, None], []),
    ],
)
def test_values_that_are_no_numbers_do_not_differ(rows: list[float | None], fired: list[int]) -> None:
    made = Flow("windows")
    given: Any = AnySource("rows", PRICES, is_resolved=True)
    windowed = made.source(given, uid="rows", watermarks=EVER).window(TEN, trigger=OnDelta("price", 5))
    windowed.aggregate(uid="n", n=count()).map_batches(lambda batch: batch).sink(AnySink("fired"))
    test = FlowTest(made)
    day = dt.date(2026, 1, 1)
    assert [row["n"] for row in test.epoch({"rows": [(each, time_of(1), day) for each in rows]})["fired"]] == fired
    test.close()


def test_differences_are_exact_and_of_time_that_has_passed_not_of_what_clocks_show() -> None:
    zone, hour = ZoneInfo("Europe/Berlin"), dt.timedelta(hours=1)
    spring = dt.datetime(2026, 3, 29, 0, 59, tzinfo=dt.UTC)
    assert difference(spring.astimezone(zone), (spring + hour).astimezone(zone)) == hour
    assert difference((spring + hour).astimezone(zone), spring.astimezone(zone)) == hour
    autumn = dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)
    assert difference(autumn.astimezone(zone), (autumn + hour).astimezone(zone)) == hour
    assert difference(autumn.astimezone(zone), (autumn + hour).astimezone(ZoneInfo.no_cache(zone.key))) == hour
    borders = dt.datetime.min.replace(tzinfo=zone), dt.datetime.max.replace(tzinfo=zone)
    assert difference(*borders) > dt.timedelta(days=3_652_000)
    assert difference(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)) == dt.timedelta(1)
    longest = Decimal(f"{'9' * 76}")
    assert difference(longest, longest.copy_negate()) == Decimal(f"1{'9' * 75}8")


def test_what_has_no_difference_that_python_knows_has_no_threshold() -> None:
    kinds = (
        pa.month_day_nano_interval(),
        pa.time64("us"),
        pa.string(),
        pa.bool_(),
        pa.dictionary(pa.int32(), pa.int64()),
    )
    for kind in kinds:
        given: Any = AnySource("rows", pa.schema({"v": kind}), is_resolved=True)
        for more in ({"trigger": OnDelta("v", dt.timedelta(1))}, {"evictor": KeepDelta("v", dt.timedelta(1))}):
            asked: Any = {"trigger": AfterRows(2)} | more
            with raises(ConfigError, "option-value", str(kind)):
                Flow("windows").source(given, uid="rows").window(Global(), **asked)


def test_days_and_times_differ_by_durations_and_rows_without_a_number_are_left_out() -> None:
    day, hour = dt.date(2026, 1, 1), dt.timedelta(hours=1)
    for trigger, evictor, expected in (
        (OnDelta("day", dt.timedelta(1)), None, [3]),
        (OnDelta("at", hour), None, [2]),
        (AfterRows(4), KeepDelta("price", 3), [2]),
        (AfterRows(3), KeepDelta("price", 3), []),  # the last one is no number
        (AfterRows(4), KeepDelta("at", 2 * hour), [3]),
    ):
        made = Flow("windows")
        given: Any = AnySource("rows", PRICES, is_resolved=True)
        stream = made.source(given, uid="rows", watermarks=EVER)
        windowed = stream.window(Tumbling("1 week"), trigger=trigger, evictor=evictor)
        windowed.aggregate(uid="n", n=count()).map_batches(lambda batch: batch).sink(AnySink("fired"))
        test = FlowTest(made)
        rows = [
            (1.0, time_of(0), day),
            (5.0, time_of(7_300), day),
            (math.nan, time_of(7_400), day + 2 * dt.timedelta(1)),
        ]
        rows += [(4.0, time_of(7_200), day + dt.timedelta(3))]
        assert [row["n"] for row in test.epoch({"rows": rows})["fired"]] == expected, (trigger, evictor)
        test.close()


def test_times_that_are_far_apart_are_numbered_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calendar, asked, begin_us = Calendar("Europe/Berlin", "day"), list[int](), Calendar.begin_us

    def counted(self: Calendar, number: int) -> int:
        asked.append(number)
        return begin_us(self, number)

    monkeypatch.setattr(Calendar, "begin_us", counted)
    far = dt.datetime(9000, 1, 1, 12, tzinfo=dt.UTC)
    us = [0, (far - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)]
    assert numbers_of(calendar, np.array(us)).tolist() == [calendar.number(each) for each in us]
    assert len(asked) < 10


def test_a_timer_of_processing_time_is_told() -> None:
    for window, due_s in (
        (Tumbling("10 seconds", clock="processing"), 10),
        (Session("3 seconds", clock="processing"), 4.001),
    ):
        for by_elements in (False, True):
            made = Flow("windows", max_parallelism=1)
            rows: Any = AnySource("rows", ROWS, is_resolved=True)
            windowed = made.source(rows, uid="rows").key_by("key").window(window)  # whose source has no watermarks
            found = (
                windowed.process(Summing(), "n long", uid="n")
                if by_elements
                else windowed.aggregate(uid="n", n=count())
            )
            found.sink(AnySink("fired"))
            test = FlowTest(made, at=dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
            assert test.epoch({"rows": [("a", time_of(77), 1)]})["fired"] == []
            (logic,) = (of for of in _logics(test) if isinstance(of, WindowLogic))
            assert logic.timer_ms() == round(due_s * 1_000)
            test.restore()
            test.advance(seconds=due_s - 1)
            assert [row["n"] for row in test.epoch()["fired"]] == [1]
            test.close()


def _logics(test: FlowTest) -> Iterator[Any]:
    for subtask in test._flow._subtasks:
        yield from subtask._operators._logics.values()


@pytest.mark.parametrize(
    ("window", "given", "code"),
    [
        (TEN, {"evictor": KeepLast(1), "results": "discarding"}, "evictor-discarding"),
        (TEN, {"evictor": KeepLast(1), "trigger": Purging(AfterRows(2))}, "evictor-discarding"),
        (TEN, {"evictor": "all"}, "option-value"),
        (TEN, {"evictor": KeepDelta("gone", 1)}, "no-such-column"),
        (TEN, {"trigger": OnDelta("gone", 1)}, "no-such-column"),
        (TEN, {"trigger": OnDelta("amount", None)}, "option-value"),
        (TEN, {"trigger": OnDelta("amount", math.nan)}, "option-value"),
        (TEN, {"trigger": OnDelta("amount", Decimal("sNaN"))}, "option-value"),
        (TEN, {"evictor": KeepDelta("amount", Decimal("sNaN"))}, "option-value"),
        (TEN, {"trigger": OnDelta("amount", dt.timedelta(1))}, "option-value"),
        (TEN, {"trigger": OnDelta("at", 3)}, "option-value"),
        (TEN, {"trigger": OnDelta("key", 3)}, "option-value"),
        (TEN, {"evictor": KeepDelta("key", dt.timedelta(1))}, "option-value"),
        (TEN, {"evictor": KeepDelta("amount", "1")}, "option-value"),
        (TEN, {"trigger": Every("1 second", clock="wall")}, "option-value"),
        (GAP, {"trigger": OnDelta("amount", 1)}, "trigger-sessions"),
        (GAP, {"trigger": Purging(AfterRows(1))}, "session-parts"),
        (Rows(0), {}, "option-value"),
        (Rows(2), {"trigger": AfterRows(2)}, "option-value"),
        (Rows(2), {"results": "retracting"}, "option-value"),
        (TEN, {"trigger": Purging(AfterRows(2)), "results": "retracting"}, "option-value"),
        (Rows(2), {"lateness": "1 second"}, "window-lateness"),
        (Global(), {"trigger": AfterRows(2), "late": "late"}, "window-lateness"),
        (Tumbling("1 second", clock="processing"), {"lateness": "1 second"}, "window-lateness"),
        (Tumbling("1 second", clock="wall"), {}, "option-value"),
        (Tumbling("1 day", zone="UTC", clock="processing"), {}, "option-value"),
        (Tumbling("1 hour", zone="UTC"), {}, "window-zone"),
        (Tumbling("1 day", zone="Nowhere/Land"), {}, "window-zone"),
        (Tumbling("1 day", zone="UTC", offset="1 hour"), {}, "window-zone"),
        (Sliding("1 month", "1 day", zone="UTC"), {}, "window-zone"),
        (Tumbling("1 day", zone="UTC"), {"trigger": Every("1 hour")}, "window-zone"),
        (Tumbling("30000 days", zone="UTC"), {}, "window-slices"),
    ],
)
def test_what_cannot_be_is_refused(window: Any, given: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        source(Flow("windows")).key_by("key").window(window, **given)


def test_nanoseconds_are_refused_where_rows_are_kept() -> None:
    given: Any = AnySource("rows", ROWS.append(pa.field("ns", pa.duration("ns"))), is_resolved=True)
    windowed = Flow("windows").source(given, uid="rows", watermarks=EVER).key_by("key").window(TEN)
    windowed.aggregate(uid="by-states", n=count())
    with raises(ConfigError, "window-column-type", "'ns'"):
        windowed.process(Summing(), "n long", uid="n")


def test_a_subclass_of_a_trigger_that_is_there_is_asked_itself() -> None:
    class Once(Every):
        def on_event_time(self, time_us: int, at: WindowContext) -> Firing:
            return FIRE if time_us == at.window.end_us else CONTINUE

    made = Flow("windows")
    windowed = source(made).key_by("key").window(TEN, trigger=Once("5 seconds"))
    windowed.aggregate(uid="n", n=count()).map_batches(lambda batch: batch).sink(AnySink("fired"))
    test = FlowTest(made)
    assert test.epoch({"rows": [("a", time_of(1), 1), ("a", time_of(6), 1)]})["fired"] == []
    assert [row["n"] for row in test.epoch(ended=["rows"])["fired"]] == [2]
    test.close()


def test_a_trigger_that_does_not_answer_is_told() -> None:
    class Silent(Trigger):
        def on_row(self, row: Any, at: WindowContext) -> Firing:
            del row, at
            return None  # type: ignore[return-value]

    made = Flow("windows")
    source(made).key_by("key").window(TEN, trigger=Silent()).aggregate(uid="n", n=count()).sink(
        AnySink("fired", replaces=Upsert(("key", "window_start"), ("emission",)))
    )
    test = FlowTest(made)
    with raises(ConfigError, "trigger-answer", "by Silent"):
        test.epoch({"rows": [("a", time_of(1), 1)]})
    test.close()


@pytest.mark.parametrize(
    "answer", [None, [True], pa.array([1]), pa.array([True, True]), pa.scalar(True), np.ones(1, bool)]
)
def test_an_evictor_that_does_not_answer_for_each_row_is_told(answer: Any) -> None:
    class Strange(Evictor):
        def keeps(self, rows: pa.RecordBatch, times_us: pa.Int64Array) -> pa.BooleanArray:
            del rows, times_us
            return answer

    made = Flow("windows")
    windowed = source(made).key_by("key").window(TEN, evictor=Strange())
    windowed.aggregate(uid="n", n=count()).sink(AnySink("fired"))
    test = FlowTest(made)
    with raises(ConfigError, "evictor-answer", "Strange", "for 1 rows"):
        test.epoch({"rows": [("a", time_of(1), 1)]}, ended=["rows"])
    test.close()


def test_a_side_output_of_the_name_that_late_rows_have_is_refused() -> None:
    windowed = source(Flow("windows")).key_by("key").window(TEN, late="late")
    with raises(ConfigError, "option-value", "'late'"):
        windowed.process(Summing(), "n long", uid="n", sides={"late": "n long"})


def test_settings_of_triggers_and_evictors_are_checked() -> None:
    for wrong in (lambda: AfterRows(0), lambda: KeepLast(-1)):
        with raises(ConfigError, "option-value"):
            wrong()


def test_windows_that_cannot_be_asked_for_and_joins_of_calendars_are_refused() -> None:
    made = Flow("windows")
    keyed = source(made).key_by("key")
    with raises(ConfigError, "window-not-queryable"):
        keyed.window(Rows(2)).aggregate(uid="n", queryable=True, n=count())
    with raises(ConfigError, "window-zone"):
        keyed.join(keyed, Tumbling("1 day", zone="UTC"), uid="joined")
    with raises(ConfigError, "processor-kind"):
        keyed.window(TEN).process(object(), "n long", uid="n")  # type: ignore[arg-type]


def test_explain_tells_how_rows_are_kept() -> None:
    made = Flow("windows")
    keyed = source(made).key_by("key")
    keyed.window(Global(), trigger=AfterRows(2), evictor=KeepLast(3)).aggregate(uid="a", n=sum_("amount")).map_batches(
        lambda batch: batch
    ).sink(AnySink("a"))
    keyed.window(TEN).process(Summing(), "n long", uid="b").sink(AnySink("b"))
    keyed.window(Tumbling("1 day", zone="Europe/Berlin")).aggregate(uid="c", n=count()).sink(AnySink("c"))
    text = made.explain()
    assert "by key, all time of 'at': n = sum(amount); early results after 2 rows" in text
    assert "windows of 10 seconds of 'at': Summing; by elements" in text
    assert "windows of 1 day in Europe/Berlin of 'at': n = count(); by slices" in text


class Adds(Aggregator):
    """A sum; it counts how often it is given a row."""

    state_type, result_type = "long", "long"
    calls: ClassVar[list[Any]] = []

    def create(self) -> Any:
        return 0

    def add(self, state: Any, *values: Any) -> Any:
        self.calls.append(values)
        return state + values[0]

    def merge(self, state: Any, other: Any) -> Any:
        return state + other

    def result(self, state: Any) -> Any:
        return state


def test_case_23_a_row_of_sixty_windows_is_added_once() -> None:
    rows = [("a", time_of(number % 600), number) for number in range(1_000)]
    sums = []
    for by_elements in (False, True):
        made = Flow("windows")
        given = {"evictor": KeepLast(10_000)} if by_elements else {}
        windowed = source(made).key_by("key").window(Sliding("1 minute", "1 second"), **given)
        windowed.aggregate(uid="sums", total=Adds().of("amount")).sink(AnySink("fired"))
        Adds.calls.clear()
        test = FlowTest(made)
        fired = test.epoch({"rows": rows}, ended=["rows"])["fired"]
        sums.append({row["window_end"]: row["total"] for row in fired})
        assert len(Adds.calls) == (60_000 if by_elements else 1_000)
        test.close()
    assert sums[0] == sums[1]


class Forgetful(Trigger):
    """Each third row; it counts them where no state is."""

    def __init__(self, in_state: bool) -> None:
        self._in_state, self._rows = in_state, 0

    def on_row(self, row: Any, at: WindowContext) -> Firing:
        del row
        self._rows += 1
        count_ = at.state.add("rows", 1) if self._in_state else self._rows
        return FIRE if count_ % 3 == 0 else CONTINUE


def test_the_kits_tell_what_forgets_and_what_depends_on_batches() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"key": "a", "at": time_of(at), "amount": at} for at in (1, 2, 5, 11, 12)], schema=ROWS
    )
    for in_state in (True, False):
        made = Flow("windows")
        found = source(made).key_by("key").window(TEN, trigger=Forgetful(in_state), late="late")
        fired = found.aggregate(uid="sums", total=sum_("amount"))
        fired.map_batches(lambda batch: batch).sink(AnySink("fired"))
        fired.side("late").sink(AnySink("late"))
        if in_state:
            check_trigger(made, "rows", rows)
        else:
            with pytest.raises(AssertionError, match="with restores"):
                check_trigger(made, "rows", rows)
    check_watermarks(bounded("at", "2 seconds"), rows)
    with pytest.raises(AssertionError, match="cut at"):
        check_watermarks(LastOne(), rows)


def test_the_kit_for_triggers_is_about_neither_the_order_of_keys_nor_nan() -> None:
    rows = [{"key": key, "at": time_of(at), "price": math.nan} for at, key in enumerate("abab")]
    schema = pa.schema({"key": pa.string(), "at": ROWS.field("at").type, "price": pa.float64()})
    made = Flow("windows")
    given: Any = AnySource("rows", schema, is_resolved=True)
    windowed = made.source(given, uid="rows", watermarks=EVER).key_by("key").window(TEN, trigger=Forgetful(True))
    windowed.aggregate(uid="sums", total=sum_("price")).map_batches(lambda batch: batch).sink(AnySink("fired"))
    check_trigger(made, "rows", pa.RecordBatch.from_pylist(rows, schema=schema))


class LastOne(Watermarks):
    """By the last row of a batch, whatever others say."""

    column = "at"

    def of(self, batch: pa.RecordBatch) -> int | None:
        return int(batch.column("at")[-1].value)

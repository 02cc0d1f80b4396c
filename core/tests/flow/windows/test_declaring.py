"""What a flow says of windows: the columns that come out, the column of time, and what is refused while it is built."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises

from onefold.core import ConfigError, Upsert
from onefold.flow import (
    EachEpoch,
    Every,
    Flow,
    Session,
    Sliding,
    Stream,
    Tumbling,
    Watermarks,
    WindowedStream,
    count,
    monotonic,
    punctuated,
    sum_,
    timing,
)
from onefold.flow.graph.operators import Windowing

ROWS = pa.schema(
    {
        "key": pa.string(),
        "at": pa.timestamp("ms", "UTC"),
        "other": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "amount": pa.int64(),
    }
)
MINUTE = Tumbling("1 minute")
BY_TIME = monotonic("at")
START, END = pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")


def rows(watermarks: Watermarks | None = BY_TIME, name: str = "rows", flow: Flow | None = None) -> Stream:
    source: Any = AnySource(name, ROWS, is_resolved=True)
    return (flow or Flow("windows")).source(source, uid=name, watermarks=watermarks)


def counted(windowed: WindowedStream, uid: str = "n") -> Stream:
    return windowed.aggregate(uid=uid, n=count())


def on(stream: Stream, **given: Any) -> tuple[str, bool]:
    """The column of time, and whether it is a window's end."""
    made = stream._nodes.made
    counted(stream.key_by("key").window(MINUTE, **given), f"n{len(made)}")
    found = made[-1].operator
    assert isinstance(found, Windowing)
    return found.on, found.is_end


def test_a_window_that_fires_once_has_no_number_of_emissions() -> None:
    found = rows().key_by("key").window(MINUTE).aggregate(uid="n", total=sum_("amount"), n=count()).schema
    own = [pa.field("window_start", START, nullable=False), pa.field("window_end", END, nullable=False)]
    expected = [ROWS.field("key"), *own, pa.field("total", pa.int64()), pa.field("n", pa.int64())]
    assert found == pa.schema(expected)
    assert counted(rows().window(MINUTE)).schema.names == ["window_start", "window_end", "n"]


def test_one_that_may_fire_again_has_one() -> None:
    found = counted(rows().key_by("key").window(MINUTE, lateness="1 second")).schema
    assert found.names == ["key", "window_start", "window_end", "n", "emission"]


def test_a_day_and_a_time_without_a_zone_have_windows_without_a_zone() -> None:
    found = counted(rows().key_by("key").window(MINUTE, on="day")).schema
    assert found.field("window_start").type == pa.timestamp("us")


def test_late_rows_are_a_side_output_with_the_columns_they_came_with() -> None:
    found = counted(rows().key_by("key").window(MINUTE, late="late"))
    assert found.side("late").schema == ROWS
    with raises(ConfigError, "side-not-declared"):
        counted(rows().key_by("key").window(MINUTE)).side("late")


def test_a_stream_keeps_its_time_as_long_as_it_has_the_column() -> None:
    assert on(rows()) == ("at", False)
    assert on(rows().filter("amount > 0")) == ("at", False)
    assert on(rows().select("key", when="at")) == ("when", False)
    assert on(rows().with_columns(amount="amount * 2")) == ("at", False)
    assert on(rows().map_batches(lambda batch: batch)) == ("at", False)
    assert on(rows().flat_map(lambda row: [row], ROWS)) == ("at", False)
    flow = Flow("windows")
    assert on(rows(flow=flow).union(rows(name="others", flow=flow))) == ("at", False)
    assert on(rows(), on="other") == ("other", False)
    assert on(rows(punctuated("at", mark="other"))) == ("at", False)


def test_results_of_a_window_have_its_end_as_their_time() -> None:
    minutes = counted(rows().key_by("key").window(MINUTE, late="late"), "minutes")
    assert on(minutes) == ("window_end", True)
    assert on(minutes, on="window_end") == ("window_end", True)
    assert on(minutes, on="window_start") == ("window_start", False)
    assert on(minutes.select("key", end="window_end")) == ("end", True)
    assert on(minutes.side("late")) == ("at", False)
    visits = counted(rows().key_by("key").window(Session("1 minute")), "visits")
    assert on(visits) == ("window_end", False)


@pytest.mark.parametrize(
    "stream",
    [
        rows().select("key", "amount"),
        rows().with_columns(at=pc.field("other")),
        rows().map_batches(lambda batch: batch.select(["key"])),
        rows().flat_map(lambda row: [row], "key string, at string"),
        rows(punctuated("at", mark="other")).key_by("key").aggregate(uid="n", n=count()),
    ],
    ids=["left out", "replaced", "left out by a function", "made text by a function", "aggregated"],
)
def test_a_stream_that_has_lost_its_time_is_refused(stream: Stream) -> None:
    with raises(ConfigError, "time-column-missing"):
        stream.key_by("key").window(MINUTE)


def test_what_has_no_event_time_is_refused() -> None:
    with raises(ConfigError, "watermarks-missing"):
        rows(None).key_by("key").window(MINUTE)
    flow = Flow("windows")
    with raises(ConfigError, "watermarks-missing"):
        rows(flow=flow).union(rows(None, "others", flow)).key_by("key").window(MINUTE, on="at")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"on": "amount"}, "watermark-column"),
        ({"on": "att"}, "no-such-column"),
        ({"lateness": "soon"}, "option-value"),
        ({"results": "all"}, "option-value"),
        ({"window": "1 minute"}, "option-value"),
        ({"window": Session("soon")}, "option-value"),
        ({"trigger": "5 seconds"}, "option-value"),
        ({"trigger": Every("soon")}, "option-value"),
        ({"trigger": Every("0 seconds")}, "trigger-interval"),
        ({"trigger": Every("7 seconds")}, "trigger-interval"),
        ({"trigger": Every("2 minutes")}, "trigger-interval"),
        ({"trigger": Every("1 millisecond")}, "window-slices"),
        ({"trigger": Every("5 seconds"), "window": Session("1 minute")}, "trigger-sessions"),
        ({"window": Session("0 seconds")}, "option-value"),
        ({"window": Session(pc.field("gone"))}, "session-gap-column"),
        ({"window": Session(pc.field("amount"))}, "session-gap-column"),
        ({"window": Session(pc.field("amount").cast(pa.duration("s")))}, "session-gap-column"),
    ],
)
def test_options_of_other_values_are_refused(given: dict[str, Any], code: str) -> None:
    with raises(ConfigError, code):
        rows().key_by("key").window(**{"window": MINUTE, **given})


def test_the_columns_of_windows_are_not_those_of_a_key_or_an_aggregate() -> None:
    windowed = rows().select("at", "amount", window_start="key").key_by("window_start").window(MINUTE)
    with raises(ConfigError, "column-name-taken"):
        counted(windowed)
    with raises(ConfigError, "column-name-taken"):
        rows().key_by("key").window(MINUTE).aggregate(uid="n", window_end=count())
    again = rows().key_by("key").window(MINUTE, lateness="1 second")
    with raises(ConfigError, "column-name-taken"):
        again.aggregate(uid="n", emission=count())
    for name in ("$start", "$slice"):  # by which they keep theirs
        with raises(ConfigError, "column-name-taken"):
            rows().with_columns(**{name: pc.field("at")}).key_by("key").window(MINUTE).aggregate(uid="n", n=count())
        with raises(ConfigError, "column-name-taken"):
            rows().key_by("key").window(MINUTE).aggregate(uid="n", **{name: count()})
    assert "emission" in rows().key_by("key").window(MINUTE).aggregate(uid="n", emission=count()).schema.names


def test_a_window_without_a_uid_or_an_aggregate_is_refused() -> None:
    with raises(ConfigError, "uid-missing"):
        rows().window(MINUTE).aggregate(n=count())
    with raises(ConfigError, "option-missing"):
        rows().window(MINUTE).aggregate(uid="n")


def test_a_session_that_may_fire_again_has_rows_that_are_taken_back() -> None:
    assert counted(rows().window(Session("1 minute"))).schema.names == ["window_start", "window_end", "n"]
    found = counted(rows().window(Session("1 minute"), lateness="1 second")).schema
    assert found.names == ["window_start", "window_end", "n", "emission", "retracts"]
    flow = Flow("windows")
    counted(rows(flow=flow).key_by("key").window(Session("1 minute"))).sink(AnySink())
    assert "aggregates by key, sessions with gaps of 1 minute of 'at': n = count()\n" in flow.explain()


def test_timing_is_a_column_of_windows_alone() -> None:
    found = rows().key_by("key").window(MINUTE, trigger=EachEpoch()).aggregate(uid="n", when=timing(), n=count())
    assert found.schema.names == ["key", "window_start", "window_end", "n", "emission", "when"]
    for name in ("key", "window_end", "emission"):
        with raises(ConfigError, "column-name-taken"):
            rows().key_by("key").window(MINUTE, lateness="1 second").aggregate(uid="n", n=count(), **{name: timing()})
    with raises(ConfigError, "option-value", "have one"):
        rows().key_by("key").window(MINUTE).aggregate(uid="n", n=count(), one=timing(), two=timing())
    wrong: Any = timing()
    with raises(ConfigError, "option-value"):
        rows().key_by("key").aggregate(uid="n", when=wrong)


def test_explain_tells_early_results() -> None:
    flow = Flow("windows")
    found = counted(rows(flow=flow).key_by("key").window(MINUTE, trigger=Every("5 seconds"), results="retracting"))
    found.sink(AnySink())
    assert "n = count(); early results each 5 seconds; retracting; by slices of 5 s" in flow.explain()


def test_explain_tells_windows_and_where_their_rows_come_together() -> None:
    flow = Flow("windows")
    by_key = rows(flow=flow).key_by("key").window(Sliding("1 hour", "1 minute"), lateness="10 seconds", late="late")
    found = counted(by_key, "moving")
    found.sink(AnySink("moving", replaces=Upsert(("key", "window_start"))))
    found.side("late").sink(AnySink("late"))
    counted(rows(name="others", flow=flow).window(MINUTE), "all").sink(AnySink("all"))
    text = flow.explain()
    assert "by key, windows of 1 hour each 1 minute of 'at': n = count()" in text
    assert "accumulating, 10 s longer for late rows; by slices of 60 s" in text
    assert "from others, all in one task" in text and "from rows, by key key" in text
    assert "side late: key string" in text

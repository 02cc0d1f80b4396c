"""Watermarks that go on with the epochs' time: while all is silent, and where that is the records' own time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st
from timed_rows import EPOCH, ROWS, epochs_of, time_of
from window_cases import ADVANCE, HUNDRED, ON_ENGINE, TEN, by_test, flow, numbered, source, told
from window_subtasks import Subtasks

from onefold.core import CheckpointMismatch, ConfigError
from onefold.engine.logics.windows.window_logic import WindowLogic
from onefold.flow import (
    AfterRows,
    EachEpoch,
    Every,
    ExpiredTimer,
    Flow,
    Global,
    KeepTime,
    Rows,
    Session,
    Sliding,
    StatefulProcessor,
    TimerValues,
    Tumbling,
    Watermarks,
    bounded,
    count,
    ingestion,
    monotonic,
    sum_,
)
from onefold.flow.testing import FlowTest
from onefold.flow.time.clocks import END, Clocks, Times
from onefold.flow.time.told import ToldClock, told_lowest

SECOND = 1_000_000


@pytest.mark.parametrize("restores", [False, True], ids=["", "restarts between all epochs"])
@pytest.mark.parametrize("by_elements", [False, True], ids=["by states", "by elements"])
@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), ON_ENGINE)
def test_case_on_the_engine(
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
    by_elements: bool,
    restores: bool,
) -> None:
    made = flow(watermarks, window, given, by_elements=by_elements)
    assert numbered(by_test(FlowTest(made, at=EPOCH), text, restores)) == expected


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize(("watermarks", "window", "given", "text", "expected"), ON_ENGINE)
def test_case_on_the_engine_in_workers_that_die(
    watermarks: Watermarks,
    window: Any,
    given: dict[str, Any],
    text: str,
    expected: dict[str, list[str]],
    backend: str,
    tmp_path: Path,
) -> None:
    """An epoch that runs again has its time, and so the same watermark."""
    run, found = Subtasks(flow(watermarks, window, given), watermarks, tmp_path, backend, 2), []
    for number, epoch in enumerate(epochs_of(text)):
        first = run.epoch(epoch.rows, epoch.now_s, epoch.is_last)
        run.die(1 + number % 3)
        again = run.epoch(epoch.rows, epoch.now_s, epoch.is_last)
        assert again == first
        found.append([told(row) for row in (*again[0], *again[1])])
        run.restore(1 + (number + 1) % 3)
    assert numbered(found) == expected
    run.close()


def clocks(**policies: Watermarks) -> Clocks:
    return Clocks(policies)


def of(read: dict[str, int | None], named: str, ended: str = "") -> Times:
    """Each source has one partition."""
    return Times(
        frozenset((name, "") for name in named), {(name, ""): us for name, us in read.items()}, frozenset(ended)
    )


def test_it_goes_on_only_where_all_sources_say_so() -> None:
    holds = monotonic("at", idle="60 seconds")
    both, one = clocks(a=ADVANCE, b=ADVANCE), clocks(a=ADVANCE, b=holds)
    for found in (both, one):
        found.advance(of({"a": 5 * SECOND, "b": 7 * SECOND}, "ab"), 0)
        found.advance(of({}, "ab"), 80_000)
    assert (both.watermark_us, one.watermark_us) == (87 * SECOND, 7 * SECOND)
    one.advance(of({}, "ab", ended="b"), 90_000)
    assert one.watermark_us == 95 * SECOND, "one that has ended does not count"


def test_an_empty_partition_that_is_added_later_holds_it_up_until_it_is_silent_too() -> None:
    found = clocks(a=ADVANCE)
    both = {("a", "0"): 5 * SECOND}, {("a", "0"), ("a", "1")}
    found.advance(Times(frozenset(both[0]), both[0]), 0)
    for now_ms, named, second in ((200_000, both[0], 205), (201_000, both[1], 205), (261_000, both[1], 266)):
        found.advance(Times(frozenset(named)), now_ms)
        assert found.watermark_us == second * SECOND


def test_when_silent_counts_from_the_second_epoch_after_a_start_on() -> None:
    """The first one may run again: it gives what it gave."""
    for before, after, at in ((ADVANCE, HOLDS, [75, 75]), (HOLDS, ADVANCE, [5, 85])):
        found = clocks(a=before)
        found.advance(of({"a": 5 * SECOND}, "a"), 0)
        again = Clocks({"a": after}, found.as_rows())
        for now_ms, second in ((70_000, at[0]), (80_000, at[1])):
            again.advance(of({}, "a"), now_ms)
            assert again.watermark_us == second * SECOND


HOLDS = bounded("at", "0 seconds", idle="60 seconds")
READ = st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(0, 99_000_000), max_size=2)


@given(
    st.lists(st.tuples(st.integers(1, 70), READ), max_size=6),
    st.integers(0, 250),
    st.sampled_from([(ADVANCE, ADVANCE), (ADVANCE, HOLDS), (ingestion(), ADVANCE), (ingestion(), ingestion())]),
)
def test_the_next_release_is_when_it_moves_by_silence_or_comes_to_what_is_due(
    epochs: list[tuple[int, dict[str, int | None]]], due_s: int, policies: tuple[Watermarks, Watermarks]
) -> None:
    of_both = dict(zip("ab", policies, strict=True))
    found, now_s = Clocks(of_both), 0
    for passed_s, read in epochs:
        now_s += passed_s
        found.advance(of(read, "ab"), now_s * 1_000)
    before, due_us = found.watermark_us, due_s * SECOND
    if not epochs or (before is not None and before >= due_us):
        return
    release_ms = found.next_release_ms(due_us)
    for at_ms in range(now_s * 1_000, now_s * 1_000 + 400_000, 500):
        later = Clocks(of_both, found.as_rows())
        later.advance(of({}, "ab"), at_ms)
        if release_ms is None or at_ms < release_ms:
            assert later.watermark_us is None or later.watermark_us < due_us, at_ms
        elif at_ms < release_ms + 500:
            assert later.watermark_us != before, at_ms
            return
    assert release_ms is None


class Waking(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: TimerValues) -> Iterator[Any]:
        del key, timers
        for row in rows:
            self._handle.registerTimer(row.amount * 1_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timers: TimerValues, expired: ExpiredTimer) -> Iterator[Any]:
        del timers
        yield key[0], expired.getExpiryTimeInMs()


def waiting(what: str) -> Flow:
    made = Flow("windows", max_parallelism=1)
    rows = source(made, ADVANCE)
    keyed = rows.key_by("key")
    match what:
        case "timers":
            found = keyed.process(Waking(), "key string, at_ms long", uid="of", timers="event")
        case "a join":
            found = keyed.join(rows.filter(pc.field("amount") > 0).key_by("key"), HUNDRED, uid="of")
        case "as of":
            found = keyed.as_of(rows.filter(pc.field("amount") > 99).key_by("key"), uid="of", how="left")
        case "panes":
            windowed = keyed.window(Tumbling("400 seconds"), trigger=Every("100 seconds"))
            found = windowed.aggregate(uid="of", n=count())
        case "a day of a zone":
            found = keyed.window(Tumbling("1 day", zone="UTC")).aggregate(uid="of", n=count())
        case "sessions":
            found = keyed.window(Session("100 seconds")).aggregate(uid="of", n=count())
        case _:
            found = keyed.window(Sliding("100 seconds", "200 seconds")).aggregate(uid="of", n=count())
    found.map_batches(lambda batch: batch).sink(AnySink("fired"))
    return made


@pytest.mark.parametrize(
    ("what", "at_s", "amount", "due_s"),
    [
        ("timers", 3, 100, 97),
        ("timers", 3, 10, 60),  # which is when it is silent
        ("a join", 3, 1, 97),
        ("as of", 75, 1, 60),
        ("panes", 101, 1, 99),
        ("a day of a zone", 10, 1, 86_390),
        ("sessions", 75, 1, 100.001),
        ("slides", 5, 1, 95),
    ],
)
def test_whatever_waits_for_the_watermark_has_an_epoch_when_it_is_due(
    what: str, at_s: int, amount: int, due_s: float
) -> None:
    """After a row of that second in the epoch of second 0: the watermark is its time, and what has passed since."""
    test = FlowTest(waiting(what), at=EPOCH)
    assert test.epoch({"rows": [("a", time_of(at_s), amount)]})["fired"] == []
    for restores in (False, True):
        if restores:
            test.restore()
        timers = [subtask.timer_ms for subtask in test._flow._subtasks if subtask.chain.uid == "of"]
        assert timers == [round(due_s * 1_000)]
    test.advance(seconds=due_s - 0.001)
    assert test.epoch()["fired"] == []
    test.advance(seconds=0.001)
    assert len(test.epoch()["fired"]) == 1
    test.close()


@pytest.mark.parametrize("evictor", [None, KeepTime("1 day")], ids=["by states", "by elements"])
@pytest.mark.parametrize("window", [Session("10 seconds"), Tumbling("10 seconds")], ids=str)
def test_what_has_fired_and_is_open_for_late_rows_hides_nothing_that_is_due(window: Any, evictor: Any) -> None:
    made = Flow("windows", max_parallelism=1)
    windowed = source(made, ADVANCE).key_by("key").window(window, lateness="1 hour", evictor=evictor)
    windowed.aggregate(uid="of", n=count()).map_batches(lambda batch: batch).sink(AnySink("fired"))
    test = FlowTest(made, at=EPOCH)
    test.epoch({"rows": [("a", time_of(1), 1), ("b", time_of(75), 1)]})
    (due_ms,) = (subtask.timer_ms for subtask in test._flow._subtasks if subtask.chain.uid == "of")
    assert due_ms is not None, "the second one ends while all is silent"
    test.advance(milliseconds=due_ms)
    assert [row["key"] for row in test.epoch()["fired"]] == ["b"]
    test.close()


def by_epochs(window: Any, **options: Any) -> Flow:
    made = Flow("windows", max_parallelism=1)
    found = source(made, ingestion()).key_by("key").window(window, late="late", **options)
    found = found.aggregate(uid="sums", total=sum_("amount"))
    found.sink(AnySink("fired"))
    found.side("late").sink(AnySink("late"))
    return made


@pytest.mark.parametrize("restores", [False, True])
def test_ingestion_is_the_time_of_the_epoch_that_reads_a_record(restores: bool) -> None:
    text = "a@77 T=3 | a@1 T=9 | a@50 T=12 | T=20 | a@2 T=21 END"
    found = numbered(by_test(FlowTest(by_epochs(TEN), at=EPOCH), text, restores))
    assert found == {"N3": ["a[0,10)=2"], "N4": ["a[10,20)=1"], "N5": ["a[20,30)=1"]}
    test = FlowTest(by_epochs(Session("3 seconds")), at=EPOCH)
    test.epoch({"rows": [("a", time_of(77), 1)]})
    assert [subtask.timer_ms for subtask in test._flow._subtasks if subtask.chain.uid == "sums"] == [3_001]
    test.close()


def test_ingestion_adds_the_column_and_what_is_read_waits_for_its_epoch() -> None:
    made = Flow("windows")
    rows = source(made, ingestion())
    assert rows.schema.field("ingested_at") == pa.field("ingested_at", pa.timestamp("us", "UTC"), nullable=False)
    rows.filter(pc.field("amount") > 0).sink(AnySink("plain"))
    test = FlowTest(made, at=time_of(5))
    written = test.epoch({"rows/p": [("a", time_of(1), 1)], "rows/q": [("b", time_of(2), 2)]})["plain"]
    assert [(row["key"], row["at"], row["ingested_at"]) for row in written] == [
        ("a", time_of(1), time_of(5)),
        ("b", time_of(2), time_of(5)),
    ]
    (subtask,) = test._flow._subtasks
    assert subtask._operators.need_task
    test.close()
    taken: Any = AnySource("rows", ROWS.append(pa.field("ingested_at", pa.int64())), is_resolved=True)
    with raises(ConfigError, "column-name-twice", "with ingestion() has two columns 'ingested_at'"):
        Flow("windows").source(taken, uid="rows", watermarks=ingestion())


def test_what_moves_with_the_epochs_is_told_and_refused_where_it_cannot_be() -> None:
    with raises(ConfigError, "option-value", "when_silent"):
        bounded("at", "1 second", when_silent="wait")  # type: ignore[arg-type]
    with raises(ConfigError, "option-value", "idle=None"):
        bounded("at", "1 second", idle=None, when_silent="advance")
    made = Flow("windows")
    one, other = (
        source(made, ingestion()),
        made.source(
            AnySource("other", ROWS, is_resolved=True),
            uid="other",
            watermarks=ADVANCE,  # type: ignore[arg-type]
        ),
    )
    with raises(ConfigError, "align-streams", "go by their records"):
        made.align("1 minute", one, other)
    for stream in (one, other):
        stream.key_by("key").window(TEN).aggregate(uid=f"of-{stream.schema.names[-1]}", n=count()).sink(
            AnySink(stream.schema.names[-1])
        )
    text = made.explain()
    assert "event time by 'ingested_at', the time of the epoch that reads a record" in text
    assert "event time by 'at', at most 0 s out of order; goes on while all are silent" in text


def untimed(window: Any, **options: Any) -> Flow:
    made = Flow("windows", max_parallelism=1)
    rows: Any = AnySource("rows", ROWS, is_resolved=True)
    keyed = made.source(rows, uid="rows").key_by("key")
    found = keyed.window(window, **options).aggregate(uid="sums", total=sum_("amount"))
    found.map_batches(lambda batch: batch).sink(AnySink("fired"))
    return made


@pytest.mark.parametrize(
    ("window", "options", "expected"),
    [
        (Rows(2), {}, {"N1": ["a:0=3"], "N3": ["a:1=4"]}),
        (Rows(2, slide=1), {}, {"N1": ["a:0=1", "a:1=3"], "N2": ["a:2=6"]}),
        (Global(), {"trigger": AfterRows(2)}, {"N1": ["a=3"], "N3": ["a=7#2"]}),
        (Global(), {"trigger": EachEpoch()}, {"N1": ["a=3"], "N2": ["a=7#2"], "N3": ["a=7#3"]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("restores", [False, True])
def test_windows_for_all_time_need_no_watermarks_and_end_with_their_sources(
    window: Any, options: dict[str, Any], expected: dict[str, list[str]], restores: bool
) -> None:
    found = numbered(by_test(FlowTest(untimed(window, **options), at=EPOCH), "a@1 a@2=2 | a@3=4 | END", restores))
    assert found == expected


@pytest.mark.parametrize(
    "options",
    [
        {"trigger": Every("5 seconds")},
        {"trigger": AfterRows(2), "evictor": KeepTime("5 seconds")},
        {"trigger": AfterRows(2), "on": "at"},
    ],
    ids=str,
)
def test_windows_for_all_time_need_watermarks_where_a_setting_goes_by_time(options: dict[str, Any]) -> None:
    with raises(ConfigError, "watermarks-missing", "'rows'"):
        untimed(Global(), **options)


def test_a_window_that_needs_no_watermark_is_not_told_to_wait_for_one() -> None:
    test = FlowTest(untimed(Rows(2)), at=EPOCH)
    test.epoch({"rows/p": [("a", time_of(1), 1)], "rows/q": [("a", time_of(1), 1)]})
    status = test._flow.clocks()["sums"]
    assert str(ToldClock.of(status, 99_000)) == "no need of a watermark"
    waits = Clocks({"t": monotonic("at")}).status()
    assert told_lowest({"sums": status, "timed": waits}, 0) == "timed: no watermark yet"
    (logic,) = (
        of for each in test._flow._subtasks for of in each._operators._logics.values() if isinstance(of, WindowLogic)
    )
    assert logic.timer_ms() is None
    test.epoch(ended=["rows"])
    assert test._flow.clocks()["sums"].watermark_us == END
    made = Flow("windows", max_parallelism=1)
    timed = source(made, ADVANCE).key_by("key").window(Rows(2)).aggregate(uid="sums", total=sum_("amount"))
    timed.map_batches(lambda batch: batch).sink(AnySink("fired"))
    with raises(CheckpointMismatch, "state-operator-changed", "has times at, and its state is of times none"):
        test.change(made)
    test.close()

"""Flows over rows of a test's own: what they give is what the engine gives, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from flow_parts import ORDERS, AnySink, AnySource, orders
from harness.errors import raises

from onefold.core import BadRecord, ConfigError, Terminal, Upsert
from onefold.core.writing.dead_letters import BAD_COLUMNS, LETTER_COLUMNS
from onefold.flow import BroadcastProcessor, Flow, Side, StatefulProcessor, count, sum_
from onefold.flow.testing import FlowTest

Make = Callable[..., FlowTest]
NEWEST = Upsert(("account",), ("onefold_epoch",))
AT = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
def made() -> Iterator[Make]:
    opened: list[FlowTest] = []

    def make(flow: Flow, **more: Any) -> FlowTest:
        opened.append(FlowTest(flow, **more))
        return opened[-1]

    yield make
    for test in opened:
        folder = Path(test._folder.name)
        test.close()
        assert not folder.exists()


def order(id: int, account: int = 1, amount: str = "1.00") -> dict[str, Any]:
    return {"id": id, "account": account, "amount": Decimal(amount)}


def totals() -> Flow:
    flow, stream = orders()
    kept = stream.key_by("account").aggregate(uid="totals", orders=count(), amount=sum_("amount"))
    kept.sink(AnySink("totals", replaces=NEWEST))
    stream.select("id").sink(AnySink("ids"))
    return flow


class Reminder(StatefulProcessor):
    """Gives each key's count an hour after its first row."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterable[Any]:
        del key
        (seen,) = self._count.get() or (0,)
        if not seen:
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
        self._count.update((seen + len([*rows]),))
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues, expiredTimerInfo
        yield (*key, *self._count.get())


def test_state_goes_on_from_epoch_to_epoch_and_is_what_the_last_one_stored(made: Make) -> None:
    test = made(totals())
    assert test.epoch({"orders": [order(1), order(2, 2, "2.50"), order(3)]}) == {
        "totals": [
            {"account": 1, "orders": 2, "amount": Decimal("2.00"), "onefold_epoch": 1},
            {"account": 2, "orders": 1, "amount": Decimal("2.50"), "onefold_epoch": 1},
        ],
        "ids": [{"id": 1}, {"id": 2}, {"id": 3}],
    }
    for _ in range(3):
        test.restore()
    assert test.epoch() == {"totals": [], "ids": []}
    test.restore()
    written = test.epoch({"orders": [order(4, amount="0.25")]})
    assert written["totals"] == [{"account": 1, "orders": 3, "amount": Decimal("2.25"), "onefold_epoch": 3}]


def test_the_state_of_thousands_of_keys_over_many_epochs_is_restored(made: Make) -> None:
    test = made(totals())
    for epoch in range(30):
        test.epoch({"orders": [order(id, id) for id in range(1000)]})
        if epoch % 7 == 0:
            test.restore()
    written = test.epoch({"orders": [order(id, id) for id in range(1000)]})
    assert {(row["account"], row["orders"]) for row in written["totals"]} == {(id, 31) for id in range(1000)}


def test_processing_time_is_in_the_tests_hands(made: Make) -> None:
    flow, stream = orders()
    stream.key_by("account").process(Reminder(), "account long, n long", uid="reminder").sink(AnySink("due"))
    test = made(flow, at=AT)
    assert test.epoch({"orders": [order(1), order(2)]})["due"] == []
    test.advance(minutes=59)
    test.restore()  # timers are stored, too
    assert test.epoch({"orders": [order(3)]})["due"] == []
    test.advance(minutes=1)
    assert test.epoch()["due"] == [{"account": 1, "n": 3}]
    assert test.epoch()["due"] == []
    assert test.now == AT + timedelta(hours=1, milliseconds=1)  # no two epochs have the same time


@pytest.mark.parametrize("begin", [datetime(2026, 3, 29, 1, 30), datetime(2026, 10, 25, 1, 30)])
def test_time_passes_as_it_does_when_clocks_are_changed(made: Make, begin: datetime) -> None:
    flow, stream = orders()
    stream.key_by("account").process(Reminder(), "account long, n long", uid="reminder").sink(AnySink("due"))
    at = begin.replace(tzinfo=ZoneInfo("Europe/Berlin"))
    test = made(flow, at=at)
    test.advance(minutes=30)
    assert test.epoch({"orders": [order(1)]})["due"] == []
    test.advance(minutes=59)
    assert test.epoch()["due"] == []
    test.advance(minutes=1)
    assert test.now - at.astimezone(UTC) == timedelta(minutes=90)
    assert test.epoch()["due"] == [{"account": 1, "n": 1}]


def test_an_epoch_that_fails_leaves_nothing(made: Make) -> None:
    def split(row: dict[str, Any]) -> Iterable[Any]:
        if row["id"] == 3:
            raise ValueError("three")
        yield row

    flow, stream = orders()
    rows = stream.flat_map(split, ORDERS)
    rows.key_by("account").aggregate(uid="totals", orders=count()).sink(AnySink("totals", replaces=NEWEST))
    test = made(flow)
    test.epoch({"orders": [order(1)]})
    with raises(Terminal, "operator-failed"):
        test.epoch({"orders": [order(2), order(3)]})
    assert test.epoch({"orders": [order(4)]})["totals"] == [{"account": 1, "orders": 2, "onefold_epoch": 2}]


def test_bad_records_go_where_they_would_go(made: Make) -> None:
    flow = Flow("shop")
    stream = flow.source(AnySource(on_error="dead_letter"), uid="orders", dead_letters=AnySink("dead"))
    stream.side("bad").sink(AnySink("looked at"))
    stream.sink(AnySink("rows"))
    test = made(flow, at=AT)
    written = test.epoch({"orders": [order(1)]}, bad={"orders": [b"no JSON", b"\xff"]})
    assert [row["id"] for row in written["rows"]] == [1]
    assert [row["value"] for row in written["looked at"]] == [b"no JSON", b"\xff"]
    assert [*written["dead"][0]] == LETTER_COLUMNS.names and [*written["looked at"][0]] == BAD_COLUMNS.names
    assert [(row["pipeline"], row["epoch"], row["source_offset"]) for row in written["dead"]] == [
        ("shop", 1, 0),
        ("shop", 1, 1),
    ]
    with raises(BadRecord, "too-many-bad-records"):
        test.epoch(bad={"orders": 11 * [b""]})


def test_sides_several_sources_and_broadcast_rows(made: Make) -> None:
    class Limits(BroadcastProcessor):
        def init(self, handle: Any) -> None:
            self._limit = handle.getBroadcastState("limit", "name string", "n long")

        def handleBroadcastRows(self, rows: Iterable[Any], timerValues: Any) -> None:
            del timerValues
            for row in rows:
                self._limit.updateValue(("all",), (row.id,))

        def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterable[Any]:
            del key, timerValues
            limit = self._limit.getValue(("all",))
            for row in rows:
                yield (row.id,) if limit is None or row.id < limit[0] else Side("over", (row.id,))

    flow, stream = orders()
    limits = flow.source(AnySource("limits"), uid="limits").select("id").broadcast()
    found = (
        stream.key_by("account").connect(limits).process(Limits(), "id long", uid="limited", sides={"over": "id long"})
    )
    found.sink(AnySink("within"))
    found.side("over").sink(AnySink("over"))
    test = made(flow)
    test.epoch({"limits": [order(5)]})
    test.restore()
    written = test.epoch({"orders": [order(4), order(5)]})
    assert written == {"within": [{"id": 4}], "over": [{"id": 5}]}


class Numbering(StatefulProcessor):
    """Numbers its rows by a count of its own, which is state at snapshots only."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._kept = handle.getOperatorListState("count", "n long")
        self._last = handle.getValueState("last", "n long")
        self._count: int | None = None

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterable[Any]:
        del key, timerValues
        if self._count is None:
            self._count = next(iter(self._kept.get()), (0,))[0]
        for _ in rows:
            self._count += 1
            yield (self._count,)
        self._last.update((self._count,))

    def onSnapshot(self) -> None:
        if self._count is not None:
            self._kept.put([(self._count,)])


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_what_a_processor_puts_at_a_snapshot_is_there_after_a_restore(made: Make, state: str) -> None:
    flow, stream = orders()
    stream.key_by("account").process(Numbering(), "n long", uid="numbered").sink(AnySink())
    test = made(flow, state=state)
    test.epoch({"orders": [order(1), order(2, 2)]})
    test.epoch({"orders": []})
    test.restore()
    test.epoch()
    test.restore()
    assert test.epoch({"orders": [order(3)]}) == {"archive": [{"n": 3}]}


@pytest.mark.parametrize(
    "uses",
    [
        lambda it: it._last.get(),
        lambda it: it._last.update((1,)),
        lambda it: it._last.exists(),
        lambda it: it._last.clear(),
        lambda it: it._handle.registerTimer(1),
        lambda it: list(it._handle.listTimers()),
    ],
)
@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_there_is_no_key_at_a_snapshot(made: Make, state: str, uses: Callable[[Any], Any]) -> None:
    class Wrong(Numbering):
        def onSnapshot(self) -> None:
            uses(self)

    flow, stream = orders()
    stream.key_by("account").process(Wrong(), "n long", uid="numbered").sink(AnySink())
    with raises(ConfigError, "state-without-key", "'numbered'", "operator lists"):
        made(flow, state=state).epoch({"orders": [order(1)]})


def test_there_is_no_key_where_broadcast_rows_are_handled(made: Make) -> None:
    class Wrong(BroadcastProcessor):
        def init(self, handle: Any) -> None:
            self._last = handle.getValueState("last", "n long")

        def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterable[Any]:
            del key, timerValues
            self._last.update((len([*rows]),))
            return ()

        def handleBroadcastRows(self, rows: Iterable[Any], timerValues: Any) -> None:
            del rows, timerValues
            self._last.get()

    flow, stream = orders()
    rules = flow.source(AnySource("rules"), uid="rules").broadcast()
    stream.key_by("account").connect(rules).process(Wrong(), "id long", uid="of").sink(AnySink())
    test = made(flow)
    test.epoch({"orders": [order(1)]})
    with raises(ConfigError, "state-without-key", "'of'"):
        test.epoch({"rules": [order(1)]})


def test_a_sink_gets_its_rows_in_its_order_and_the_epochs_number(made: Make) -> None:
    flow, stream = orders()
    stream.select("id", "account").sink(AnySink("sorted", by=("account",), ascending=("account", "id")))
    test = made(flow)
    written = test.epoch({"orders": [order(3, 2), order(2, 1), order(1, 2)]})
    assert [(row["account"], row["id"]) for row in written["sorted"]] == [(1, 2), (2, 1), (2, 3)]


def test_arrow_is_taken_where_it_is_of_the_sources_schema(made: Make) -> None:
    test = made(totals())
    rows = pa.Table.from_pylist([order(1), order(2)], schema=ORDERS)
    assert len(test.epoch({"orders": rows})["ids"]) == 2
    assert len(test.epoch({"orders": rows.to_batches()[0]})["ids"]) == 2
    with raises(ConfigError, "schema-differs"):
        test.epoch({"orders": rows.select(["id"])})


@pytest.mark.parametrize(
    ("wrong", "kind", "code"),
    [
        ([order(1) | {"amount": Decimal("0.005")}], BadRecord, "function-value"),
        ([order(1) | {"amount": 1.5}], BadRecord, "function-value"),
        ([order(1) | {"id": 2**63}], BadRecord, "function-value"),
        ([order(1) | {"id": True}], BadRecord, "function-value"),
        ([order(1) | {"acount": 1}], ConfigError, "function-row"),
        ([(1, 2)], ConfigError, "function-row"),
        (["abcde"], ConfigError, "function-row"),
    ],
)
def test_a_value_that_a_column_does_not_have_exactly_is_refused_and_nothing_is_left(
    made: Make, wrong: list[Any], kind: type[Exception], code: str
) -> None:
    test = made(totals())
    with raises(kind, code):
        test.epoch({"orders": [order(1), *wrong]})
    assert test.epoch({"orders": [order(1)]})["totals"][0]["orders"] == 1


def test_wrong_calls_say_what_is_right(made: Make) -> None:
    test = made(totals())
    with raises(ConfigError, "source-unknown"):
        test.epoch({"order": []})
    with raises(ConfigError, "dead-letters-mismatch"):
        test.epoch(bad={"orders": [b"x"]})
    with raises(ConfigError, "option-value"):
        test.advance(hours=-1)
    with raises(ConfigError, "option-value"):
        made(totals(), at=datetime(2026, 1, 1))
    flow, stream = orders()
    stream.spark_sql("SELECT id FROM rows", schema="id long").sink(AnySink())
    with raises(ConfigError, "only-on-spark"):
        FlowTest(flow)


def test_one_that_was_closed_says_so(made: Make) -> None:
    test = made(totals())
    test.close()
    with raises(ConfigError, "flow-test-closed"):
        test.epoch({"orders": [order(1)]})
    with raises(ConfigError, "flow-test-closed"):
        test.restore()


def test_rows_that_python_has_no_values_for_fail_the_epoch_and_nothing_of_it_is_left(made: Make) -> None:
    flow, stream = orders(pa.schema({"id": pa.int64(), "at": pa.timestamp("s")}))
    stream.sink(AnySink("rows"))
    counted = stream.key_by("id").aggregate(uid="counted", n=count())
    counted.sink(AnySink("counted", replaces=Upsert(("id",), ("onefold_epoch",))))
    test = made(flow)
    begin = test.now
    of_a_far_year = pa.table({"id": [1], "at": pa.array([10**13], pa.timestamp("s"))}, schema=stream.schema)
    with raises(BadRecord, "function-value", "'at'"):
        test.epoch({"orders": of_a_far_year})
    assert test.now == begin
    assert test.epoch({"orders": [(1, None)]})["counted"] == [{"id": 1, "n": 1, "onefold_epoch": 1}]


def test_a_null_of_arrow_in_a_column_that_takes_none_is_refused(made: Make) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
    flow, stream = orders(columns)
    stream.sink(AnySink())
    test = made(flow)
    with raises(BadRecord, "function-value", "'id'", "'second'"):
        test.epoch(
            {"orders": pa.Table.from_arrays([pa.array([1, None]), pa.array(["first", "second"])], schema=columns)}
        )
    with raises(ConfigError, "schema-differs", "id int64 NOT NULL"):
        test.epoch({"orders": pa.table({"id": [1], "note": ["x"]})})


class Counting(StatefulProcessor):
    """Gives each key's count of rows. Its init and close raise what a test says."""

    raised: ClassVar[dict[str, Exception]] = {}

    def init(self, handle: Any) -> None:
        self._fail("init")
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (seen,) = self._count.get() or (0,)
        self._count.update((seen + len([*rows]),))
        yield (*key, *self._count.get())

    def close(self) -> None:
        self._fail("close")

    def _fail(self, call: str) -> None:
        if call in self.raised:
            raise self.raised[call]


@pytest.mark.parametrize("call", ["init", "close"])
def test_a_restore_that_fails_loses_no_state(made: Make, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    flow, stream = orders()
    stream.key_by("account").process(Counting(), "account long, n long", uid="counting").sink(AnySink("counts"))
    test = made(flow)
    test.epoch({"orders": [order(1)]})
    with monkeypatch.context() as patched:
        patched.setitem(Counting.raised, call, ValueError("not now"))
        with pytest.raises(ValueError, match="not now"):
            test.restore()
        if call == "init":
            with pytest.raises(ValueError, match="not now"):
                test.epoch({"orders": [order(2)]})
    assert test.epoch({"orders": [order(2)]})["counts"] == [{"account": 1, "n": 2}]


def test_the_folder_goes_also_where_a_processor_does_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, stream = orders()
    stream.key_by("account").process(Counting(), "account long, n long", uid="counting").sink(AnySink("counts"))
    test = FlowTest(flow)
    folder = Path(test._folder.name)
    monkeypatch.setitem(Counting.raised, "close", ValueError("not now"))
    with pytest.raises(ValueError, match="not now"):
        test.close()
    assert not folder.exists()


def test_two_of_one_flow_have_nothing_in_common() -> None:
    flow = totals()
    with closing(FlowTest(flow)) as one, closing(FlowTest(flow)) as other:
        one.epoch({"orders": [order(1)]})
        assert other.epoch({"orders": [order(1)]})["totals"][0]["orders"] == 1

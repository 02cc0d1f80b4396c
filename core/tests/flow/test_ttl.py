"""State that lives for a while, in whole flows on the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import ttl_cases
from flow_parts import AnySink, AnySource
from harness.errors import raises
from timed_rows import ROWS

from onefold.core import CheckpointMismatch, ConfigError, Upsert
from onefold.engine.dataflow.chains import plan
from onefold.engine.savepoints.exporting import exported
from onefold.engine.savepoints.importing import imported
from onefold.engine.savepoints.saved_tables import SavedTable
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow import Evolution, Flow, StatefulProcessor, Ttl, count, monotonic, sum_
from onefold.flow.graph.order import check_same_again
from onefold.flow.testing import FlowTest


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
@pytest.mark.parametrize(("ttl", "text", "epochs"), ttl_cases.CASES)
def test_sums_begin_anew(ttl: Ttl, text: str, epochs: str, operator: str, restores: bool) -> None:
    test: Any = FlowTest(ttl_cases.flow(operator, ttl))
    assert ttl_cases.sums(test, text, restores) == ttl_cases.expected(text, epochs)


def test_what_is_seen_until_it_is_cleaned_goes_into_no_sink_that_is_written_before_the_decision() -> None:
    for visible in ("never_expired", "until_cleaned"):
        flow = ttl_cases.flow("aggregate", Ttl("1 day", visible=visible))  # type: ignore[arg-type]
        graph = flow.graph()
        check_same_again(graph, ())
        if visible == "never_expired":
            check_same_again(graph, ("sums",))
            continue
        with raises(ConfigError, "ttl-visibility", "'sums'"):
            check_same_again(graph, ("sums",))


@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
def test_a_start_of_another_version_gives_state_a_time_to_live_changes_it_and_takes_it_away(operator: str) -> None:
    test: Any = FlowTest(ttl_cases.flow(operator, None))
    now_s, at = 0, ttl_cases.EPOCH

    def total(at_s: int, event_s: int) -> int:
        nonlocal now_s
        test.advance(seconds=at_s - now_s)
        now_s = at_s
        (row,) = test.epoch({"rows": [("a", at + timedelta(seconds=event_s), 1)]})["sums"]
        return int(row["amount"])

    def is_now(ttl: Ttl | None) -> None:
        test.change(ttl_cases.flow(operator, ttl))

    assert [total(0, 0), total(1, 0)] == [1, 2]
    is_now(Ttl("10 seconds"))
    assert [total(50, 0), total(59, 0), total(69, 0)] == [3, 4, 1]
    is_now(Ttl("10 seconds", clock="event"))
    assert [total(99, 5), total(199, 14), total(200, 30), total(201, 30)] == [2, 3, 4, 1]
    is_now(None)
    assert [total(500, 99), total(501, 99)] == [2, 3]
    test.close()


class Moving(FlowTest):
    """Its state goes into a savepoint, and from there to the other backend."""

    def move(self) -> None:
        of, tables = self._flow, defaultdict[str, list[SavedTable]](list)
        kept = RestoreFrom(of._root, of.graph.flow, of._backend, of._generation, of._handles, of._root)
        for each in exported(kept, of._plan):
            tables[each.spec.uid].append(each)
        of._backend = "rocksdb" if of._backend == "memory" else "memory"
        into = RestoreFrom(of._root, of.graph.flow, of._backend, of._generation + 1, (), of._root)
        of._handles = imported(into, of._epoch, 1, of.graph.max_parallelism, tables)
        of._generation += 1
        of.restore()

    def rewrite(self, flow: Flow) -> None:
        """Another version, that does not start."""
        self._flow.graph = flow.graph()
        self._flow._plan = plan(self._flow.graph)


def totals(test: FlowTest, *keys: str, event_s: float = 0) -> list[int]:
    at = ttl_cases.EPOCH + timedelta(seconds=event_s)
    found = {row["key"]: row["amount"] for row in test.epoch({"rows": [(key, at, 1) for key in keys]})["sums"]}
    return [found[key] for key in keys]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("clock", ["processing", "event"])
@pytest.mark.parametrize("operator", ttl_cases.OPERATORS)
def test_what_is_to_expire_at_a_time_still_does_after_a_savepoint(operator: str, clock: Any, backend: Any) -> None:
    test = Moving(ttl_cases.flow(operator, Ttl("10 seconds", clock=clock)), state=backend)

    def passes(seconds: int) -> None:
        nonlocal now_s
        now_s += seconds
        test.advance(seconds=seconds)

    now_s = 0
    many = [f"k{number}" for number in range(3_000)]  # so that a walk is on its way
    assert totals(test, "a", *many, event_s=now_s) == [1] * 3_001
    passes(3)
    assert totals(test, "b", event_s=now_s) == [1]
    test.move()
    passes(6)
    assert totals(test, "b", event_s=now_s) == [2]
    test.move()
    passes(1)
    assert totals(test, "z", event_s=now_s) == [1]  # by which event time is there at the next epoch's begin
    test.move()
    assert totals(test, "a", "b", *many, event_s=now_s) == [1, 3, *([1] * 3_000)]
    test.close()


class Version:
    """Of a flow whose processor keeps, or whose rows are, what `schema` says."""

    def __init__(self, operator: str, columns: str = "", uid: str = "sums", name: str = "sum") -> None:
        self.operator, self.columns, self.uid, self.name = operator, columns, uid, name

    def flow(self, ttl: Ttl | None, **evolution: Any) -> Flow:
        made = Flow("sums", evolution=Evolution(**evolution))
        rows = made.source(AnySource("rows", ROWS, is_resolved=True), uid="rows", watermarks=monotonic("at", idle=None))
        keyed = rows.key_by("key")
        if self.operator == "process":
            of = Counting(self.name, f"amount long{self.columns}", ttl)
            keyed.process(of, "key string, amount long", uid=self.uid).sink(AnySink("sums"))
            return made
        more: Any = {"rows": count()} if self.columns else {}
        totals = keyed.aggregate(uid=self.uid, ttl=ttl, amount=sum_("amount"), **more)
        totals.sink(AnySink("sums", replaces=Upsert(("key",), ("onefold_epoch",))))
        return made


class Counting(StatefulProcessor):
    def __init__(self, name: str, schema: str, ttl: Ttl | None) -> None:
        self._name, self._schema, self._ttl = name, schema, ttl

    def init(self, handle: Any) -> None:
        self._sum = handle.getValueState(self._name, self._schema, ttl=self._ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        del timerValues
        before, *more = self._sum.get() or (0, *([7] * self._schema.count(",")))
        assert all(each in (None, 7) for each in more)
        self._sum.update((before + sum(row.amount for row in rows), *more))
        yield (*key, self._sum.get()[0])


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("operator", ["process", "aggregate"])
def test_a_time_to_live_comes_with_a_column_and_goes_with_it(operator: str, moves: bool, backend: Any) -> None:
    bare, timed = Version(operator).flow(None), Version(operator, ", n long")
    begins = {"sums.n": None} if operator == "process" else {"sums.rows": None}
    test = Moving(bare, state=backend)
    assert totals(test, "a", "b") == [1, 1]
    if moves:
        test.move()
    test.change(timed.flow(Ttl("10 seconds"), begins=begins))
    test.advance(seconds=50)
    assert totals(test, "a") == [2]  # from here on they live for ten seconds
    test.advance(seconds=9)
    assert totals(test, "b") == [2]
    if moves:
        test.move()
    test.advance(seconds=1)
    assert totals(test, "a") == [1]
    drops = {"sums.n", "sums.rows"}
    if moves:
        with raises(CheckpointMismatch, "state-ttl-changed", "'sums'"):
            test.rewrite(Version(operator).flow(None, drops=drops))
            test.move()
        test.change(timed.flow(Ttl("10 seconds"), begins=begins))
        test.move()
    test.change(Version(operator).flow(None, drops=drops))
    test.advance(seconds=500)
    assert totals(test, "a", "b") == [2, 3]
    test.close()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("operator", ["process", "aggregate"])
def test_times_go_on_under_another_uid_and_another_name(operator: str, is_kept: bool, backend: Any) -> None:
    test = Moving(Version(operator).flow(Ttl("10 seconds")), state=backend)
    assert totals(test, "a", "b") == [1, 1]
    test.advance(seconds=6)
    assert totals(test, "b") == [2]
    later = Version(operator, uid="later", name="total")
    test.change(
        later.flow(Ttl("10 seconds") if is_kept else None, uids={"sums": "later"}, states={"later/sum": "total"})
    )
    test.advance(seconds=4)
    assert totals(test, "a", "b") == ([1, 3] if is_kept else [2, 3])
    if is_kept:
        test.move()
    test.advance(seconds=9)
    assert totals(test, "a", "b") == ([2, 4] if is_kept else [3, 4])
    test.close()

"""Flows that change between two starts, and go on exactly: with each backend, and again once all is moved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises

from onefold.core import CheckpointMismatch, Upsert
from onefold.engine.key_groups import key_groups_of_subtask, split_by_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend
from onefold.engine.state.storage import Storage
from onefold.engine.workers.snapshots import restore
from onefold.flow import (
    EachEpoch,
    Evolution,
    Flow,
    Session,
    StatefulProcessor,
    Stream,
    Tumbling,
    bounded,
    count,
    count_distinct,
    max_,
    mean,
    monotonic,
    sum_,
)
from onefold.flow.testing import FlowTest

Backend = Literal["memory", "rocksdb"]
ROWS = pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC"), "n": pa.int64()})
both = pytest.mark.parametrize("backend", ["memory", "rocksdb"])


Out = list[dict[str, Any]]


def version(of: Callable[[Stream], Stream], rows: pa.Schema = ROWS, appends: bool = False, **evolution: Any) -> Flow:
    flow = Flow("shop", evolution=Evolution(**evolution))
    source: Any = AnySource("rows", rows, is_resolved=True)
    made = of(flow.source(source, uid="rows", watermarks=monotonic("at")))
    key = next(iter(made.schema.names)), "window_start"
    replaces = Upsert(tuple(name for name in key if name in made.schema.names), ("onefold_epoch",))
    made.sink(AnySink("out", replaces=None if appends else replaces))
    return flow


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


class Versions:
    """Starts of versions of a flow, each of which goes on from the one before. A start comes twice: what was moved
    stays moved."""

    def __init__(self, flow: Flow, backend: Backend) -> None:
        self.test = FlowTest(flow, state=backend)

    def epoch(self, *rows: tuple[Any, ...]) -> Out:
        return [
            {k: v for k, v in row.items() if k != "onefold_epoch"} for row in self.test.epoch({"rows": rows})["out"]
        ]

    def change(self, flow: Flow) -> None:
        self.test.change(flow)
        self.test.restore()
        self.test.epoch()
        self.test.change(flow)

    def refuse(self, flow: Flow, *said: str, code: str = "state-operator-changed") -> None:
        with raises(CheckpointMismatch, code, said[0]) as raised:
            self.test.change(flow)
        assert all(each in str(raised.value) for each in said), raised.value


@pytest.fixture
def begin() -> Iterator[Callable[[Flow, Backend], Versions]]:
    begun: list[Versions] = []

    def begin(flow: Flow, backend: Backend) -> Versions:
        begun.append(Versions(flow, backend))
        return begun[-1]

    yield begin
    for each in begun:
        each.test.close()


Begin = Callable[[Flow, Backend], Versions]
EVERY: Any = {"total": sum_("n"), "rows": count(), "most": max_("n"), "middle": mean("n"), "keys": count_distinct("n")}


def aggregates(*names: str, **more: Any) -> Flow:
    made = {name: EVERY[name] for name in names}
    return version(lambda rows: rows.key_by("key").aggregate(uid="totals", **made), **more)


@both
def test_aggregates_come_and_go(begin: Begin, backend: Backend) -> None:
    test = begin(aggregates("total", "most"), backend)
    for number in range(20):
        test.epoch(("a", at(0), number), (f"k{number}", at(0), 1))
    test.refuse(
        aggregates("total", "most", "rows"), "rows=count()", "total=sum(n), most=max(n)", "begins={'totals.rows'"
    )
    begins = {"totals.rows": 20, "totals.middle": (Decimal(0), 0), "totals.keys": None}
    test.refuse(
        aggregates("total", "most", "middle", begins={"totals.middle": 0}), "a tuple of middle.sum, middle.count"
    )
    test.refuse(aggregates("total", "most", "rows", begins={"totals.rows": "x"}), "rows.count int64: 'x'")
    begins["totals.middle"] = (0, 0)
    test.change(aggregates("total", "keys", "middle", "most", "rows", begins=begins))
    assert test.epoch(("a", at(1), 100), ("new", at(1), 7)) == [
        {"key": "a", "total": 290, "keys": 1, "middle": 100.0, "most": 100, "rows": 21},
        {"key": "new", "total": 7, "keys": 1, "middle": 7.0, "most": 7, "rows": 1},
    ]
    test.refuse(aggregates("total", "rows"), "keys=count_distinct(n)", "drops={'totals.keys'}")
    test.change(aggregates("rows", "total", drops={"totals.keys", "totals.middle", "totals.most"}))
    assert test.epoch(("a", at(2), 1), ("k3", at(2), 1)) == [
        {"key": "a", "rows": 22, "total": 291},
        {"key": "k3", "rows": 21, "total": 2},
    ]


@both
def test_aggregates_and_uids_have_other_names(begin: Begin, backend: Backend) -> None:
    renamed = ROWS.set(2, pa.field("number", pa.int64()))
    test = begin(aggregates("total", "most"), backend)
    test.epoch(("a", at(0), 5))

    def of(uid: str, column: str, **more: Any) -> Flow:
        def made(rows: Stream) -> Stream:
            return rows.key_by("key").aggregate(uid=uid, sum=sum_(column), most=max_(column))

        return version(made, ROWS if column == "n" else renamed, **more)

    test.refuse(of("sums", "n"), "uids={'totals'", code="state-operator-missing")
    test.change(of("sums", "n", uids={"totals": "sums"}))
    assert test.epoch(("a", at(1), 2)) == [{"key": "a", "sum": 7, "most": 5}]
    test.refuse(of("sums", "number"), "columns={'sums.sum'")
    test.change(of("sums", "number", uids={"totals": "sums"}, columns={"sums.sum": "sum", "sums.most": "most"}))
    assert test.epoch(("a", at(2), 2)) == [{"key": "a", "sum": 9, "most": 5}]
    dropped = version(lambda rows: rows.key_by("key").aggregate(uid="other", rows=count()), drops={"sums"})
    test.change(dropped)
    assert test.epoch(("a", at(3), 2)) == [{"key": "a", "rows": 1}]


@both
def test_sums_of_a_wider_column_go_on(begin: Begin, backend: Backend) -> None:
    def of(kind: str) -> Flow:
        rows = ROWS.set(
            2, pa.field("n", pa.type_for_alias(kind) if "(" not in kind else pa.decimal128(12, int(kind[8])))
        )
        return version(lambda rows: rows.key_by("key").aggregate(uid="totals", total=sum_("n"), most=max_("n")), rows)

    for was, wider, other, value in (
        ("int32", "int64", "float64", 5),
        ("float32", "float64", "int64", 0.5),
        ("decimal(2)", "decimal(3)", "float64", Decimal("2.50")),
    ):
        test = begin(of(was), backend)
        test.epoch(("a", at(0), value))
        test.refuse(of(other), "total.sum")
        test.change(of(wider)) if was != "decimal(2)" else test.refuse(of(wider), "total.sum")
        test.change(of(wider if was != "decimal(2)" else was))
        assert test.epoch(("a", at(1), value)) == [{"key": "a", "total": 2 * value, "most": value}]


def windows(window: Any, *names: str, trigger: Any = None, results: str = "accumulating", **more: Any) -> Flow:
    made = {name: EVERY[name] for name in names}

    def of(rows: Stream) -> Stream:
        windowed: Any = rows.key_by("key").window(window, results=results, trigger=trigger)
        found: Stream = windowed.aggregate(uid="totals", **made)
        return found

    return version(of, appends=True, **more)


@both
def test_aggregates_of_windows_come_and_go(begin: Begin, backend: Backend) -> None:
    tumbling = Tumbling("10 seconds")
    test = begin(windows(tumbling, "total", "most"), backend)
    for number in range(12):
        test.epoch(("a", at(number % 3), number), (f"k{number}", at(3), 1))
    test.refuse(windows(tumbling, "total", "rows"), "most=max(n)")
    more = {"begins": {"totals.rows": 0, "totals.keys": None}, "drops": ["totals.most"]}
    test.change(windows(tumbling, "keys", "total", "rows", **more))
    out = test.epoch(("a", at(4), 100), ("a", at(10), 1))
    assert out[0].items() >= {"key": "a", "keys": 1, "total": 166, "rows": 1}.items()
    assert len(out) == 13
    out = test.epoch(("a", at(20), 1))
    assert [row["total"] for row in out] == [1]


@both
def test_aggregates_of_sessions_and_of_what_has_come_out_early_come_and_go(begin: Begin, backend: Backend) -> None:
    for window in (Session("10 seconds"), Tumbling("10 seconds")):
        early: Any = {"trigger": EachEpoch(), "results": "retracting"}
        test = begin(windows(window, "total", **early), backend)
        test.epoch(("a", at(1), 1), ("b", at(2), 2))
        test.change(windows(window, "rows", "total", begins={"totals.rows": 0}, **early))
        out = test.epoch(("a", at(3), 10))
        old, new = ({k: row[k] for k in ("key", "rows", "total")} for row in out)
        assert (old, new) == ({"key": "a", "rows": None, "total": 1}, {"key": "a", "rows": 1, "total": 11})
        test.change(windows(window, "rows", drops={"totals.total"}, **early))
        assert [row["rows"] for row in test.epoch(("a", at(4), 10))] == [1, 2]


class Keeping(StatefulProcessor):
    """Keeps what a test says, and gives what there is."""

    def __init__(self, **schemas: Any) -> None:
        self.schemas = schemas

    def init(self, handle: Any) -> None:
        asks = {"value": handle.getValueState, "list": handle.getListState, "items": handle.getOperatorListState}
        for name in self.schemas.get("gone", ()):
            handle.deleteIfExists(name)
        self.states = {name: asks[name](name, of) for name, of in self.schemas.items() if name in asks}
        if "map" in self.schemas:
            self.states["map"] = handle.getMapState("map", "k int", self.schemas["map"])
        if "map2" in self.schemas:
            self.states["map"] = handle.getMapState("map2", "k long", self.schemas["map2"])

    def handleInputRows(self, _: Any, rows: Any, __: Any) -> Any:  # noqa: N802
        for row in rows:
            if row.n >= 0:
                self.put(row.n)
        yield ("a", repr(self.told()))

    def put(self, n: int) -> None:
        made = self.schemas["make"](n)
        for name, state in self.states.items():
            if name == "value":
                state.update(made)
            elif name == "map":
                state.updateValue((n,), made)
            else:
                state.appendValue(made)

    def told(self) -> dict[str, Any]:
        reads: Any = {"value": lambda of: of.get(), "map": lambda of: [*of.iterator()]}
        return {name: reads.get(name, lambda of: [*of.get()])(state) for name, state in self.states.items()}


def keeping(evolution: dict[str, Any] | None = None, **schemas: Any) -> Flow:
    return version(
        lambda rows: rows.key_by("key").process(Keeping(**schemas), "key string, told string", uid="kept"),
        appends=True,
        **(evolution or {}),
    )


def alike(schema: str, make: Any) -> dict[str, Any]:
    return {**dict.fromkeys(("value", "list", "items", "map"), schema), "make": make}


def told(test: Versions, n: int = -1) -> Any:
    return eval(test.epoch(("a", at(0), n))[0]["told"], {"datetime": dt, "Decimal": Decimal})


@both
def test_columns_of_a_processors_states_come_go_widen_and_move(begin: Begin, backend: Backend) -> None:
    day = dt.date(2026, 1, 2)
    first = alike("id int, day date, amt decimal(9,2), note string", lambda n: (n, day, Decimal("1.25"), "x"))
    test = begin(keeping(**first), backend)
    told(test, 1), told(test, 2)
    second = alike(
        "amount decimal(12,4), day timestamp_ntz, id long, rate double, tags array<string>",
        lambda n: (Decimal("2.5000"), dt.datetime(2026, 1, 3, 4), n, 0.5, ["t"]),
    )
    test.refuse(keeping(**second), "amount decimal128(12, 4)", "amt decimal128(9, 2)", "columns={'kept.amt'")
    evolution = {
        "columns": {"kept.amt": "amount"},
        "begins": {"kept.rate": 0.25, "kept.tags": ["old"]},
        "drops": {"kept.note"},
    }
    test.change(keeping(evolution, **second))

    def old(n: int) -> tuple[Any, ...]:
        return (Decimal("1.2500"), dt.datetime(2026, 1, 2), n, 0.25, ["old"])

    new = (Decimal("2.5000"), dt.datetime(2026, 1, 3, 4), 3, 0.5, ["t"])
    moved = {"value": old(2), "list": [old(1), old(2)], "items": [old(1), old(2)]}
    assert told(test) == {**moved, "map": [((1,), old(1)), ((2,), old(2))]}
    found = told(test, 3)
    assert (found["value"], found["list"][2], found["map"][2]) == (new, new, ((3,), new))
    assert repr(found["map"][0][1]) == repr(old(1)), "also the decimals' scale"
    test.refuse(keeping(**{**second, "value": "amount decimal(9,4)"}), "amount decimal128(9, 4)", "not all values")
    test.refuse(keeping(**{**second, "value": second["value"] + ", more int not null"}), "more int32 NOT NULL")
    test.test.change(keeping(**second))
    assert told(test) == found, "refused starts have changed nothing"


@both
def test_states_of_a_processor_are_renamed_dropped_and_deleted(begin: Begin, backend: Backend) -> None:
    test = begin(keeping(**alike("n int", lambda n: (n,))), backend)
    told(test, 1)
    fewer = {"map2": "n long", "list": "n int", "make": lambda n: (n,)}
    test.refuse(keeping(**fewer), "the states list, map2", "the value 'value'", "drops={'kept/value'}")
    test.refuse(keeping(**{**fewer, "gone": ["value", "items"]}), "the map 'map'", "states={'kept/map'")
    evolution = {"states": {"kept/map": "map2"}, "drops": {"kept/value"}}
    test.change(keeping(evolution, **fewer, gone=["items"]))
    assert told(test) == {"map": [((1,), (1,))], "list": [(1,)]}
    test.change(keeping(**fewer, value="n string", gone=["value"]))
    assert told(test) == {"map": [((1,), (1,))], "list": [(1,)], "value": None}
    test.refuse(keeping(**{**fewer, "list": "n string"}), "n string", "n int32")


@both
def test_a_reduced_row_has_another_column(begin: Begin, backend: Backend) -> None:
    def of(columns: pa.Schema, **more: Any) -> Flow:
        def greatest(kept: Any, row: Any) -> Any:
            return max(kept, row, key=lambda each: each["n"])

        return version(lambda rows: rows.key_by("key").reduce(greatest, uid="most"), columns, **more)

    test = begin(of(ROWS), backend)
    test.epoch(("a", at(0), 5))
    test.change(of(ROWS.append(pa.field("note", pa.string())), begins={"most.note": "none"}))
    assert [row["note"] for row in test.epoch(("a", at(1), 4, "x"), ("b", at(1), 4, "x"))] == ["none", "x"]


@both
def test_sides_of_a_join_have_other_columns(begin: Begin, backend: Backend) -> None:
    def of(columns: pa.Schema, **more: Any) -> Flow:
        def joined(rows: Stream) -> Stream:
            left, right = (rows.key_by("key") for _ in range(2))
            return left.join_within(right, "pairs", before="1 hour")

        flow = Flow("shop", evolution=Evolution(**more))
        source: Any = AnySource("rows", columns, is_resolved=True)
        joined(flow.source(source, uid="rows", watermarks=bounded("at", "1 hour"))).sink(AnySink("out"))
        return flow

    test = begin(of(ROWS), backend)
    test.epoch(("a", at(0), 5))
    test.change(of(ROWS.append(pa.field("note", pa.string())), begins={"pairs.note": "old"}))
    out = test.epoch(("a", at(1), 6, "new"))
    assert sorted(
        (row["n"], row["note"], row["n_right"], row["note_right"]) for row in out if row["n"] != row["n_right"]
    ) == [(6, "new", 5, "old")]


def test_state_of_an_operator_of_another_kind_or_key_is_refused(begin: Begin) -> None:
    test = begin(aggregates("total"), "memory")
    test.epoch(("a", at(0), 5))
    test.refuse(
        version(lambda rows: rows.key_by("n").aggregate(uid="totals", total=sum_("n"))), "by n int64", "key string"
    )
    test.refuse(version(lambda rows: rows.key_by("key").reduce(max, uid="totals")), "'reduce'", "'aggregate'")
    test.refuse(windows(Tumbling("10 seconds"), "total"), "'window'", "'aggregate'")
    renamed = ROWS.set(0, pa.field("account", pa.string()))

    def by_account(**more: Any) -> Flow:
        return version(lambda rows: rows.key_by("account").aggregate(uid="totals", total=sum_("n")), renamed, **more)

    test.refuse(by_account(), "by account string", "key string")
    test.change(by_account(columns={"totals.key": "account"}))
    assert test.epoch(("a", at(1), 5)) == [{"account": "a", "total": 10}]


def backend_of(backend: Backend, storage: Storage, generation: int, folder: Path) -> StateBackend:
    if backend == "memory":
        return MemoryBackend(storage, generation, copies_max=5, logged_min=6)
    return RocksBackend(storage, generation, folder=str(folder), changes_max=4)


@both
def test_state_is_changed_by_any_number_of_subtasks_once(backend: Backend, tmp_path: Path) -> None:
    """Each epoch folds more rows of all keys; two subtasks become three at the change, and then one."""
    storage, generation, epoch = Storage(str(tmp_path / "state"), "shop"), 0, 0
    handles: list[str] = []
    before, after = (
        aggregates("total", "keys"),
        aggregates("rows", "total", begins={"totals.rows": 0}, drops={"totals.keys"}),
    )
    for flow, count_, epochs in ((before, 2, 9), (after, 3, 9), (after, 3, 1), (aggregates("rows", "total"), 1, 2)):
        graph, generation = flow.graph(), generation + 1
        node = next(node for node in graph.nodes if node.uid == "totals")
        backends = [backend_of(backend, storage, generation, tmp_path) for _ in range(count_)]
        logics = []
        for number, each in enumerate(backends):
            restore(each, storage, graph, node, handles, key_groups_of_subtask(number, count_, 128))
            logics.append(make_logic(graph, node, {}, each, number, count_))
        for _ in range(epochs):
            epoch += 1
            batch = pa.record_batch([[f"k{n}" for n in range(200)], [at(0)] * 200, range(200)], schema=ROWS)
            out = []
            for logic, part in zip(logics, split_by_subtask(batch, ("key",), 128, count_), strict=True):
                list(logic.take(part, 0))
                out += [row for _, rows in logic.flush(cast(Any, None)) for row in rows.to_pylist()]
            handles = [each.freeze(epoch).store() for each in backends]
        assert len(out) == 200
        for row in out:
            n = int(row["key"][1:])
            assert row["total"] == epoch * n and row.get("rows", epoch - 9) == epoch - 9
        for each in backends:
            each.close()


def test_an_operator_that_has_moved_before_leaves_its_uid_to_another() -> None:
    evolution = Evolution(uids={"a": "b"})
    assert evolution.moved(["a", "c"]) == {"a": "b", "c": "c"}
    assert evolution.moved(["a", "b"]) == {"a": "a", "b": "b"}

"""Pairs of each epoch; and what is refused of joins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import join_cases
import pyarrow as pa
import pytest
from flow_parts import AnySink, AnySource
from harness.errors import raises
from timed_rows import ROWS, time_of

from onefold.core import BadRecord, CheckpointMismatch, ConfigError
from onefold.engine.logics.joins import join_logic
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.schemas.description import OperatorDescription
from onefold.engine.state.storage import Storage
from onefold.engine.workers.describing import described
from onefold.engine.workers.snapshots import restore
from onefold.flow import Flow, Graph, KeyedStream, Node, Session, Stream, Tumbling, count, monotonic
from onefold.flow.testing import FlowTest


@pytest.mark.parametrize("restores", [False, True], ids=["", "restarts between all epochs"])
@pytest.mark.parametrize(("join", "text", "expected"), join_cases.CASES)
def test_case(join: Any, text: str, expected: dict[str, list[str]], restores: bool) -> None:
    assert join_cases.by_test(FlowTest(join_cases.flow(join)), text, restores) == expected


def streams(
    right: pa.Schema = ROWS, key: tuple[str, ...] = ("key",), on: str = "at", left: pa.Schema = ROWS
) -> tuple[Flow, KeyedStream, KeyedStream]:
    made = Flow("joins")
    found = []
    for name, schema, column in (("l", left, "at"), ("r", right, on)):
        source: Any = AnySource(name, schema, is_resolved=True)
        rows = made.source(source, uid=name, watermarks=monotonic(column, idle=None))
        found.append(rows.key_by(*(key if name == "r" else ("key",))))
    return made, *found


PAYMENTS = pa.schema(
    {"order": pa.string(), "at": pa.date32(), "paid": pa.list_(pa.int64()), "key": pa.int8(), "on": pa.bool_()}
)


def test_what_comes_out_has_the_key_once_and_other_names_for_columns_that_are_there() -> None:
    _, left, right = streams(PAYMENTS, ("order",))
    within = left.join_within(right, "within")
    assert within.schema.names == ["key", "at", "amount", "at_right", "paid", "key_right", "on"]
    window = left.join(right, Tumbling("1 day"), "window", how="full", columns=["paid"])
    assert [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in window.schema] == [
        "key: string",
        "window_start: timestamp[us, tz=UTC] not null",
        "window_end: timestamp[us, tz=UTC] not null",
        "at: timestamp[us, tz=UTC]",
        "amount: int64",
        "paid: list<item: int64>",
    ]


def test_rows_of_any_types_come_out_as_they_went_in() -> None:
    made, left, right = streams(PAYMENTS, ("order",))
    left.join(right, Tumbling("1 day"), "join", how="full").sink(AnySink("joined"))
    paid = {"order": "a", "at": datetime(2024, 1, 1).date(), "paid": [1, None], "key": 3, "on": None}
    order = {"key": "a", "at": datetime(2024, 1, 1, 23, tzinfo=UTC), "amount": 2**62}
    with closing(FlowTest(made)) as test:
        (row,) = test.epoch({"l": [order], "r": [paid]}, ended=["l", "r"])["joined"]
    assert row == {
        "key": "a",
        "window_start": datetime(2024, 1, 1, tzinfo=UTC),
        "window_end": datetime(2024, 1, 2, tzinfo=UTC),
        "at": order["at"],
        "amount": 2**62,
        "at_right": paid["at"],
        "paid": [1, None],
        "key_right": 3,
        "on": None,
    }


def test_a_null_is_no_key_and_equals_none() -> None:
    made, left, right = streams()
    left.join(right, Tumbling("10 seconds"), "join", how="full").sink(AnySink("joined"))
    left.join_within(right, "within", before="1 day", after="1 day").sink(AnySink("within"))
    left.as_of(right, "as_of").sink(AnySink("as_of"))
    row = (None, time_of(1), 1)
    with closing(FlowTest(made)) as test:
        written = test.epoch({"l": [row], "r": [row]}, ended=["l", "r"])
    assert [(each["amount"], each["amount_right"]) for each in written["joined"]] == [(1, None), (None, 1)]
    assert written["within"] == [] and [each["amount_right"] for each in written["as_of"]] == [None]


def test_results_have_a_time_for_the_windows_behind_them() -> None:
    made, left, right = streams()
    paired = left.join(right, Tumbling("10 seconds"), "paired")
    paired.window(Tumbling("20 seconds")).aggregate(uid="n", n=count()).sink(AnySink("n"))
    valued = left.as_of(right, "valued")
    valued.key_by("key").window(Tumbling("10 seconds")).aggregate(uid="v", n=count()).sink(AnySink("v"))
    rows, more = [("a", time_of(1), 1), ("a", time_of(12), 2)], [("z", time_of(40), 1)]
    with closing(FlowTest(made)) as test:
        epochs = [test.epoch({"l": of, "r": of}) for of in (rows, more)]
    assert [[row["n"] for row in written["n"]] for written in epochs] == [[], [2]]
    assert [[(row["key"], row["n"]) for row in written["v"]] for written in epochs] == [[("a", 1)], [("a", 1)]]
    with raises(ConfigError, "time-column-missing", "key", "at_right"):
        left.join_within(right, "within").window(Tumbling("10 seconds"))


REFUSED: dict[str, tuple[Callable[[KeyedStream, KeyedStream], Stream], str, str]] = {
    "how": (lambda left, right: left.join(right, Tumbling("1 day"), "u", how="outer"), "option-value", "outer"),  # type: ignore[arg-type]
    "how of as_of": (lambda left, right: left.as_of(right, "u", how="full"), "option-value", "full"),  # type: ignore[arg-type]
    "no uid": (lambda left, right: left.as_of(right), "uid-missing", "join"),
    "session": (lambda left, right: left.join(right, Session("1 day"), "u"), "option-value", "Session"),  # type: ignore[arg-type]
    "span": (lambda left, right: left.join_within(right, "u", before="soon"), "option-value", "soon"),
    "long span": (lambda left, right: left.join_within(right, "u", after=f"{10**9} weeks"), "option-value", "36,000"),
    "column": (lambda left, right: left.as_of(right, "u", columns=["rate"]), "no-such-column", "rate"),
    "key column": (lambda left, right: left.as_of(right, "u", columns=["key"]), "option-value", "key"),
    "twice": (lambda left, right: left.as_of(right, "u", columns=["at", "at"]), "column-name-taken", "at_right"),
    "one side": (lambda left, right: left.join_within(right, "u", late="a", other_late="a"), "option-value", "late"),
    "no key": (lambda left, right: left.as_of(Stream(right._nodes, right._edge), "u"), "stream-not-keyed", "key_by"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, code, told = REFUSED[what]
    _, left, right = streams()
    with raises(ConfigError, code, told):
        call(left, right)


def test_keys_of_other_types_and_streams_of_other_flows_are_refused() -> None:
    _, left, right = streams(PAYMENTS)
    with raises(ConfigError, "join-key-types", "key string", "key int8"):
        left.as_of(right, "u")
    with raises(ConfigError, "stream-of-another-flow", "as_of"):
        left.as_of(streams()[2], "u")
    made = Flow("joins")
    source: Any = AnySource("l", ROWS, is_resolved=True)
    timeless = made.source(source, uid="l").key_by("key")
    with raises(ConfigError, "watermarks-missing", "'l'"):
        timeless.as_of(timeless, "u")
    windows = pa.schema({"key": pa.string(), "at": pa.timestamp("us"), "window_end": pa.int64()})
    _, left, right = streams(left=windows)
    with raises(ConfigError, "column-name-taken", "window_end"):
        left.join(right, Tumbling("1 day"), "u")


def test_a_row_without_a_time_is_told() -> None:
    made, left, right = streams()
    left.join_within(right, "within").sink(AnySink("within"))
    with closing(FlowTest(made)) as test, raises(BadRecord, "event-time-null", "at"):
        test.epoch({"r": [("a", None, 1)]})


@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)])
def test_rows_of_times_that_are_far_away_are_joined(at: datetime) -> None:
    made, left, right = streams()
    left.join_within(right, "within", before="30000 weeks", after="1 week").sink(AnySink("within"))
    left.join(right, Tumbling("1 day"), "window").sink(AnySink("window"))
    left.as_of(right, "as_of").sink(AnySink("as_of"))
    with closing(FlowTest(made)) as test:
        written = test.epoch({"l": [("a", at, 1)], "r": [("a", at, 2)]}, ended=["l", "r"])
    for sink in ("within", "as_of"):
        assert [row["amount_right"] for row in written[sink]] == [2]


@pytest.mark.parametrize("kind", ["within", "window", "as_of"])
def test_a_large_value_of_many_pairs_comes_out_in_batches_that_are_not_large(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_logic, "PENDING_BYTES_MAX", 10_000)
    largest = []
    out = join_logic.JoinLogic._made
    monkeypatch.setattr(
        join_logic.JoinLogic, "_made", lambda *given, **more: largest.append(made := out(*given, **more)) or made
    )
    large = pa.schema({"key": pa.string(), "at": pa.timestamp("us", "UTC"), "text": pa.string()})
    made, left, right = streams(large)
    joins = {
        "within": lambda: left.join_within(right, "join"),
        "window": lambda: left.join(right, Tumbling("1 day"), "join"),
        "as_of": lambda: left.as_of(right, "join"),
    }
    joins[kind]().sink(AnySink("joined"))
    with closing(FlowTest(made)) as test:
        rows = {"l": [("a", time_of(1), n) for n in range(100)], "r": [("a", time_of(1), "x" * 1_000)]}
        written = test.epoch(rows, ended=["l", "r"])["joined"]
    assert sorted(row["amount"] for row in written) == [*range(100)]
    assert max(batch.nbytes for batch in largest) < 20_000


def test_explain_tells_joins() -> None:
    made, left, right = streams()
    left.join_within(right, "within", before="1 minute").sink(AnySink("within"))
    left.join(right, Tumbling("1 day"), "window", how="left").sink(AnySink("window"))
    told = made.explain()
    assert "within: joins by key and key: the other's times from 1 minute before to 0 seconds after" in told
    assert "window: joins by key and key: windows of 1 day, of 'at' and 'at'; left; by slices of 86400 s" in told
    assert "from l, by key key" in told and "from r, by key key" in told


def test_state_of_another_join_is_refused(tmp_path: Path) -> None:
    def kept(join: Callable[[KeyedStream, KeyedStream], Stream]) -> Any:
        made, left, right = streams()
        joined = join(left, right)
        joined.sink(AnySink("joined"))
        for side, _ in joined._nodes.made[joined._edge.source].sides:
            joined.side(side).sink(AnySink(side))
        return made.graph()

    joins: list[Callable[[KeyedStream, KeyedStream], Stream]] = [
        lambda left, right: left.join_within(right, "join", before="1 minute"),
        lambda left, right: left.join_within(right, "join", before="2 minutes"),
        lambda left, right: left.as_of(right, "join"),
        lambda left, right: left.as_of(right, "join", columns=["amount"]),
        lambda left, right: left.join(right, Tumbling("1 day"), "join"),
    ]
    graphs = [*map(kept, joins)]
    assert len({description(graph).to_json() for graph in graphs}) == len(joins)
    others = kept(lambda left, right: left.join(right, Tumbling("1 day"), "join", how="full", late="late"))
    assert description(others) == description(graphs[-1]), "what comes out may change"
    storage = Storage(str(tmp_path), "joins")
    before = restored(graphs[0], storage)
    handle = before.freeze(1).store()
    restored(graphs[0], storage, handle)
    with raises(CheckpointMismatch, "state-operator-changed", "pairs"):
        restored(graphs[1], storage, handle)


def restored(graph: Graph, storage: Storage, *handles: str) -> MemoryBackend:
    backend = MemoryBackend(storage, 1, 128)
    restore(backend, storage, graph, keeping(graph), handles, range(128))
    return backend


def keeping(graph: Graph) -> Node:
    return next(node for node in graph.nodes if node.keeps_state)


def description(graph: Graph) -> OperatorDescription:
    return described(graph, keeping(graph))

"""A flow's stages, with a model of Spark between them: the rows of random flows are those of plain Python, in any
arrangement of partitions and batches; and a batch that runs again, from the state before it, gives the same."""

from __future__ import annotations

import copy
import datetime as dt
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spark_model import Spark

from onefold.core.checks import present
from onefold.core.source import Part, RecordColumns, Split
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.dataflow import cutting
from onefold.engine.dataflow.chains import plan
from onefold.flow import (
    Flow,
    IdsWithin,
    OrderedIds,
    Side,
    StatefulProcessor,
    Stream,
    count,
    last,
    max_,
    mean,
    min_,
    sum_,
)
from onefold.sinks import PostgresSink
from onefold.sources.kafka import OffsetRange
from onefold.spark.flows.packing import BAD, PackedRow, packed_batch
from onefold.spark.flows.spark_operator import _unpack, for_tasks

RECORDS = pa.schema(
    {
        "id": pa.int64(),
        "account": pa.int64(),
        "amount": pa.decimal128(12, 2),
        "weight": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "note": pa.string(),
    }
)
PARTITIONS = 3
TIMER_MS = 1_500


@dataclass(frozen=True)
class Records:
    """A source of one topic: of each partition its records."""

    partitions: tuple[tuple[dict[str, Any], ...], ...]
    name: str = "orders"
    on_error: str = "fail"
    bad_records_max: int = 0
    step: int = 2  # records in one part
    columns: pa.Schema = RECORDS

    def arrow_schema(self) -> pa.Schema:
        return self.columns

    def record_columns(self) -> RecordColumns:
        return RecordColumns(("topic", "partition", "offset"), "key")

    def read(self, split: Split, *, guarded: bool) -> Iterator[Part]:
        assert not guarded
        span, none = split.range, pa.RecordBatch.from_pylist([], BAD_COLUMNS)
        for at in range(span.start, span.end, self.step):
            rows = self.partitions[span.partition][at : min(at + self.step, span.end)]
            yield Part(pa.RecordBatch.from_pylist(list(rows), self.columns), none)


class Runs(StatefulProcessor):
    """Numbers an account's records, keeps their ids and how often each note came, and tells by a timer."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "records long, amount decimal(12,2)")
        self.ids = handle.getListState("ids", "id long")
        self.notes = handle.getMapState("notes", "note string", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        number, amount = self.count.get() or (0, None)
        for row in rows:
            number, amount = number + 1, row.amount
            self.ids.appendValue((row.id,))
            (times,) = self.notes.getValue((row.note,)) or (0,)
            self.notes.updateValue((row.note,), (times + 1,))
            yield Side("each", (row.id, number, row.at))
        self.count.update((number, amount))
        if not [*self.handle.listTimers()]:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + TIMER_MS)
        assert key

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:  # noqa: N802, N803
        assert timerValues.getCurrentProcessingTimeInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        notes = sorted((str(note), times) for (note,), (times,) in self.notes.iterator())
        yield *key, *self.count.get(), f"{[id_ for (id_,) in self.ids.get()]} {notes}"
        self.ids.clear()


NULL_OR = {
    "amount": st.decimals(-1000, 1000, places=2),
    "weight": st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "at": st.datetimes(dt.datetime(1969, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(ZoneInfo("UTC"))).map(
        lambda at: at.replace(fold=0)
    ),
    "note": st.sampled_from(["", "a", "ü\0"]),
}
RECORD = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1), "account": st.none() | st.integers(0, 3)}
    | {name: st.none() | values for name, values in NULL_OR.items()}
)
TOPIC = st.tuples(*[st.lists(RECORD, max_size=7).map(tuple)] * PARTITIONS)


def build(source: Any, least: Decimal, rebalances: bool) -> Flow:
    flow = Flow("shop", max_parallelism=5)
    orders = flow.source(source, uid="orders")
    some = orders.filter(pc.field("amount") > least)
    some = some.rebalance().filter(pc.field("id") != 0) if rebalances else some
    sink(some.with_columns(text=pc.field("note")).flat_map(_twice, schema="id long, text string"), "plain")
    totals = (
        some.union(orders)
        .key_by("account")
        .aggregate(
            uid="plain",  # as a sink is called
            total=sum_("amount"),
            records=count(),
            notes=count("note"),
            least=min_("weight"),
            most=max_("at"),
            mean=mean("amount"),
        )
    )
    sink(totals, "totals", "account")
    numbers = totals.key_by("records").reduce(lambda kept, row: max(kept, row, key=_account), uid="numbers")
    sink(numbers, "numbers", "records")
    sink(orders.key_by("account").aggregate(uid="lasts", last=last("note")), "lasts", "account")
    runs = orders.key_by("account").process(
        Runs(),
        schema="account long, records long, amount decimal(12,2), seen string",
        sides={"each": "id long, number long, at timestamp"},
        uid="runs",
    )
    sink(runs, "runs")
    sink(runs.side("each").rebalance(), "each")
    return flow


def sink(stream: Stream, table: str, key: str | None = None) -> None:
    more: dict[str, Any] = {} if key is None else {"mode": "upsert", "key": key, "order": "onefold_epoch"}
    stream.sink(PostgresSink("postgresql://localhost/x", table, delivery="two_phase", **more))


def _account(row: dict[str, Any]) -> str:
    return str(row["account"])


def _twice(row: dict[str, Any]) -> Iterator[Any]:
    yield {"id": row["id"], "text": row["text"]}
    if row["text"]:
        yield row["id"], row["text"] * 2


class Model:
    """The same flow, in plain Python."""

    def __init__(self, least: Decimal, rebalances: bool) -> None:
        self.least, self.rebalances = least, rebalances
        self.totals: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        self.numbers: dict[Any, dict[str, Any]] = {}
        self.runs: dict[Any, Any] = {}

    def batch(self, records: list[dict[str, Any]], now_ms: int) -> dict[str, list[dict[str, Any]]]:
        some = [r for r in records if r["amount"] is not None and r["amount"] > self.least]
        some = [r for r in some if r["id"] != 0] if self.rebalances else some
        plain = [{"id": r["id"], "text": text} for r in some for text in _texts(r["note"])]
        for r in (*some, *records):
            self.totals[r["account"]].append(r)
        totals = [_total(account, self.totals[account]) for account in {r["account"] for r in records}]
        changed = {row["records"] for row in totals}
        for row in totals:
            kept = self.numbers.get(row["records"])
            self.numbers[row["records"]] = row if kept is None else max(kept, row, key=_account)
        each, told = self._runs(records, now_ms)
        numbers = [self.numbers[number] for number in changed]
        lasts = [{"account": a, "last": note} for a, note in {r["account"]: r["note"] for r in records}.items()]
        return {"plain": plain, "totals": totals, "numbers": numbers, "lasts": lasts, "each": each, "runs": told}

    def _runs(self, records: list[dict[str, Any]], now_ms: int) -> tuple[list[Any], list[Any]]:
        each, told = [], []
        for r in records:
            run = self.runs.setdefault(r["account"], {"records": 0, "ids": [], "notes": defaultdict(int), "at": None})
            run |= {"records": run["records"] + 1, "amount": r["amount"], "at": run["at"] or now_ms + TIMER_MS}
            run["ids"].append(r["id"])
            run["notes"][str(r["note"])] += 1
            each.append({"id": r["id"], "number": run["records"], "at": r["at"]})
        for account, run in self.runs.items():
            if run["at"] is not None and run["at"] <= now_ms:
                seen = f"{run['ids']} {sorted(run['notes'].items())}"
                told.append({"account": account, "records": run["records"], "amount": run["amount"], "seen": seen})
                run |= {"ids": [], "at": None}
        return each, told


def _texts(note: str | None) -> list[str | None]:
    return [note, note * 2] if note else [note]


def _total(account: Any, records: list[dict[str, Any]]) -> dict[str, Any]:
    amounts = [r["amount"] for r in records if r["amount"] is not None]
    weights = [r["weight"] for r in records if r["weight"] is not None]
    ats = [r["at"] for r in records if r["at"] is not None]
    exact = [w for w in weights if w == w]
    place = Decimal("0.000001")
    return {
        "account": account,
        "total": sum(amounts, Decimal("0.00")) if amounts else None,
        "records": len(records),
        "notes": sum(r["note"] is not None for r in records),
        "least": min(exact) if exact else float("nan") if weights else None,
        "most": max(ats, default=None),
        "mean": (sum(amounts) / len(amounts)).quantize(place, "ROUND_HALF_UP") if amounts else None,
    }


def as_text(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """The rows of each sink in an order; all values count, the sign of a zero aside: both are the least."""
    return {name: sorted(str(row).replace("-0.0", "0.0") for row in of) for name, of in rows.items()}


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TOPIC, st.integers(-500, 500).map(Decimal), st.booleans(), st.randoms(use_true_random=False), st.data())
def test_random_records_give_the_rows_of_plain_python(
    monkeypatch: pytest.MonkeyPatch, topic: Any, least: Decimal, rebalances: bool, chance: random.Random, data: Any
) -> None:
    source = Records(topic)
    spark, model = Spark(build(source, least, rebalances), source, chance, monkeypatch), Model(least, rebalances)
    at, now_ms = [0] * PARTITIONS, 1_000
    while any(begin < len(records) for begin, records in zip(at, topic, strict=True)):
        ends = [data.draw(st.integers(begin, len(records))) for begin, records in zip(at, topic, strict=True)]
        ranges = [OffsetRange("orders", p, at[p], ends[p]) for p in range(PARTITIONS)]
        records = [record for p in range(PARTITIONS) for record in topic[p][at[p] : ends[p]]]
        before = copy.deepcopy(spark.store)
        found = spark.batch(ranges, now_ms)
        assert as_text(found) == as_text(model.batch(records, now_ms))
        spark.store = before
        assert as_text(spark.batch(ranges, now_ms)) == as_text(found)
        if data.draw(st.booleans()):
            spark.move(now_ms)
        at, now_ms = ends, now_ms + 1_000


class Quiet(StatefulProcessor):
    """Tells when an account has had no record for a while: each record puts its timer off."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        assert key and [*rows]
        for at_ms in [*self.handle.listTimers()]:
            self.handle.deleteTimer(at_ms)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + TIMER_MS)
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:  # noqa: N802, N803
        assert timerValues
        yield *key, expiredTimerInfo.getExpiryTimeInMs()


def test_a_timer_that_is_put_off_leaves_none_in_sparks_store(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {**dict.fromkeys(RECORDS.names), "id": 1, "account": 1}
    source = Records(((record,) * 4, (), ()))
    flow = Flow("shop")
    orders = flow.source(source, uid="orders")  # type: ignore[arg-type]
    sink(orders.key_by("account").process(Quiet(), schema="account long, at long", uid="quiet"), "quiet")
    spark = Spark(flow, source, random.Random(0), monkeypatch)
    for number in range(4):
        assert spark.batch([OffsetRange("orders", 0, number, number + 1)], number * 1_000) == {"quiet": []}
        assert [at_ms for _, at_ms in spark.store[0, "timers"]] == [number * 1_000 + TIMER_MS]
    assert spark.batch([], 4_500) == {"quiet": [{"account": 1, "at": 4_500}]}
    assert not spark.store[0, "timers"]


class Calls(StatefulProcessor):
    """Tells of each call how many rows it had, and the sum of their weights in their order."""

    def init(self, handle: Any) -> None:
        assert handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:  # noqa: N802, N803
        assert timerValues
        given = [row.weight for row in rows]
        yield key[0], len(given), sum(given)


def test_a_batch_that_runs_again_has_the_same_calls_however_its_records_were_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    topic = tuple(
        tuple({"id": n, "account": n % 2, "weight": 0.1 * (n + p) ** 3} for n in range(17)) for p in range(PARTITIONS)
    )
    for step in (1, 2, 4, 100):
        source: Any = Records(topic, step=step)
        flow = Flow("shop", max_parallelism=5)
        records = flow.source(source, uid="orders")
        both = records.filter(pc.field("id") > 5).union(records)
        sink(both.key_by("account").process(Calls(), "account long, rows long, weight double", uid="calls"), "calls")
        sums = both.key_by("account").aggregate(uid="sums", weight=sum_("weight"), mean=mean("weight"))
        sink(sums, "sums", "account")
        ranges = [OffsetRange("orders", p, 0, 17) for p in range(PARTITIONS)]
        with pytest.MonkeyPatch.context() as small:
            small.setattr(cutting, "CUT_ROWS", 3)
            spark = Spark(flow, source, random.Random(step), monkeypatch)
            found.append(as_text(spark.batch(ranges, 1_000)))
        passed = spark.seen.passed
        assert [(node.name, passed[2 * stream]) for node, stream in spark.plan.edges] == [
            ("filter-1", 51),
            ("union-2", 33),
            ("union-2", 51),
            ("calls", 84),
            ("calls", len(found[-1]["calls"])),
            ("sums", 84),
            ("sums", 2),
        ]
        assert all(passed[2 * stream + 1] > 0 for _, stream in spark.plan.edges)
    assert found == [found[0]] * 4


IDS = pa.schema({"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "key": pa.binary()})
ID = st.builds(lambda of, number: of + b":%d" % number, st.sampled_from([b"", b"a:b", b"\xff"]), st.integers(0, 5))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*[st.lists(ID, max_size=12)] * PARTITIONS), st.randoms(use_true_random=False), st.data())
def test_repeats_are_dropped_as_in_plain_python_however_a_topic_is_cut(
    monkeypatch: pytest.MonkeyPatch, ids: Any, chance: random.Random, data: Any
) -> None:
    topic = tuple(
        tuple({"topic": "orders", "partition": p, "offset": at, "key": key} for at, key in enumerate(keys))
        for p, keys in enumerate(ids)
    )
    source: Any = Records(topic, columns=IDS)
    flow = Flow("shop", max_parallelism=5)
    records = flow.source(source, uid="orders")
    sink(records.deduplicate(OrderedIds(), uid="ordered"), "ordered")
    sink(records.select("key").deduplicate(IdsWithin("2 seconds"), uid="within"), "within")
    spark, at, now_ms = Spark(flow, source, chance, monkeypatch), [0] * PARTITIONS, 1_000
    highest: dict[Any, int] = {}
    seen: dict[bytes, int] = {}
    while any(begin < len(keys) for begin, keys in zip(at, ids, strict=True)):
        ends = [data.draw(st.integers(begin, len(keys))) for begin, keys in zip(at, ids, strict=True)]
        ordered, within = [], []
        for row in (row for p in range(PARTITIONS) for row in topic[p][at[p] : ends[p]]):
            of, _, number = row["key"].rpartition(b":")
            if int(number) > highest.get((row["partition"], of), -1):
                highest[row["partition"], of] = int(number)
                ordered.append(row)
            if row["key"] not in seen or seen[row["key"]] + 2_000 <= now_ms:
                seen[row["key"]] = now_ms
                within.append({"key": row["key"]})
        ranges, before = (
            [OffsetRange("orders", p, at[p], ends[p]) for p in range(PARTITIONS)],
            copy.deepcopy(spark.store),
        )
        found = spark.batch(ranges, now_ms)
        assert as_text(found) == as_text({"ordered": ordered, "within": within})
        spark.store = before
        assert as_text(spark.batch(ranges, now_ms)) == as_text(found)
        at, now_ms = ends, now_ms + 900


@pytest.mark.parametrize(
    ("on_error", "told"), [("skip", ["orders: unreadable records, skipped: 3"]), ("dead_letter", [])]
)
def test_what_is_skipped_before_an_operator_of_sparks_the_tasks_log_says(
    on_error: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    flow, letters = Flow("shop"), PostgresSink("postgresql://localhost/x", "bad")
    source: Any = Records((), on_error=on_error)
    rows = flow.source(source, "orders", letters if on_error == "dead_letter" else None)
    rows.spark_sql("SELECT id FROM source", "id long").sink(PostgresSink("postgresql://localhost/x", "t"))
    graph = flow.graph()
    (node, _) = present(graph.querying(), "Spark makes rows")
    made = plan(for_tasks(graph), sinks_apart=True)
    batches = [packed_batch([PackedRow("", 0, BAD, 0, 3)])]
    assert list(_unpack(made, made.chain_of(node.number), graph.schema(node.inputs[0]), None, batches)) == []
    assert caplog.messages == told

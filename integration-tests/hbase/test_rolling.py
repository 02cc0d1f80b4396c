"""HBaseSink(mode="rolling") on a real server: whatever dies, wakes late or comes twice."""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import thriftpy2
from harness.errors import raises
from harness.tables.merging_bench import Bench, dies, held
from thriftpy2.rpc import make_client

from onefold.clients.hbase import Cells, ColumnFamily, HBaseSettings, HBaseTable, table_admin
from onefold.clients.hbase.rows.cells import Rows
from onefold.core import ConfigError, EpochRecord, EpochState, Fenced, Positions, Range, WriteThrough
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.modes import rolling

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

ROWS = pa.schema(
    [
        ("k", pa.string()),
        ("amount", pa.int64()),
        ("n", pa.int32()),
        ("low", pa.int64()),
        ("high", pa.string()),
        ("note", pa.string()),
        ("at", pa.int64()),
        ("tags", pa.string()),
    ]
)
SUMS = pa.schema([("k", pa.string()), ("low", pa.int64())])
INCREMENT = """
struct TColumnIncrement { 1: required binary family, 2: required binary qualifier, 3: optional i64 amount }
struct TIncrement { 1: required binary row, 2: required list<TColumnIncrement> columns }
service Counters { void increment(1: required binary table, 2: required TIncrement tincrement) }
"""
MERGE = {"amount": "sum", "n": "count", "low": "min", "high": "max", "note": "last", "tags": "union"}
Row = tuple[Any, ...]
Make = Callable[..., Bench]


def rows_of(seed: int, count: int = 60) -> list[Row]:
    """The number `at` is one row's alone."""
    chance = random.Random(seed)
    return [
        (
            f"key {chance.randrange(6 + 2 * seed)}",  # of some that earlier ones lack
            chance.choice([None, chance.randrange(-100, 100)]),
            chance.choice([None, 1]),
            chance.randrange(1000),
            chance.choice([None, chance.choice("abcdef")]),
            chance.choice([None, f"note {at}"]),
            seed * 1000 + at,
            chance.choice([None, "ä", 'b"', "c"]),
        )
        for at in range(count)
    ]


def by_hand(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    found = {}
    for key in {row[0] for row in rows}:
        amount, n, low, high, notes, at, tags = (
            [row[i] for row in rows if row[0] == key] for i in range(1, len(ROWS.names))
        )
        found[key] = {
            "amount": sum(v for v in amount if v is not None) if any(v is not None for v in amount) else None,
            "n": sum(v is not None for v in n),
            "low": min(low),
            "high": max((v for v in high if v is not None), default=None),
            "note": notes[at.index(max(at))],
            "at": max(at),
            "tags": sorted({v for v in tags if v is not None}) if any(tags) else None,
        }
    return found


def sums(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    return {key: {"low": sum(row[1] for row in rows if row[0] == key)} for key in {row[0] for row in rows}}


@pytest.fixture
def make(hbase_server: Any) -> Make:
    def of(schema: pa.Schema = ROWS, **settings: Any) -> Bench:
        return Bench(hbase_server, schema, **settings)

    return of


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a task of a few keys reads and writes several times."""
    monkeypatch.setattr(rolling, "KEYS_MAX", 3)


def three_generations_in_one_epoch(
    bench: Bench, patch: pytest.MonkeyPatch, t_of_the_last: int | None = None
) -> list[Row]:
    """A first epoch; then one whose task dies in the middle, twice, with flushes and compactions between, and ends.

    Returns all rows, with the columns that the bench takes.
    """
    first, second = (
        [tuple(row[ROWS.names.index(n)] for n in bench.schema.names) for row in rows_of(i)] for i in (1, 2)
    )
    bench.write(first, epoch=1)
    bench.flush()
    for generation, parts in ((1, 2), (2, 1)):
        with dies(patch, parts):
            bench.write(second, epoch=2, generation=generation)
        bench.flush()
        bench.major_compact()
    bench.write(second, epoch=2, generation=3, timestamp_ms=t_of_the_last)
    bench.major_compact()
    return [*first, *second]


FIRST, SECOND, THIRD = rows_of(1), rows_of(2), rows_of(3)


def test_three_generations_that_die_in_one_epoch_add_each_row_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(mode="rolling", merge=MERGE, order="at")
    rows = three_generations_in_one_epoch(bench, monkeypatch)
    assert bench.read() == by_hand(rows)
    bench.write(THIRD, epoch=3, generation=3)
    assert bench.read() == by_hand([*rows, *THIRD])


def test_a_function_of_the_users_own_adds_each_row_once_as_well(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(base: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"low": pc.add_checked(base["low"], new["low"])})

    bench = make(SUMS, mode="rolling", merge=merged)
    rows = three_generations_in_one_epoch(bench, monkeypatch)
    assert bench.read() == sums(rows)


def test_without_the_previous_value_rows_are_added_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "is_replay", lambda times, _: np.zeros(len(times), bool))
    bench = make(mode="rolling", merge=MERGE, order="at")
    rows = three_generations_in_one_epoch(bench, monkeypatch)
    assert bench.read() != by_hand(rows)


def test_with_a_time_taken_anew_rows_are_added_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(mode="rolling", merge=MERGE, order="at")
    rows = three_generations_in_one_epoch(bench, monkeypatch, t_of_the_last=2001)
    assert bench.read() != by_hand(rows)


def test_counter_increments_add_rows_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HBase itself has for sums, in the same crashes: it cannot know that a row was counted before."""
    bench = make(SUMS, mode="rolling", merge={"low": "sum"}, columns={"low": "f:low long"})
    address, _, port = bench.sink.settings.hbase.servers.rpartition(":")
    counters = thriftpy2.load_fp(io.StringIO(INCREMENT), "counters_thrift")
    client = make_client(counters.Counters, address, int(port))

    def roll(_: Any, keys: pa.BinaryArray, partials: pa.RecordBatch) -> None:
        rolling.failpoint("hbase:read")
        for key, amount in zip(keys.to_pylist(), partials["low"].to_pylist(), strict=True):
            column = counters.TColumnIncrement(b"f", b"low", int(amount))
            client.increment(bench.table.name.encode(), counters.TIncrement(key, [column]))

    with closing(client), monkeypatch.context() as patch:
        patch.setattr(rolling.RollingWriter, "_roll", roll)
        rows = three_generations_in_one_epoch(bench, monkeypatch)
    assert bench.read() != sums(rows)
    bench = make(SUMS, mode="rolling", merge={"low": "sum"}, columns={"low": "f:low long"})
    rows = three_generations_in_one_epoch(bench, monkeypatch)
    assert bench.read() == sums(rows)


def test_a_task_that_wakes_in_a_later_epoch_is_fenced_and_changes_nothing(make: Make) -> None:
    bench = make(mode="rolling", merge=MERGE, order="at")
    bench.write(FIRST, epoch=1)
    bench.write(SECOND, epoch=2)
    with raises(Fenced, "epoch-overtaken"):
        bench.write(FIRST, epoch=1)
    assert bench.read() == by_hand([*FIRST, *SECOND])


def test_what_a_task_of_an_earlier_epoch_has_under_way_lands_below(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(mode="rolling", merge=MERGE, order="at")
    bench.write(FIRST, epoch=1)
    with held(monkeypatch) as zombie, ThreadPoolExecutor(1) as pool:
        late = pool.submit(bench.write, SECOND, epoch=2, generation=1)
        zombie.wait()
        bench.write(SECOND, epoch=2, generation=2)
        bench.flush()
        bench.write(THIRD, epoch=3, generation=2)
        zombie.let_go()
        with pytest.raises(Fenced):  # at its second part: the first was read before
            late.result()
    bench.major_compact()
    assert bench.read() == by_hand([*FIRST, *SECOND, *THIRD])


def test_a_later_epoch_that_comes_between_a_tasks_two_reads_fences_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found its own epoch's rows, and would take what a later one replaced for what its own did."""
    bench = make(mode="rolling", merge=MERGE, order="at")
    bench.write(FIRST, epoch=1)
    bench.write(SECOND, epoch=2, generation=1)
    read = HBaseTable.read

    def reads(table: HBaseTable, *asked: Any) -> Rows:
        found = read(table, *asked)
        with monkeypatch.context() as now:
            now.setattr(HBaseTable, "read", read)
            bench.write([*SECOND, *THIRD], epoch=3, generation=2)
        return found

    put = HBaseTable.put

    def puts(table: HBaseTable, keys: pa.BinaryArray, cells: Sequence[Cells], timestamp_ms: int) -> None:
        assert timestamp_ms == 3000, "what it would put at its own time is not what its epoch came to"
        put(table, keys, cells, timestamp_ms)

    with monkeypatch.context() as patched:
        patched.setattr(HBaseTable, "put", puts)
        patched.setattr(HBaseTable, "read", reads)
        with raises(Fenced, "epoch-overtaken"):
            bench.write(SECOND, epoch=2, generation=1)
    assert bench.read() == by_hand([*FIRST, *SECOND, *SECOND, *THIRD])


def test_rows_that_somebody_else_wrote_are_rolled_on_or_refused_but_never_hidden(make: Make) -> None:
    bench = make(SUMS, mode="rolling", merge={"low": "sum"})
    column = bench.mapping.columns[0]
    theirs = Cells(column.family, column.qualifier, column.encode(pa.array([100])))
    bench.table.put(pa.array([b"a"]), [theirs], timestamp_ms=1)
    bench.write([("a", 1)], epoch=1)
    bench.write([("a", 1)], epoch=1)
    assert bench.read() == {"a": {"low": 101}}
    bench.table.put(pa.array([b"a"]), [theirs], timestamp_ms=5000)
    with raises(ConfigError, "newer-cell-in-table"):
        bench.write([("a", 1)], epoch=2)


def test_a_family_that_would_hide_what_the_sink_knows_of_its_rows_is_refused(
    hbase_server: Any,
) -> None:
    """Ids and times that are looked for in another family are not found, and everything is applied again."""
    servers, table = HBaseSettings(hbase_server.servers), f"test_{uuid.uuid4().hex[:12]}"
    table_admin.ensure(servers, table, [ColumnFamily(b"a"), ColumnFamily(b"f")])

    def summed(*others: str) -> HBaseSink:
        columns, merge = {"low": "f:low"}, {"low": "sum"}
        for name in others:
            columns[name], merge[name] = f"a:{name}", "max"
        return HBaseSink(servers, table, row_key="k", columns=columns, mode="rolling", merge=merge)

    span = Range(Positions(), Positions.of({"t/0": 1}))
    record = EpochRecord("p", 1, 1, EpochState.OPEN, span, 1000, "q", 0, "job")

    def announced(sink: HBaseSink, schema: pa.Schema) -> None:
        committer = sink.open("p", schema)
        assert isinstance(committer, WriteThrough)
        committer.announce(record)

    announced(summed(), SUMS)
    with raises(ConfigError, "sink-mode-changed", "'f'", "'a'"):
        announced(summed("early"), pa.schema([*SUMS, ("early", pa.int64())]))
    announced(summed(), SUMS)


def test_with_replace_the_newest_epochs_row_stays(make: Make) -> None:
    bench = make(SUMS, mode="rolling", merge="replace")
    bench.write([("a", 1), ("b", None)], epoch=1)
    bench.write([("a", None), ("c", 3)], epoch=2)
    with raises(ConfigError, "newer-cell-in-table"):
        bench.write([("a", 1), ("b", None)], epoch=1)  # late, and below
    assert bench.read() == {"a": {"low": None}, "b": {"low": None}, "c": {"low": 3}}


def test_a_hot_keys_rows_are_folded_before_they_are_written(make: Make) -> None:
    bench = make(SUMS, mode="rolling", merge={"low": "sum"})
    written = bench.write([("hot", 1)] * 50_000, epoch=1)
    assert bench.read() == {"hot": {"low": 50_000}}
    assert written is not None and written.rows == 50_000 and written.bytes < 100

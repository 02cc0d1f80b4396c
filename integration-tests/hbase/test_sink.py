"""HBaseSink(mode="row_key") on a real HBase, without Spark: what is in the table after whatever was cut off where."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import happybase
import pyarrow as pa
import pytest
from harness.errors import raises
from harness.pipeline_drivers import Epochs
from harness.support import CrashError, crash, failing_at, host_and_port
from harness.tables.hbase_rows import SCHEMA, Line, Row, rows
from Hbase_thrift import Mutation

from onefold.clients.hbase import ColumnFamily, HBaseSettings, HBaseTable, table_admin
from onefold.clients.hbase.rows.cells import Cells
from onefold.clients.hbase.rows.mapping import NULL, TableMapping
from onefold.core import EpochRecord, EpochState, Positions, Range, TaskId, WriteThrough
from onefold.core.errors import BadRecord, ConfigError, Fenced
from onefold.core.protocol import coordinator
from onefold.core.testing import check_sink
from onefold.sinks import HBaseSink
from onefold.sinks.hbase.deduplicate import newest
from onefold.sinks.hbase.modes import row_key
from onefold.sinks.hbase.modes.row_key import ByRowKey, RowKeyWriter
from onefold.sinks.hbase.sink_plan import HBasePlan

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

CALLS = {"write", "prepare", "writer's abort", "announce", "seal", "commit", "bind", "write_ledger", "open", "recover"}
CODE = ("onefold.sinks.hbase", "onefold.sinks.write_through", "onefold.clients.hbase")


@pytest.mark.slow
def test_the_sink_keeps_its_promises(hbase_server: Any) -> None:
    name, servers = f"test_{uuid.uuid4().hex[:12]}", hbase_server.servers
    sink = partial(HBaseSink, servers, name, row_key="id", family="f")
    mapping = TableMapping.of(name, "id integer", {"name": "f:name string"}).reading()

    def ids() -> Iterator[int]:
        if table_admin.describe(HBaseSettings(servers), name) is not None:
            for part in HBaseTable(HBaseSettings(servers), name).scan(b"", b"", mapping.cell_columns):
                yield from mapping.decode(part.keys, part.values)["id"].to_pylist()

    report = check_sink(sink, ids, make_sibling=partial(sink, name="sibling"), modules=CODE, steps_max=1, moments=0)
    print(f"\n{report}")
    assert report.strikes.keys() == CALLS


@pytest.fixture
def line(hbase_server: Any, tmp_path: Path) -> Line:
    return Line(hbase_server.servers, tmp_path)


@pytest.fixture
def real(hbase_server: Any, tmp_path: Path) -> Line:
    """A sink that deletes as HBase does."""
    return Line(hbase_server.servers, tmp_path, delete_mode="real")


@pytest.mark.parametrize(
    ("place", "delete_mode"), [("after:Announce", "tombstone"), ("after:Verify", "real"), ("after:Decide", "tombstone")]
)
def test_an_epoch_that_a_crash_cut_short_is_as_if_written_once(
    hbase_server: Any, tmp_path: Path, place: str, delete_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(hbase_server.servers, tmp_path, delete_mode=delete_mode)
    tasks = [
        [rows(("a", 2, 20, False), ("b", 2, None, False)), rows(("a", 3, 30, False), ("c", 2, 2, True))],
        [rows(("d", 2, 2, True), ("d", 3, 33, False), ("e", 1, 1, False))],
    ]
    with line.life() as first, monkeypatch.context() as patched:
        first.run([rows(*((key, 1, 1, False) for key in "abcd"))])
        failing_at(patched, place, crash)
        with pytest.raises(CrashError):
            first.run(*tasks)
    with line.life() as second:
        is_decided = place == "after:Decide"
        assert second.started is not None and second.started.finished == is_decided
        if not is_decided:
            outcome = second.run(*tasks)
            assert line.timestamps(["a", "b", "d", "e"]) == {outcome.record.timestamp_ms}
    assert line.shown() == {"a": (3, 30), "b": (2, None), "d": (3, 33), "e": (1, 1)}


def wakes_late(line: Line, meanwhile: Callable[[], object] = lambda: None) -> dict[str, tuple[int, int | None]]:
    """What is there once a task of the first epoch goes on when the second one is complete."""
    first = rows(("a", 1, 1, False), ("b", 1, 1, False), ("c", 1, 1, False))
    with line.life() as life:
        outcome = life.run([first])
        late = line.writer(life, outcome.record)
        late.write(first)
        life.run([rows(("a", 2, None, False), ("b", 2, 2, True))])
        meanwhile()
        with suppress(Fenced):
            late.prepare()
    return line.shown()


@pytest.mark.parametrize("delete_mode", ["tombstone", "real"])
def test_a_task_of_an_older_epoch_that_wakes_late_changes_nothing(
    hbase_server: Any, tmp_path: Path, delete_mode: str
) -> None:
    line = Line(hbase_server.servers, tmp_path, delete_mode=delete_mode)
    assert wakes_late(line) == {"a": (2, None), "c": (1, 1)}


def test_a_task_that_finds_its_rows_below_a_later_epochs_is_fenced(line: Line) -> None:
    mine = rows(("a", 1, 1, False))
    with line.life() as life:
        late = line.writer(life, life.run(mine).record)
        late.write(mine)
        life.run(rows(("a", 2, 2, False)))
        with raises(Fenced, "epoch-overtaken"):
            late.prepare()


def test_a_major_compaction_forgets_real_deletes_and_no_tombstones(hbase_server: Any, line: Line, real: Line) -> None:
    def compact(table: str) -> None:
        hbase_server.flush(table)
        hbase_server.major_compact(table)

    assert wakes_late(line, partial(compact, line.table)) == {"a": (2, None), "c": (1, 1)}
    shown = wakes_late(real, partial(compact, real.table))
    assert shown == {"a": (2, None), "b": (1, 1), "c": (1, 1)}, "as the page and the sink's guarantee say"


def ahead(line: Line, by_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pipeline has written the rows a and b, deleting the second, and its clock was ahead."""
    real = time.time_ns
    with monkeypatch.context() as patched:
        patched.setattr(coordinator.time, "time_ns", lambda: real() + int(by_s * 1e9))
        with Epochs(line.make(), SCHEMA, pipeline="ahead", store=line.store) as life:
            life.run(rows(("a", 1, 1, False), ("b", 1, 1, True)))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"delete_mode": "real"}, {"order": ()}])
@pytest.mark.parametrize("key", ["a", "b"])
def test_an_epoch_below_what_a_clock_that_was_ahead_has_put_is_refused_and_a_later_one_covers_it(
    hbase_server: Any, tmp_path: Path, settings: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(hbase_server.servers, tmp_path, **settings)
    ahead(line, 4, monkeypatch)
    mine = rows((key, 2, 2, False), ("c", 2, 2, False))
    for _ in range(2):
        with line.life() as life, pytest.raises(ConfigError, match=f"the row b'{key}' was put at .* is hidden by a "):
            life.run(mine)
    time.sleep(5)  # the way out that the error names
    with Epochs(line.make(), SCHEMA, pipeline="again", store=line.store) as life:
        life.run(mine)
    shown = line.shown()
    assert (shown[key], shown["c"]) == ((2, 2), (2, 2))


def test_newer_cells_of_other_rows_and_of_other_columns_hide_nothing(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead(line, 3600, monkeypatch)
    others = HBaseTable(HBaseSettings(line.servers), line.table)
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    others.put(pa.array([b"c"]), [Cells(b"f", b"other", pa.array([b"x"]))], later_ms)
    with line.life() as life:
        life.run(rows(("c", 2, 2, False)))
    assert line.shown()["c"] == (2, 2)


class TimestampAnew(RowKeyWriter):
    """Wrong: every attempt writes at its own time."""

    def __init__(self, mode: ByRowKey, plan: HBasePlan, task: TaskId) -> None:
        super().__init__(mode, plan, task)
        self._began_ms = task.timestamp_ms

    def prepare(self) -> Any:
        self._task = replace(self._task, timestamp_ms=max(self._began_ms, int(time.time() * 1000)) + 5)
        return super().prepare()


def test_a_timestamp_taken_anew_would_let_a_late_task_win(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_key, "RowKeyWriter", TimestampAnew)
    assert wakes_late(line) == dict.fromkeys("abc", (1, 1))


def comes_back(line: Line, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int | None]]:
    """What is there once a key was deleted, and written again by a newer row of the same task, in another request."""
    monkeypatch.setattr(row_key, "ROWS_MAX", 2)
    with line.life() as life:
        life.run([rows(("a", 1, 1, True), ("b", 1, 1, False), ("a", 2, 2, False), ("b", 2, 2, True))])
    return line.shown()


def test_a_row_that_is_deleted_and_comes_back_in_one_epoch_is_there(
    line: Line, real: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert comes_back(line, monkeypatch) == comes_back(real, monkeypatch) == {"a": (2, 2)}


class AsTheyCome(RowKeyWriter):
    """Wrong: each version of a key is put when it comes, all at the epoch's own time."""

    def _hold(self, rows: pa.Table) -> None:
        self._put(newest(rows, self._mode.order))


def test_a_delete_that_goes_out_before_all_has_come_would_hide_a_row_that_comes_back(
    real: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_key, "RowKeyWriter", AsTheyCome)
    assert comes_back(real, monkeypatch) == {}


def lands_late(line: Line, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int | None]]:
    """What is there once the first request of another attempt lands behind the epoch, as a Thrift server may do it."""
    monkeypatch.setattr(row_key, "ROWS_MAX", 2)
    given = rows(("a", 1, 1, False), ("b", 1, 1, False), ("a", 2, 2, False), ("b", 2, 2, True))
    requests: list[Callable[[], None]] = []
    send = HBaseTable.put

    def put(table: HBaseTable, *request: Any) -> None:
        requests.append(partial(send, table, *request))

    with line.life() as life:
        outcome = life.run([given])
        with monkeypatch.context() as patched:
            patched.setattr(HBaseTable, "put", put)
            lost = line.writer(life, outcome.record)
            lost.write(given)
            lost.prepare()
        requests[0]()
    return line.shown()


def test_a_request_of_a_lost_attempt_that_lands_late_changes_nothing(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lands_late(line, monkeypatch) == {"a": (2, 2)}


def test_versions_put_as_they_come_would_let_an_older_one_land_behind_a_newer(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_key, "RowKeyWriter", AsTheyCome)
    assert lands_late(line, monkeypatch) == {"a": (1, 1), "b": (1, 1)}


def torn(line: Line, epochs: int) -> int:
    """How often a reader sees a row that was never written, while `n` and `m` take turns in being null."""
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("m", pa.int64())])
    sink = HBaseSink(line.servers, line.table, row_key="id", family="f")
    sink.open("p", schema).close()
    table, key = HBaseTable(HBaseSettings(line.servers), line.table), pa.array([b"a"], pa.binary())
    is_over = threading.Event()

    def look() -> int:
        seen = 0
        while not is_over.is_set():
            n, m = (values[0].as_py() in (None, NULL) for values in table.get(key, [(b"f", b"n"), (b"f", b"m")]))
            seen += n == m
        return seen

    def write(number: int) -> None:
        values = [[number], [None]] if number % 2 else [[None], [number]]
        writer = sink.writer(TaskId("p", 1, number, 1000 + number, uuid.uuid4()))
        batch = pa.record_batch([pa.array(["a"]), *(pa.array(v, pa.int64()) for v in values)], schema=schema)
        writer.write(batch)
        writer.prepare()

    write(1)
    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(look) for _ in range(2)]
        try:
            for number in range(2, 2 + epochs):
                write(number)
        finally:
            is_over.set()
    return sum(reader.result() for reader in readers)


class DeletesNulls(RowKeyWriter):
    """Wrong: what is null is deleted, in one mutation with what is not, as Thrift1 takes it."""

    thrift1: happybase.Connection

    def _put(self, rows: pa.Table) -> None:
        mutations = []
        for i, cell in enumerate(self._cells):
            value, column = rows[f"cell {i}"][0].as_py(), cell.family + b":" + cell.qualifier
            is_null = value == NULL
            mutations.append(Mutation(column=column, value=None if is_null else value, isDelete=is_null))
        name, key = self._plan.mapping.table.encode(), rows["key"][0].as_py()
        self.thrift1.client.mutateRowTs(name, key, mutations, self._task.timestamp_ms, {})


def test_a_reader_never_sees_half_a_row_though_cells_become_null(line: Line) -> None:
    assert torn(line, epochs=60) == 0


@pytest.mark.slow
def test_puts_and_deletes_in_one_mutation_would_show_half_rows(
    line: Line, hbase_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hbase_server.thrift1.start()
    with closing(happybase.Connection(*host_and_port(hbase_server.thrift1))) as thrift1:
        monkeypatch.setattr(DeletesNulls, "thrift1", thrift1, raising=False)
        monkeypatch.setattr(row_key, "RowKeyWriter", DeletesNulls)
        assert torn(line, epochs=60) > 0


def test_of_rows_of_a_key_the_highest_stays_wherever_it_comes_in_the_task(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_key, "ROWS_MAX", 2)
    given: list[Row] = [("a", 3, 3, False), ("b", 1, 1, False), ("a", 2, 2, False), ("b", 2, 2, False)]
    with line.life() as life:
        life.run([rows(*given), rows(("a", 3, 3, False), ("b", 1, 1, False))])
        assert line.shown() == {"a": (3, 3), "b": (2, 2)}
        with raises(BadRecord, "key-twice-in-task", "'a'"):
            life.run([rows(*given), rows(("a", 3, 4, False))])


def test_without_an_order_a_key_comes_with_the_same_cells_each_time(
    hbase_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_key, "ROWS_MAX", 2)
    line = Line(hbase_server.servers, tmp_path, order=())
    given = rows(("a", 1, None, False), ("b", 1, 1, False))
    with line.life() as life:
        life.run([given, given])
        for last in (("b", 1, 2, False), ("b", 1, 1, True)):
            with raises(BadRecord, "key-twice-in-task", "'b'"):
                life.run([given, rows(last, ("c", 1, 1, False))])


def test_a_row_without_its_order_is_refused(line: Line) -> None:
    with line.life() as life:
        bad = rows(("a", 1, 1, False)).set_column(1, SCHEMA.field("version"), pa.nulls(1, pa.int64()))
        with raises(BadRecord, "order-null", "'version'"):
            life.run([bad])


def test_a_note_that_lands_behind_a_successors_changes_nothing(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = line.sink.recover("p"), line.sink.recover("p")
    assert isinstance(first, WriteThrough) and isinstance(second, WriteThrough)
    span = Range(Positions(), Positions.of({"t/0": 1}))
    record = EpochRecord("p", 1, 1, EpochState.OPEN, span, 1000, "q", 0, "job")
    put_if_equal = HBaseTable.put_if_equal

    def late(table: HBaseTable, *given: Any) -> Any:
        with monkeypatch.context() as now:
            now.setattr(HBaseTable, "put_if_equal", put_if_equal)
            second.announce(replace(record, generation=2))
            return put_if_equal(table, *given)

    with monkeypatch.context() as patched:
        patched.setattr(HBaseTable, "put_if_equal", late)
        with raises(Fenced, "taken-over"):
            first.announce(record)
    entry = second.ledger()
    assert entry is not None and entry.announced is not None and entry.announced.generation == 2


def test_the_ledger_belongs_to_one_table_one_mode_and_one_row_key(line: Line) -> None:
    with line.life() as life:
        life.run([rows(("a", 1, 1, False))])
    moved = line.make(table=f"{line.table}_2", name=line.table)
    salted = line.make(salt=4)
    for other, was, now in (
        (moved, f"table '{line.table}'", f"table '{line.table}_2'"),
        (salted, "row_key 'id'", "row_key 'id, salt=4'"),
    ):
        with raises(ConfigError, "sink-mode-changed", f"{was}", f"{now}"):
            Epochs(other, SCHEMA, pipeline=line.table, store=line.store)


def test_a_ledger_that_forgets_is_refused(line: Line) -> None:
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    table_admin.create(HBaseSettings(line.servers), name, [ColumnFamily(b"l", ttl_s=3600)])
    with raises(ConfigError, "ledger-expires", "'FOREVER'"):
        line.make(ledger=name).recover("p")

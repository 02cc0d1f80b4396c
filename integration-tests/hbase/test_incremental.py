"""HBaseSink(mode="incremental") on a real server: whatever dies, wakes late or comes twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from harness.tables.merging_bench import Bench, dies, held

from onefold.clients.hbase import Cells, HBaseTable
from onefold.core import InDoubt, Retriable
from onefold.sinks.hbase.merge import own_cell
from onefold.sinks.hbase.modes import appliers

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("hbase")]

MESSAGES = pa.schema([("k", pa.string()), ("id", pa.int64()), ("low", pa.int64()), ("note", pa.string())])
APPLIED = {"low": "sum", "note": "last"}
Row = tuple[Any, ...]
Make = Callable[..., Bench]
Expected = Callable[[Sequence[Row]], dict[str, dict[str, Any]]]


@pytest.fixture
def make(hbase_server: Any) -> Make:
    def of(schema: pa.Schema = MESSAGES, **settings: Any) -> Bench:
        return Bench(hbase_server, schema, **settings)

    return of


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a task of a few keys reads and writes several times."""
    monkeypatch.setattr(appliers, "KEYS_MAX", 3)


def messages_of(seed: int, count: int = 60) -> list[Row]:
    """Of eight keys, whose ids begin with 0 and have no gaps."""
    chance, last = random.Random(seed), dict.fromkeys(range(8), -1)
    found = []
    for _ in range(count):
        key = chance.randrange(8)
        last[key] += 1
        found.append((f"key {key}", last[key], chance.randrange(1000), f"note {last[key]}"))
    return found


def applied(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Each message once, whatever comes how often."""
    once = sorted({(key, id): (low, note) for key, id, low, note in rows}.items())
    found: dict[str, dict[str, Any]] = {}
    for (key, _), (low, note) in once:
        found[key] = {"low": found.get(key, {"low": 0})["low"] + low, "note": note}
    return found


def test_messages_that_come_again_are_applied_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, messages = make(mode="incremental", sequence="id", merge=APPLIED), messages_of(1)
    bench.write(messages[:20], epoch=1)
    with dies(monkeypatch, 1):
        bench.write([*messages[15:50], *messages[30:40]], epoch=2, generation=1)
    bench.flush()
    with dies(monkeypatch, 2):
        bench.write(messages[15:50][::-1], epoch=2, generation=2)
    bench.major_compact()
    bench.write(messages[15:50], epoch=2, generation=3)
    assert bench.read() == applied(messages[:50])
    bench.write(messages[:30], epoch=1)  # a task that wakes late
    bench.write(messages[40:], epoch=9, timestamp_ms=5)  # another upstream, with a time of its own
    assert bench.read() == applied(messages)


def highest(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    return {key: {"low": low, "note": note} for key, _, low, note in sorted(rows, key=lambda row: row[1])}


IN_BOTH_WAYS = pytest.mark.parametrize(
    ("merge", "expected"), [(APPLIED, applied), ("replace", highest)], ids=["merged", "replaced"]
)


@IN_BOTH_WAYS
def test_writers_that_know_nothing_of_each_other_apply_each_message_once(
    make: Make, merge: Any, expected: Expected
) -> None:
    bench, messages = make(mode="incremental", sequence="id", merge=merge), messages_of(2, 200)

    def write(seed: int) -> None:
        chance, at = random.Random(seed), 0
        while at < len(messages):
            step = chance.randrange(1, 60)
            bench.write(messages[max(0, at - 20) : at + step], epoch=at + 1, generation=seed)
            at += step

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write, seed) for seed in range(1, 4)]:
            done.result()
    assert bench.read() == expected(messages)


@IN_BOTH_WAYS
def test_a_write_under_way_while_others_go_on_is_not_done(
    make: Make, monkeypatch: pytest.MonkeyPatch, merge: Any, expected: Expected
) -> None:
    bench, messages = make(mode="incremental", sequence="id", merge=merge), messages_of(3)
    with held(monkeypatch) as zombie, ThreadPoolExecutor(1) as pool:
        late = pool.submit(bench.write, messages[:40], epoch=1)
        zombie.wait()
        bench.write(messages[:50], epoch=1)
        zombie.let_go()
        late.result()
    assert bench.read() == expected(messages[:50])


@pytest.mark.parametrize("lands", ["before it is asked again", "behind what is then read"])
@IN_BOTH_WAYS
def test_a_conditional_write_whose_answer_is_lost_is_asked_again_and_done_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, merge: Any, expected: Expected, lands: str
) -> None:
    bench, messages = make(mode="incremental", sequence="id", merge=merge), messages_of(5)
    bench.write(messages[:20], epoch=1)
    call = "put_if_greater" if merge == "replace" else "put_if_equal"
    write = getattr(HBaseTable, call)
    lost: list[Callable[[], pa.BooleanArray]] = []
    done: list[bool] = []

    def unanswered(table: HBaseTable, *asked: Any) -> pa.BooleanArray:
        if not lost:
            lost.append(partial(write, table, *asked))
            if lands == "before it is asked again":
                done.extend(lost[0]().to_pylist())
            raise InDoubt("commit-unanswered", "no word")
        if not done:
            done.extend(lost[0]().to_pylist())
        answer: pa.BooleanArray = write(table, *asked)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(HBaseTable, call, unanswered)
        bench.write(messages[20:40], epoch=2)
    assert done and all(done), "what was in doubt has been done"
    assert bench.read() == expected(messages[:40])


@IN_BOTH_WAYS
def test_a_region_server_whose_clock_is_behind_the_last_ones_hides_nothing_of_what_it_writes(
    make: Make, merge: Any, expected: Expected
) -> None:
    """Cells get its clock's time, or that of the id that it compares with, whichever is later."""
    bench, messages = make(mode="incremental", sequence="id", merge=merge), messages_of(6)
    bench.write(messages[:30], epoch=1)
    cells = [*bench.mapping.cell_columns, own_cell(bench.mapping, b"id")]
    ahead_ms = int(time.time() * 1000) + 60_000
    for rows in bench.table.scan(b"", b"", cells):  # as one whose clock was ahead had written them
        bench.table.put(rows.keys, [Cells(*c, v) for c, v in zip(cells, rows.values, strict=True)], ahead_ms)
    for last in (45, 60):
        bench.write(messages[:last], epoch=2)
        assert bench.read() == expected(messages[:last])


@pytest.mark.slow
def test_messages_whose_answers_are_lost_are_applied_once(make: Make, hbase_server: Any) -> None:
    bench, messages = make(timeout_s=2, mode="incremental", sequence="id", merge=APPLIED), messages_of(4)
    bench.write(messages[:20], epoch=1)
    hbase_server.hbase.pause()
    with ThreadPoolExecutor(1) as pool:
        cut_off = pool.submit(bench.write, messages[10:40], epoch=2)
        time.sleep(2.5)
        hbase_server.hbase.resume()
        with suppress(InDoubt, Retriable):
            cut_off.result()
    bench.write(messages[10:40], epoch=2, generation=2)
    assert bench.read() == applied(messages[:40])


@pytest.mark.parametrize("merge", [APPLIED, "replace"], ids=["merged", "replaced"])
def test_gaps_between_ids_are_counted_in_the_row_and_said(
    make: Make, caplog: pytest.LogCaptureFixture, merge: Any
) -> None:
    bench = make(mode="incremental", sequence="id", merge=merge, dense_sequence=True)
    bench.write([("a", 3, 1, "x"), ("a", 5, 1, "y"), ("b", 0, 1, "z")], epoch=1)
    assert "sequences have 1 gaps, and 0 messages came at or below" in caplog.text
    bench.write([("a", 6, 1, "x"), ("a", 9, 1, "y"), ("b", 1, 1, "z")], epoch=2)
    assert "sequences have 2 gaps" in caplog.text
    caplog.clear()
    bench.write([("a", 4, 100, "late"), ("b", 1, 1, "again"), ("b", 2, 1, "z")], epoch=3)
    assert "sequences have 0 gaps, and 1 messages came at or below" in caplog.text
    assert {key: int.from_bytes(value or b"") - 2**63 for key, value in bench.own(b"gaps").items()} == {"a": 3, "b": 0}
    assert bench.read()["a"] == {"low": 4 if merge == APPLIED else 1, "note": "y"}

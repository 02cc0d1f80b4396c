"""The engine's windows beside a plain model: any rows, cuts, and restores with other subtasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flow_parts import AnySource
from hypothesis import strategies as st
from spark_model import SparkTest
from timed_rows import ROWS, time_of
from window_subtasks import Row, Subtasks, counted

from onefold.engine.logics.windows import block_log
from onefold.flow import Flow, Sliding, Stream, Tumbling, Watermarks, bounded


@pytest.fixture(autouse=True, scope="module")
def merging_soon() -> Iterator[None]:
    """Blocks are merged where a test has few epochs, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_log, "MERGED", 3)
        yield


def source_of(delay: int, idle: int | None) -> tuple[Flow, Stream, Watermarks]:
    """Rows whose watermarks are so many seconds late, and idle after so many."""
    of = bounded("at", f"{delay} seconds", idle=None if idle is None else f"{idle} seconds")
    made = Flow("windows", max_parallelism=16)
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    return made, made.source(source, uid="rows", watermarks=of), of


def window_of(size: int, slide: int, offset: int) -> Tumbling | Sliding:
    """In seconds."""
    if size == slide:
        return Tumbling(f"{size} seconds", f"{offset} seconds")
    return Sliding(f"{size} seconds", f"{slide} seconds", f"{offset} seconds")


@st.composite
def epochs(draw: st.DrawFn, row: st.SearchStrategy[Any]) -> list[tuple[dict[str, list[Any]], int]]:
    """Rows by partition, and seconds since the epoch before. Times rise by and by, and are out of order by ten seconds
    and more."""
    found = []
    for number in range(draw(st.integers(1, 12))):
        rows: dict[str, list[Any]] = {}
        for partition in draw(st.lists(st.sampled_from("pqr"), max_size=3, unique=True)):
            of = draw(st.lists(row, max_size=6))
            rows[partition] = [(key, time_of(at / 2 + 3 * number), *more) for key, at, *more in of]
        found.append((rows, draw(st.sampled_from([1, 1, 4]))))
    return found


def equal(
    shape: Any,
    backend: str,
    given_: Sequence[Any],
    subtasks: Sequence[int | None],
    batch_rows: int,
    ends: bool,
    columns: pa.Schema = ROWS,
) -> None:
    """The engine's results and late rows of each epoch are the model's. `subtasks`: before an epoch it is restored with
    so many, by a savepoint (a negative number), or goes on (None)."""
    flow, watermarks = shape.flow()
    model, now_s, named = shape.model(), 0, set[str]()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        run: Any = OnSpark(flow, patch) if backend == "spark" else None
        run = run or Subtasks(flow, watermarks, Path(folder), backend, columns=columns)
        try:
            for number, (rows, passed_s) in enumerate(given_):
                count_ = subtasks[number % len(subtasks)] if subtasks else None
                if count_ is not None and count_ < 0:
                    run.move(-count_, "rocksdb" if number % 2 else "memory")
                elif count_ is not None:
                    run.restore(count_)
                now_s += passed_s
                named |= rows.keys()
                is_last = ends and number == len(given_) - 1
                results, late = run.epoch(rows, now_s, is_last, batch_rows)
                expected, expected_late = model.epoch(
                    {**rows, **{name: [] for name in named - rows.keys()}}, now_s, is_last
                )
                assert counted(results) == counted(expected), number
                assert counted({name: row[name] for name in ROWS.names} for row in late) == counted(expected_late), (
                    number
                )
            if ends:
                assert run.kept() == []
        finally:
            run.close()


class OnSpark:
    """The same on a model of Spark, whose state moves by savepoints before some epochs."""

    def __init__(self, flow: Flow, patch: pytest.MonkeyPatch) -> None:
        self._test, self._now_s = SparkTest(flow, patch), 0.0

    def epoch(
        self, rows: Mapping[str, Sequence[Any]], now_s: float, is_last: bool, batch_rows: int
    ) -> tuple[list[Row], list[Row]]:
        del batch_rows
        self._test.advance(now_s - self._now_s)
        self._now_s = now_s
        given = {f"rows/{partition}": of for partition, of in rows.items()}
        found = self._test.epoch(given, ["rows"] if is_last else [])
        results = [row for sink, of in found.items() if "late" not in sink for row in of]
        return results, [row for sink, of in found.items() if "late" in sink for row in of]

    def restore(self, count: int) -> None:
        """Each batch makes its processors anew."""

    def move(self, count: int, backend: str) -> None:
        """It does so by itself."""

    def kept(self) -> list[Any]:
        return []

    def close(self) -> None:
        return

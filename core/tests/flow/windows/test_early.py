"""Windows that fire before their end equal a plain model: any rows, cuts, restores with other subtasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flow_parts import AnySink
from hypothesis import given, settings
from hypothesis import strategies as st
from window_differential import epochs, equal, merging_soon, source_of, window_of  # noqa: F401  # a fixture
from window_model import EarlyModel, Partitions

from onefold.flow import EachEpoch, Every, Flow, count, sum_, timing

SECOND = 1_000_000


@dataclass(frozen=True)
class Shape:
    """In seconds; `panes` and `slides` are whole numbers of `every`, which is None for each epoch."""

    every: int | None
    panes: int
    slides: int
    offset: int
    lateness: int
    results: str
    delay: int
    idle: int | None
    is_keyed: bool

    @property
    def size(self) -> int:
        return self.panes * (self.every or 1)

    @property
    def slide(self) -> int:
        return self.slides * (self.every or 1)

    def flow(self) -> tuple[Flow, Any]:
        made, rows, of = source_of(self.delay, self.idle)
        window = window_of(self.size, self.slide, self.offset)
        trigger = EachEpoch() if self.every is None else Every(f"{self.every} seconds")
        options: Any = {"lateness": f"{self.lateness} seconds", "late": "late", "results": self.results}
        windowed = (rows.key_by("key") if self.is_keyed else rows).window(window, trigger=trigger, **options)
        fired = windowed.aggregate(uid="sums", total=sum_("amount"), n=count(), when=timing())
        fired.map_batches(lambda batch: batch).sink(AnySink("fired"))
        fired.side("late").sink(AnySink("late"))
        return made, of

    def model(self) -> EarlyModel:
        times = Partitions(self.delay * SECOND, None if self.idle is None else self.idle * 1_000)
        us = (of * SECOND for of in (self.size, self.slide, self.offset, self.lateness))
        every_us = None if self.every is None else self.every * SECOND
        return EarlyModel(every_us, *us, results=self.results, is_keyed=self.is_keyed, times=times)


SHAPES = st.builds(
    Shape,
    every=st.sampled_from([None, 1, 2, 4]),
    panes=st.integers(1, 5),
    slides=st.integers(1, 5),
    offset=st.integers(0, 5),
    lateness=st.sampled_from([0, 0, 3, 20]),
    results=st.sampled_from(["accumulating", "discarding", "retracting"]),
    delay=st.sampled_from([0, 2]),
    idle=st.sampled_from([None, 3]),
    is_keyed=st.booleans(),
)
ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-20, 40), st.integers(-2, 2))
COMMON = {"given_": epochs(ROW), "subtasks": st.lists(st.sampled_from([None, 1, 2, 3, -1, -2]), max_size=5)}
COMMON |= {"batch_rows": st.sampled_from([1, 3, 1_000]), "ends": st.booleans()}


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_early_results_in_memory_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "memory", **given_)


@settings(max_examples=8, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_early_results_in_rocksdb_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "rocksdb", **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb", "spark"])
@settings(max_examples=500, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_many_early_results_equal_the_model(backend: str, shape: Shape, **given_: Any) -> None:
    equal(shape, backend, **given_)

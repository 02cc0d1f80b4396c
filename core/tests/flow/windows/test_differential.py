"""Windows of the engine equal a plain model: any rows, cuts, restores with other subtasks, and silent partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flow_parts import AnySink
from hypothesis import given, settings
from hypothesis import strategies as st
from window_differential import epochs, equal, merging_soon, source_of, window_of  # noqa: F401  # a fixture
from window_model import Model, Partitions

from onefold.flow import Flow, count, first, last, sum_

SECOND = 1_000_000


@dataclass(frozen=True)
class Shape:
    """Windows and clocks, in seconds."""

    size: int
    slide: int
    offset: int
    lateness: int
    is_discarding: bool
    delay: int
    idle: int | None
    is_keyed: bool

    @property
    def is_tumbling(self) -> bool:
        return self.size == self.slide

    def flow(self) -> tuple[Flow, Any]:
        made, rows, of = source_of(self.delay, self.idle)
        window = window_of(self.size, self.slide, self.offset)
        results: Any = "discarding" if self.is_discarding else "accumulating"
        options: Any = {"lateness": f"{self.lateness} seconds", "late": "late", "results": results}
        windowed = (rows.key_by("key") if self.is_keyed else rows).window(window, **options)
        in_order = {"first": first("amount"), "last": last("amount")} if self.is_tumbling else {}
        fired = windowed.aggregate(uid="sums", total=sum_("amount"), n=count(), **in_order)
        fired.map_batches(lambda batch: batch).sink(AnySink("fired"))
        fired.side("late").sink(AnySink("late"))
        return made, of

    def model(self) -> Model:
        times = Partitions(self.delay * SECOND, None if self.idle is None else self.idle * 1_000)
        us = (of * SECOND for of in (self.size, self.slide, self.offset, self.lateness))
        return Model(*us, is_discarding=self.is_discarding, is_keyed=self.is_keyed, times=times)


SHAPES = st.builds(
    Shape,
    size=st.integers(1, 12),
    slide=st.integers(1, 12),
    offset=st.integers(0, 5),
    lateness=st.sampled_from([0, 0, 3, 20]),
    is_discarding=st.booleans(),
    delay=st.sampled_from([0, 2]),
    idle=st.sampled_from([None, 3]),
    is_keyed=st.booleans(),
)
TUMBLING = SHAPES.map(lambda shape: Shape(**{**shape.__dict__, "slide": shape.size}))
KEYS = st.sampled_from(["a", "b", "c", "d", "e", None])
ROW = st.tuples(KEYS, st.integers(-20, 40), st.integers(-5, 5))


COMMON = {"given_": epochs(ROW), "subtasks": st.lists(st.sampled_from([None, 1, 2, 3, -1, -2]), max_size=5)}
COMMON |= {"batch_rows": st.sampled_from([1, 3, 1_000]), "ends": st.booleans()}


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES | TUMBLING, **COMMON)
def test_windows_in_memory_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "memory", **given_)


@settings(max_examples=8, deadline=None)
@given(shape=SHAPES | TUMBLING, **COMMON)
def test_windows_in_rocksdb_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "rocksdb", **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb", "spark"])
@settings(max_examples=1_000, deadline=None)
@given(shape=SHAPES | TUMBLING, **COMMON)
def test_many_windows_equal_the_model(backend: str, shape: Shape, **given_: Any) -> None:
    equal(shape, backend, **given_)

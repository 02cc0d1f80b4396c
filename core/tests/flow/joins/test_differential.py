"""Joins of the engine equal a plain model: any rows, cuts, restores with other subtasks, and silent partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from flow_parts import AnySink
from hypothesis import given, settings
from hypothesis import strategies as st
from join_model import AsOfModel, JoinModel, WindowsModel, WithinModel
from window_differential import epochs, equal, merging_soon, source_of, window_of  # noqa: F401  # a fixture
from window_model import Partitions

from onefold.flow import Flow

SECOND = 1_000_000


@dataclass(frozen=True)
class Shape:
    """A join and its clocks: two durations in seconds are those within which it joins, or of its windows."""

    kind: str
    spans: tuple[int, int]
    how: Any
    delay: int
    idle: int | None

    def flow(self) -> tuple[Flow, Any]:
        made, rows, of = source_of(self.delay, self.idle)
        left, right = rows.filter("amount >= 0").key_by("key"), rows.filter("amount < 0").key_by("key")
        one, two = self.spans
        late: Any = {"late": "late", "other_late": "other_late"}
        if self.kind == "within":
            found = left.join_within(right, "join", before=f"{one} seconds", after=f"{two} seconds", **late)
        elif self.kind == "windows":
            found = left.join(right, window_of(one, two, 1), "join", how=self.how, **late)
        else:
            found = left.as_of(right, "join", how=self.how)
        found.sink(AnySink("joined"))
        for side in () if self.kind == "as of" else ("late", "other_late"):
            found.side(side).sink(AnySink(side))
        return made, of

    def model(self) -> JoinModel:
        times = Partitions(self.delay * SECOND, None if self.idle is None else self.idle * 1_000)
        one, two = (of * SECOND for of in self.spans)
        if self.kind == "within":
            return WithinModel(one, two, times)
        return WindowsModel(one, two, SECOND, self.how, times) if self.kind == "windows" else AsOfModel(self.how, times)


CLOCKS = {"delay": st.sampled_from([0, 2]), "idle": st.sampled_from([None, 3])}
WITHIN = st.builds(
    Shape,
    kind=st.just("within"),
    spans=st.tuples(st.sampled_from([0, 1, 4]), st.sampled_from([0, 2, 30])),
    how=st.just("inner"),
    **CLOCKS,
)
WINDOWS = st.builds(
    Shape,
    kind=st.just("windows"),
    spans=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    how=st.sampled_from(["inner", "left", "right", "full"]),
    **CLOCKS,
)
AS_OF = st.builds(Shape, kind=st.just("as of"), spans=st.just((0, 0)), how=st.sampled_from(["inner", "left"]), **CLOCKS)
ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-20, 40), st.integers(-3, 3))
COMMON = {"given_": epochs(ROW), "subtasks": st.lists(st.sampled_from([None, 1, 2, 3, -1, -2]), max_size=5)}
COMMON |= {"batch_rows": st.sampled_from([1, 3, 1_000]), "ends": st.booleans()}


@settings(max_examples=40, deadline=None)
@given(shape=WITHIN | WINDOWS | AS_OF, **COMMON)
def test_joins_in_memory_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "memory", **given_)


@settings(max_examples=10, deadline=None)
@given(shape=WITHIN | WINDOWS | AS_OF, **COMMON)
def test_joins_in_rocksdb_equal_the_model(shape: Shape, **given_: Any) -> None:
    equal(shape, "rocksdb", **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb", "spark"])
@settings(max_examples=1_000, deadline=None)
@given(shape=WITHIN | WINDOWS | AS_OF, **COMMON)
def test_many_joins_equal_the_model(backend: str, shape: Shape, **given_: Any) -> None:
    equal(shape, backend, **given_)

"""Aggregates with sub-keys in windows of all kinds: any rows, cuts, restores with other subtasks, early and late ones.
Which rows a result is of, the models say, by the sums and counts beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import window_differential
from hypothesis import given, settings
from hypothesis import strategies as st
from sub_keyed import SUB_KEYED, checked
from window_differential import epochs, equal, merging_soon  # noqa: F401  # a fixture
from window_subtasks import Row, Subtasks

from onefold.flow import WindowedStream

from . import test_differential, test_early, test_sessions

KEYS = st.sampled_from(["a", "b", None])
AMOUNTS = st.integers(-3, 3)
ROW = st.tuples(KEYS, st.integers(-20, 40), AMOUNTS)
WITH_GAP = st.tuples(KEYS, st.integers(-20, 40), AMOUNTS, st.integers(1, 9))
COMMON = {"subtasks": st.lists(st.sampled_from([None, 1, 2, 3, -1, -2]), max_size=5)}
COMMON |= {"batch_rows": st.sampled_from([1, 3, 1_000]), "ends": st.booleans()}
ALIGNED: Any = {"shape": test_differential.SHAPES | test_early.SHAPES, "given_": epochs(ROW), **COMMON}
SESSIONS: Any = {"shape": test_sessions.SHAPES, "given_": epochs(WITH_GAP), **COMMON}
SESSIONS |= {"columns": st.just(test_sessions.TIMED)}


class Checked(Subtasks):
    def epoch(self, *given_: Any, **more: Any) -> tuple[list[Row], list[Row]]:
        results, late = super().epoch(*given_, **more)
        return [*map(checked, results)], late


@pytest.fixture(autouse=True, scope="module")
def with_sub_keys() -> Iterator[None]:
    plain = WindowedStream.aggregate

    def aggregate(self: WindowedStream, uid: str, **columns: Any) -> Any:
        return plain(self, uid, **columns, **SUB_KEYED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowedStream, "aggregate", aggregate)
        patch.setattr(window_differential, "Subtasks", Checked)
        yield


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@settings(max_examples=4, deadline=None)
@given(**ALIGNED)
def test_aligned_windows(backend: str, **given_: Any) -> None:
    equal(backend=backend, **given_)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@settings(max_examples=4, deadline=None)
@given(**SESSIONS)
def test_sessions_of_rows(backend: str, **given_: Any) -> None:
    equal(backend=backend, **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@settings(max_examples=300, deadline=None)
@given(**ALIGNED)
def test_many_aligned_windows(backend: str, **given_: Any) -> None:
    equal(backend=backend, **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@settings(max_examples=300, deadline=None)
@given(**SESSIONS)
def test_many_sessions(backend: str, **given_: Any) -> None:
    equal(backend=backend, **given_)

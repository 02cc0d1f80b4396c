"""Windows of many keys and many slices equal the plain model: what is merged beforehand, and found by an index."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_rows import ROWS, time_of
from window_differential import equal
from windows import test_differential, test_early, test_sessions

from onefold.engine.logics.windows import block_log, span_log

BOUNDS = {"idle": st.sampled_from([None, 3]), "lateness": st.sampled_from([0, 0, 3, 20]), "is_keyed": st.just(True)}
SLIDING = st.builds(
    test_differential.Shape,
    size=st.integers(8, 48),
    slide=st.sampled_from([1, 1, 2, 3]),
    offset=st.integers(0, 5),
    is_discarding=st.booleans(),
    delay=st.sampled_from([0, 2]),
    **BOUNDS,
)
EARLY = st.builds(
    test_early.Shape,
    every=st.sampled_from([None, 1, 2]),
    panes=st.integers(4, 20),
    slides=st.integers(1, 3),
    offset=st.integers(0, 5),
    results=st.sampled_from(["accumulating", "discarding", "retracting"]),
    delay=st.sampled_from([0, 2]),
    **BOUNDS,
)


@pytest.fixture(autouse=True, scope="module")
def merging_soon() -> Iterator[None]:
    """As of a thousand times the rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_log, "MERGED", 3)
        patch.setattr(block_log, "ROWS_MIN", 1)
        patch.setattr(span_log, "SCANNED_MAX", 4)
        patch.setattr(span_log, "BLOCKS_MAX", 3)
        yield


@st.composite
def epochs(draw: st.DrawFn) -> list[tuple[dict[str, list[Any]], int]]:
    """Rows by partition, and seconds since the epoch before, of few keys or many."""
    random, keys = Random(draw(st.integers(0, 2**32))), draw(st.sampled_from([1, 20, 400]))
    rows_max, step = draw(st.sampled_from([10, 60])), draw(st.sampled_from([1, 5]))
    found = []
    for number in range(draw(st.integers(1, 16))):
        rows: dict[str, list[Any]] = {}
        for partition in random.sample("pq", random.randint(0, 2)):
            rows[partition] = [
                (
                    f"key {random.randrange(keys)}",
                    time_of(number * step + random.randint(-20, 20) / 2),
                    random.randint(-5, 5),
                    random.randint(1, 9),
                )
                for _ in range(random.randint(0, rows_max))
            ]
        found.append((rows, random.choice([1, 1, 4])))
    return found


COMMON = {"given_": epochs(), "subtasks": st.lists(st.sampled_from([None, None, 1, 2, 3]), max_size=5)}
COMMON |= {"batch_rows": st.sampled_from([7, 1_000]), "ends": st.booleans()}
SHAPES = SLIDING | EARLY | test_sessions.SHAPES


def compare(shape: Any, backend: str, given_: Any, **others: Any) -> None:
    if isinstance(shape, test_sessions.Shape):
        equal(shape, backend, given_, columns=test_sessions.TIMED, **others)
    else:
        rows = [({name: [row[: len(ROWS)] for row in of] for name, of in each.items()}, s) for each, s in given_]
        equal(shape, backend, rows, **others)


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, **COMMON)
def test_windows_of_many_keys_equal_the_model(shape: Any, **given_: Any) -> None:
    compare(shape, "memory", **given_)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("shapes", [SLIDING, EARLY, test_sessions.SHAPES], ids=["sliding", "early", "sessions"])
@settings(max_examples=500, deadline=None)
@given(data=st.data(), **COMMON)
def test_many_windows_of_many_keys_equal_the_model(backend: str, shapes: Any, data: Any, **given_: Any) -> None:
    compare(data.draw(shapes), backend, **given_)

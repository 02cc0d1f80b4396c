"""How much one batch takes, and which ranges that makes. Arithmetic, no server."""

from __future__ import annotations

import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core.errors import DataLoss
from onefold.sources.kafka import OffsetRange, limit, ranges

partitions = st.integers(0, 5).map(lambda n: ("t", n))
offsets = st.dictionaries(partitions, st.integers(0, 10_000))


def test_the_bound_is_shared_in_proportion_to_the_lag() -> None:
    start, latest = {("t", 0): 100, ("t", 1): 0}, {("t", 0): 400, ("t", 1): 100, ("t", 2): 0}
    assert limit(start, latest, 200) == {("t", 0): 250, ("t", 1): 50, ("t", 2): 0}
    assert limit(start, latest, None) == latest
    assert limit(start, latest, 1000) == latest


def test_a_partition_that_lags_a_little_is_never_starved() -> None:
    assert limit({}, {("t", 0): 1_000_000, ("t", 1): 1}, 10)[("t", 1)] == 1


@given(start=offsets, latest=offsets, records_max=st.integers(1, 20_000))
def test_a_batch_stays_between_start_and_latest_and_moves_every_partition_that_lags(
    start: dict[tuple[str, int], int], latest: dict[tuple[str, int], int], records_max: int
) -> None:
    end = limit(start, latest, records_max)
    assert end.keys() == latest.keys()
    lagging = [p for p in latest if latest[p] > start.get(p, 0)]
    for p in latest:
        at = start.get(p, 0)
        assert at <= end[p] <= max(at, latest[p])
        assert (end[p] > at) == (p in lagging)
    taken = sum(end[p] - start.get(p, 0) for p in latest)
    lag = sum(latest[p] - start.get(p, 0) for p in lagging)
    assert taken <= max(records_max, len(lagging))
    assert taken >= min(records_max, lag)


def test_ranges_are_made_where_something_is_to_be_read_and_new_partitions_begin_at_their_first_record() -> None:
    assert ranges({("t", 0): 5, ("t", 1): 7}, {("t", 0): 9, ("t", 1): 7, ("t", 2): 3}) == [
        OffsetRange("t", 0, 5, 9),
        OffsetRange("t", 2, 0, 3),
    ]


@pytest.mark.parametrize("end", [{("t", 0): 4}, {}])
def test_a_batch_that_would_go_backwards_is_refused(end: dict[tuple[str, int], int]) -> None:
    with raises(DataLoss, "positions-of-another-run"):
        ranges({("t", 0): 5}, end)

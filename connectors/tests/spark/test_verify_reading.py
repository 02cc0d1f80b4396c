"""How verify reads a flow's source again, as far as no server is asked."""

from __future__ import annotations

from typing import Any

import pytest

from onefold.core.positions import Positions, Range
from onefold.sources import KafkaSource
from onefold.spark.formats.records import _of_all_epochs, _splits

START, END = Positions.of({"orders/0": 3}), Positions.of({"orders/0": 17})


def source(**more: Any) -> KafkaSource:
    return KafkaSource("orders", bootstrap_servers="localhost:9092", format="json", schema="id long", **more)


@pytest.mark.parametrize(
    "limit", [{"max_bytes_per_trigger": 1}, {"max_offsets_per_trigger": 1}, {"max_offsets_per_second": 1}]
)
def test_a_source_with_a_streams_limits_can_be_verified(limit: dict[str, int]) -> None:
    (split,) = _splits(source(**limit), Range(START, END))
    assert split.range == Range(START, END)


def test_all_epochs_together_may_have_more_bad_records_than_one() -> None:
    given = source(columns=["key"], on_error="dead_letter")
    whole: Any = _of_all_epochs(given, "dead_letter")
    assert (whole.on_error, whole.columns) == ("dead_letter", ("key",))
    assert whole.bad_records_max > given.bad_records_max

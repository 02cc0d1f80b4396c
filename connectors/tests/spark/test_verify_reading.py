"""How verify reads a flow's source again, as far as no server is asked."""

from __future__ import annotations

from typing import Any

from onefold.sources import KafkaSource
from onefold.spark.formats.bounded_records import _of_all_epochs


def test_all_epochs_together_may_have_more_bad_records_than_one() -> None:
    given = KafkaSource(
        "orders",
        bootstrap_servers="localhost:9092",
        format="json",
        schema="id long",
        columns=["key"],
        on_error="dead_letter",
    )
    whole: Any = _of_all_epochs(given, "dead_letter")
    assert (whole.on_error, whole.columns) == ("dead_letter", ("key",))
    assert whole.bad_records_max > given.bad_records_max

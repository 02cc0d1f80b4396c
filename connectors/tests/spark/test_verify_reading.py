"""How verify reads a pipeline's source again, as far as no server is asked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from onefold.core.positions import Positions
from onefold.sources import KafkaSource
from onefold.sources.kafka import OrderedIds
from onefold.spark.formats.bad_records import _of_all_epochs
from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource
from onefold.spark.verify.origin import _bounded

START, END = Positions.of({"orders/0": 3}, {"orders/id": "x"}), Positions.of({"orders/0": 17})


def source(**more: Any) -> KafkaSource:
    return KafkaSource("orders", bootstrap_servers="localhost:9092", format="json", schema="id long", **more)


@pytest.mark.parametrize(
    "limit", [{"max_bytes_per_trigger": 1 << 20}, {"max_offsets_per_trigger": 1000}, {"max_offsets_per_second": 1000}]
)
def test_a_source_with_a_streams_limits_can_be_verified(limit: dict[str, int]) -> None:
    reader = OnefoldKafkaDataSource(_bounded(source(**limit), START, END))
    assert reader.reader(_as_spark(pa.schema({"id": pa.int64()}))) is not None


def test_the_bad_records_of_a_source_that_drops_repeats_can_be_read() -> None:
    given = source(deduplicate=OrderedIds(), columns=["key"], on_error="dead_letter")
    whole = _of_all_epochs(given, START)
    assert (whole.on_error, whole.columns, whole.deduplicate) == ("dead_letter", ("key",), None)
    assert whole.bad_records_max > given.bad_records_max


def _as_spark(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)

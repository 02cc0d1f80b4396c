"""The columns of a transformed direct path are found by a batch without rows, which its function may not take."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from harness.errors import raises

from onefold.core import ConfigError
from onefold.sources import KafkaSource
from onefold.spark.runtime.direct import Fetch

SOURCE = KafkaSource("orders", bootstrap_servers="b:1", format="json", schema="id long, n long")


def test_a_function_that_fails_says_that_it_has_to_take_such_a_batch() -> None:
    def fails(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.append_column("first", pa.array([batch["id"][0].as_py()]))

    with raises(ConfigError, "transform-failed", f"{__file__}"):
        Fetch.of(SOURCE, fails)


def test_onefolds_own_errors_stay_what_they_are() -> None:
    def refuses(_batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise ConfigError("option-value", "no")

    with raises(ConfigError, "option-value"):
        Fetch.of(SOURCE, refuses)

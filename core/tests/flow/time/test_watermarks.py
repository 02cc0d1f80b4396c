"""What policies make of records, and which are refused."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import BadRecord, ConfigError
from onefold.flow.time.watermarks import Watermarks, bounded, check_watermarks_of, monotonic, punctuated

SECOND = 1_000_000


def batch(column: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([column], ["at"])


@pytest.mark.parametrize(
    ("kind", "values", "highest_us"),
    [
        (pa.timestamp("us"), [3, -5, 7], 7),
        (pa.timestamp("s", "Europe/Berlin"), [3, 7], 7 * SECOND),
        (pa.timestamp("ms"), [-1], -1_000),
        (pa.timestamp("ns"), [1_999], 1),
        (pa.timestamp("ns"), [-1], -1),
        (pa.date32(), [1, -1], 86_400 * SECOND),
        (pa.date64(), [86_400_000], 86_400 * SECOND),
    ],
    ids=str,
)
def test_times_of_all_types_are_microseconds_cut_downwards(
    kind: pa.DataType, values: list[int], highest_us: int
) -> None:
    column = pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    assert monotonic("at").of(batch(column)) == highest_us
    assert bounded("at", "5 seconds").of(batch(column)) == highest_us - 5 * SECOND


def test_a_record_without_a_time_is_bad() -> None:
    times, others = pa.array([1, None], pa.timestamp("us")), pa.array([1, 2**62], pa.timestamp("s"))
    with raises(BadRecord, "event-time-null"):
        monotonic("at").of(batch(times))
    with raises(BadRecord, "event-time-null"):
        monotonic("at").of(pa.record_batch([times, others], ["at", "beyond what Python knows"]))


def test_marks_alone_move_what_is_punctuated() -> None:
    times = pa.array([50, 60], pa.timestamp("us"))
    of = punctuated("at", mark="safe").of
    assert of(pa.record_batch([times, pa.array([None, 7], pa.timestamp("us"))], ["at", "safe"])) == 7
    assert of(pa.record_batch([times, pa.array([None, None], pa.timestamp("us"))], ["at", "safe"])) is None


SCHEMA = pa.schema({"at": pa.timestamp("us"), "n": pa.int64()})


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (lambda: bounded("at", "5 sec"), "option-value"),
        (lambda: bounded("at", 5), "option-value"),  # type: ignore[arg-type]
        (lambda: monotonic("at", idle="0 seconds"), "option-value"),
        (lambda: "at", "option-value"),
        (lambda: monotonic("n"), "watermark-column"),
        (lambda: punctuated("at", mark="n"), "watermark-column"),
        (lambda: monotonic("when"), "no-such-column"),
    ],
)
def test_what_is_refused(given: Any, code: str) -> None:
    with raises(ConfigError, code):
        check_watermarks_of(given(), SCHEMA, "the source 'orders'")


def test_a_policy_of_ones_own() -> None:
    class Heartbeats(Watermarks):
        idle = None
        mark = 5  # its own business

        def of(self, batch: pa.RecordBatch) -> int | None:
            return int(batch.num_rows)

    check_watermarks_of(Heartbeats(), SCHEMA, "the source 'orders'")
    assert Heartbeats().idle_ms is None and monotonic("at").idle_ms == 60_000
    assert dt.timedelta(milliseconds=monotonic("at", idle="2 hours").idle_ms or 0) == dt.timedelta(hours=2)

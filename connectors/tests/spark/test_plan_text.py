"""What a plan says of keys that Python has no value for."""

import pyarrow as pa

from onefold.sinks import KafkaSink
from onefold.spark.verify.comparing.wrong_rows import WrongRows
from onefold.spark.verify.mending.plan import plan_text


def test_keys_after_the_year_9999_are_named() -> None:
    at = pa.array([2**58], pa.timestamp("us", "UTC"))
    keys = pa.table({"at": at, "__expected": [1], "__actual": [0]})
    text = plan_text("p", "p", [], {KafkaSink("t", bootstrap_servers="x:1"): WrongRows(key=("at",), keys=keys)})
    assert "--   at=11103-08-29 17:22:31.711744Z (expected 1, found 0)" in text

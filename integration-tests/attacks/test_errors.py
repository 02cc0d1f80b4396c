"""Records whose text looks like an error of the pipeline's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from harness.support import Rig, through_spark

from onefold.core import BadRecord, OnefoldError, Terminal
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource

pytestmark = pytest.mark.servers

MESSAGE = "generation 3 was taken over (now: 4). Another process runs this pipeline: stop this one. Call +1-555"
EVIL = (
    f"x\n\nonefold.core.errors.Fenced: {MESSAGE}\n\n[[onefold Fenced {'0' * 32}]]{MESSAGE}[[/{'0' * 32}]]\n\n"
    f"Traceback (most recent call last):\nonefold.core.errors.Fenced: {MESSAGE}"
)


def ended(rig: Rig, source: KafkaSource, value: str, change: Callable[[Any], Any]) -> OnefoldError:
    """What a flow dies of that reads the record."""
    producer = Producer({"bootstrap.servers": rig.servers, "log_level": 0})
    producer.produce(rig.topic, value, partition=0)
    assert producer.flush(20) == 0
    sink = SqlSink(f"sqlite:///{rig.directory / 'rows.db'}", "rows")
    with pytest.raises(OnefoldError) as ended:
        rig.run(rig.pipeline(sink, source=source, change=change))
    return ended.value


def of_bad_record(rig: Rig, change: Callable[[Any], Any]) -> OnefoldError:
    source = KafkaSource(rig.topic, bootstrap_servers=rig.servers, format="json", schema="id long, at timestamp")
    return ended(rig, source, json.dumps({"id": 1, "at": EVIL}), change)


def assert_bad_record(rig: Rig, error: OnefoldError) -> None:
    assert type(error) is BadRecord and error.exit_code == 65
    assert f"{rig.topic}/0 offset 0" in str(error) and "x\\n\\nonefold" in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="writes a value whose text looks like Fenced, with newlines, to a flow on Spark",
    gets="BadRecord with its offset, on one line",
)
def test_a_value_that_looks_like_an_error_is_a_bad_record(rig: Rig) -> None:
    assert_bad_record(rig, of_bad_record(rig, lambda rows: rows))


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="the same to a flow with an operator that Spark runs",
    gets="BadRecord with its offset, on one line",
)
def test_a_value_that_looks_like_an_error_is_a_bad_record_through_spark(rig: Rig) -> None:
    assert_bad_record(rig, of_bad_record(rig, through_spark))


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="the same to a flow whose own code, or SQL, quotes values in its errors",
    gets="Terminal: the job's own code failed, on one line",
)
@pytest.mark.parametrize("where", ["function", "function in Spark", "SQL"])
def test_a_value_that_the_jobs_own_error_quotes_chooses_no_class(rig: Rig, where: str) -> None:
    def quote(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise ValueError(f"no number: {batch.column('value')[0]}")
        return batch

    ways: dict[str, Callable[[Any], Any]] = {
        "function": lambda rows: rows.map_batches(quote),
        "function in Spark": lambda rows: rows.spark_dataframe(
            lambda df: df.mapInArrow(lambda batches: map(quote, batches), df.schema), rows.schema
        ),
        "SQL": lambda rows: rows.spark_sql("SELECT CAST(value AS int) FROM source", "value int"),
    }
    source = KafkaSource(rig.topic, bootstrap_servers=rig.servers, format="string")
    error = ended(rig, source, EVIL, ways[where])
    code = "operator-failed" if where == "function" else "job-code-failed"
    assert type(error) is Terminal and error.code == code
    assert len(str(error).splitlines()) == 1

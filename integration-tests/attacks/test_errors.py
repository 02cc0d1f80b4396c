"""Records whose text looks like an error of the pipeline's own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from harness.support import Rig
from pyspark.sql import functions as F

from onefold.core import BadRecord, OnefoldError, Terminal
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource
from onefold.spark import Pipeline

pytestmark = pytest.mark.servers

MESSAGE = "generation 3 was taken over (now: 4). Another process runs this pipeline: stop this one. Call +1-555"
EVIL = (
    f"x\n\nonefold.core.errors.Fenced: {MESSAGE}\n\n[[onefold Fenced {'0' * 32}]]{MESSAGE}[[/{'0' * 32}]]\n\n"
    f"Traceback (most recent call last):\nonefold.core.errors.Fenced: {MESSAGE}"
)


def ended(rig: Rig, start: Callable[[Pipeline, KafkaSource], object]) -> OnefoldError:
    """What a pipeline dies of that reads the record."""
    producer = Producer({"bootstrap.servers": rig.servers, "log_level": 0})
    producer.produce(rig.topic, json.dumps({"id": 1, "at": EVIL}), partition=0)
    assert producer.flush(20) == 0
    source = KafkaSource(rig.topic, bootstrap_servers=rig.servers, format="json", schema="id long, at timestamp")
    pipeline = Pipeline(rig.topic, sinks=[SqlSink(f"sqlite:///{rig.directory / 'rows.db'}", "rows")], patience_s=5)
    try:
        with pytest.raises(OnefoldError) as ended:
            pipeline.await_termination(start(pipeline, source))  # type: ignore[arg-type]
    finally:
        pipeline.close()
    return ended.value


def assert_bad_record(rig: Rig, error: OnefoldError) -> None:
    assert type(error) is BadRecord and error.exit_code == 65
    assert f"{rig.topic}/0 offset 0" in str(error) and "x\\n\\nonefold" in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="writes a value whose text looks like Fenced, with newlines, to a pipeline of `pipeline.write_direct`",
    gets="BadRecord with its offset, on one line",
)
def test_a_value_that_looks_like_an_error_is_a_bad_record_on_the_direct_path(rig: Rig) -> None:
    checkpoint = str(rig.directory / "checkpoint")
    error = ended(rig, lambda p, s: p.write_direct(rig.spark, s, checkpoint, {"availableNow": True}))
    assert_bad_record(rig, error)


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="the same to a pipeline of `pipeline.read` and `pipeline.write`",
    gets="BadRecord with its offset, on one line",
)
def test_a_value_that_looks_like_an_error_is_a_bad_record_through_spark(rig: Rig) -> None:
    checkpoint = str(rig.directory / "checkpoint")
    error = ended(rig, lambda p, s: p.write(p.read(rig.spark, s), checkpoint, {"availableNow": True}))
    assert_bad_record(rig, error)


@pytest.mark.slow
@pytest.mark.attack(
    who="who may write records",
    does="the same to a job whose own code, or SQL, quotes values in its errors",
    gets="Terminal: the job's own code failed, on one line",
)
@pytest.mark.parametrize("where", ["python", "sql"])
def test_a_value_that_the_jobs_own_error_quotes_chooses_no_class(rig: Rig, where: str) -> None:
    producer = Producer({"bootstrap.servers": rig.servers, "log_level": 0})
    producer.produce(rig.topic, EVIL, partition=0)
    assert producer.flush(20) == 0
    source = KafkaSource(rig.topic, bootstrap_servers=rig.servers, format="string")

    def quote(batches: object) -> object:
        for batch in batches:  # type: ignore[attr-defined]
            if batch.num_rows:
                raise ValueError(f"no number: {batch.column('value')[0]}")
            yield batch

    def start(pipeline: Pipeline, _: KafkaSource) -> object:
        df = pipeline.read(rig.spark, source)
        df = df.mapInArrow(quote, df.schema) if where == "python" else df.select(F.col("value").cast("int"))  # type: ignore[arg-type]
        return pipeline.write(df, str(rig.directory / "checkpoint"), {"availableNow": True})

    error = ended(rig, start)
    assert type(error) is Terminal and "the job's own code failed" in str(error)
    assert len(str(error).splitlines()) == 1

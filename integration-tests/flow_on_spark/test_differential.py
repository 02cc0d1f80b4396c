"""Random flows on Spark, in two starts: their tables are those of a model in plain Python, as the engine's are."""

from __future__ import annotations

from typing import Any

import harness.differential.processors
import pytest
from harness.differential.drawing import records, shapes
from harness.differential.running import source_of
from harness.differential.shapes import Shape
from harness.differential.trial import RUN, MakeTrial, Trial
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

pytestmark = pytest.mark.servers

register_pickle_by_value(harness.differential.processors)  # Spark's workers do not find it

WAIT_S = 300


def run(spark: SparkSession, trial: Trial, at_most: int) -> None:
    flow = trial.building.flow(source_of(trial.servers, trial.topics[0], at_most))
    query = flow.start(spark, checkpoint=trial.checkpoint, trigger={"availableNow": True})
    try:
        assert query.await_termination(WAIT_S)
    finally:
        query.query.stop()
        query.writer.close()


def compare(spark: SparkSession, trial: Trial, counts: tuple[int, int], tasks: int, at_most: int, seed: int) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    rows = records(seed, sum(counts))
    for part in (rows[: counts[0]], rows[counts[0] :]):
        trial.put(part)
        run(spark, trial, at_most)
    trial.assert_tables()


RUNS: Any = {
    "shape": shapes(),
    "counts": st.tuples(st.integers(1, 150), st.integers(0, 150)),
    "tasks": st.integers(1, 3),
    "at_most": st.sampled_from([60, 1_000]),
    "seed": st.integers(0, 2**32),
}


@pytest.mark.slow
@settings(RUN, max_examples=3)
@given(**RUNS)
def test_random_flows_write_the_tables_of_plain_python(
    spark: SparkSession, trial: MakeTrial, shape: Shape, **run: Any
) -> None:
    compare(spark, trial(shape), **run)


@pytest.mark.soak
@settings(RUN, max_examples=30)
@given(**RUNS)
def test_many_random_flows_write_the_tables_of_plain_python(
    spark: SparkSession, trial: MakeTrial, shape: Shape, **run: Any
) -> None:
    compare(spark, trial(shape), **run)

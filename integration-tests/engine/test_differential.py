"""Random flows on the engine, with restarts: their tables are those of a model in plain Python."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
from harness.differential.drawing import records, shapes
from harness.differential.running import EngineRun, on_engine
from harness.differential.shapes import Shape
from harness.differential.trial import RUN, MakeTrial, Trial
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.servers


@dataclass(frozen=True)
class Stop:
    """A start that ends in the midst of its `records`."""

    records: int
    workers: int
    part: float
    signal: int


STOPS = st.lists(
    st.builds(
        Stop, st.integers(1, 150), st.integers(1, 2), st.floats(0, 1), st.sampled_from([signal.SIGTERM, signal.SIGKILL])
    ),
    max_size=2,
)


def compare(trial: Trial, stops: Sequence[Stop], rest: int, workers: int, state: str, at_most: int, seed: int) -> None:
    """Each start goes on with the state of the one before, with other workers."""
    rows = iter(records(seed, sum(stop.records for stop in stops) + rest))

    def run(workers: int, **more: Any) -> None:
        run = EngineRun(trial.building, trial.servers, trial.topics, trial.checkpoint, state, workers, at_most, **more)
        on_engine(run, trial.directory / "log")

    for stop in stops:
        longest = trial.put([next(rows) for _ in range(stop.records)])
        run(stop.workers, epochs=ceil(stop.part * ceil(longest / at_most)) or 1, signal=stop.signal)
    trial.put([*rows])
    run(workers)
    trial.assert_tables()


RUNS: Any = {
    "shape": st.integers(1, 2).flatmap(shapes),
    "stops": STOPS,
    "rest": st.integers(0, 150),
    "workers": st.integers(1, 2),
    "state": st.sampled_from(["memory", "rocksdb"]),
    "at_most": st.sampled_from([15, 60, 1_000]),
    "seed": st.integers(0, 2**32),
}


@pytest.mark.slow
@settings(RUN, max_examples=12)
@given(**RUNS)
def test_random_flows_write_the_tables_of_plain_python(trial: MakeTrial, shape: Shape, **run: Any) -> None:
    compare(trial(shape), **run)


@pytest.mark.soak
@settings(RUN, max_examples=300)
@given(**RUNS)
def test_many_random_flows_write_the_tables_of_plain_python(trial: MakeTrial, shape: Shape, **run: Any) -> None:
    compare(trial(shape), **run)

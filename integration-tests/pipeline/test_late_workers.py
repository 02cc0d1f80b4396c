"""A Python worker that does not connect back to Spark in time, as on a machine that has too much to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.errors import raises
from harness.support import Rig

from onefold.core import OutOfResources
from onefold.spark.flows.ranges import OnefoldRanges
from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]

LATE_S = 12  # Spark waits ten for a streaming source's worker; others are forked by a daemon, which it waits for


@pytest.fixture
def _late(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The first worker of a streaming source is late."""
    python, was_late = tmp_path / "python", tmp_path / "was late"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *python_streaming_source_runner*) mkdir "{was_late}" 2>&- && sleep {LATE_S};; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(python))
        patch.setattr(rig.spark.sparkContext, "pythonExec", str(python))
        register_again(rig)
        yield
    register_again(rig)
    assert was_late.exists()


def register_again(rig: Rig) -> None:
    """The formats keep the Python with which they were registered."""
    for each in (OnefoldRanges, OnefoldKafkaDataSource):
        rig.spark.dataSource.register(each)


@pytest.mark.usefixtures("_late")
def test_a_query_whose_worker_is_late_at_the_start_is_started_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put(600)
    rig.run(rig.pipeline(rig.sink("staged")))
    rig.assert_exact()
    assert "starting the query waits: " in caplog.text and "[worker-not-started]" in caplog.text


@pytest.mark.usefixtures("_late")
def test_a_jobs_own_query_whose_worker_is_late_ends_with_75_and_its_next_start_goes_on(rig: Rig) -> None:
    rig.put(600)

    def start() -> None:
        writer = rig.writer(rig.sink("staged"))
        rig.finish(writer, rig.start(writer, rig.stream()))

    with raises(OutOfResources, "worker-not-started") as ended:
        start()
    assert ended.value.exit_code == 75
    start()
    rig.assert_exact()

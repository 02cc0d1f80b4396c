"""`Pipeline.run(listen=)` on a real Spark: shown, held and ended over HTTP by another thread."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from harness.own_runs import Folder, Meanwhile, free, is_free
from pyspark.sql import SparkSession

from onefold.pipeline import Spark

pytestmark = [pytest.mark.servers, pytest.mark.slow]
SLOW_S = 240  # of a machine that much else runs on


@pytest.mark.parametrize("ends_by", ["stop", "signal"])
def test_a_pipeline_on_spark_is_shown_held_and_ended(spark: SparkSession, tmp_path: Path, ends_by: str) -> None:
    address, folder = free(), Folder(tmp_path)
    meanwhile = Meanwhile(address, within_s=SLOW_S)
    folder.add()
    pipeline = folder.pipeline(folder.flow(), Spark(session=spark, trust_machine=True))

    def operate() -> None:
        ask = meanwhile.ask
        wait_for(folder, 10)
        found = meanwhile.now()
        assert (found["actions"], found["generation"], found["error"]) == (["pause", "stop"], 1, None)
        assert [edge["target"] for edge in found["edges"]] == ["filter-1", "numbers"]
        assert ask.post("/pipelines/numbers/restart").json()["code"] == "restart-by-program"
        assert ask.post("/pipelines/numbers/pause").status == 202
        folder.add()
        time.sleep(1)
        assert folder.written() == 10
        assert ask.post("/pipelines/numbers/resume").status == 202
        wait_for(folder, 20)
        until_s = time.monotonic() + 60
        while [edge["rows"] for edge in meanwhile.now()["edges"]] != [20, 20]:  # as written: reports come later
            assert time.monotonic() < until_s
            time.sleep(0.2)
        if ends_by == "stop":
            meanwhile.stop()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    meanwhile(operate, lambda: pipeline.run(listen=address))
    assert folder.written() == 20 and is_free(address)


def wait_for(folder: Folder, rows: int) -> None:
    until_s = time.monotonic() + SLOW_S
    while folder.written() < rows:
        assert time.monotonic() < until_s
        time.sleep(0.1)

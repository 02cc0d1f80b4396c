"""Several sources of one flow, topics and files, on either runtime: every row once, whatever ends the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RUNTIMES = pytest.mark.parametrize("runtime", ["engine", "spark"])


@pytest.fixture
def folder(tmp_path: Any) -> str:
    (tmp_path / "in").mkdir()
    return str(tmp_path / "in")


@RUNTIMES
@pytest.mark.parametrize("place", ["after:OpenEpoch#2", "after:Decide#2"])
def test_a_topic_and_files_that_are_united_give_every_row_once_where_the_driver_is_killed(
    flows: Any, tmp_path: Any, folder: str, runtime: str, place: str
) -> None:
    flows.put(700)
    flows.put_files(tmp_path / "in", 400)
    job = flows.job(kind="union", other=folder, runtime=runtime, at_most=300)
    process = flows.start(job, place)
    process.held()
    process.kill()
    flows.finish(job)
    if runtime == "spark":  # the engine's sources end where they ended at its first start
        flows.put_files(tmp_path / "in", 100)
        flows.put(100)
        flows.finish(job)
    flows.assert_exact(job)


@RUNTIMES
@pytest.mark.parametrize("kind", ["rows", "totals"])
def test_files_alone_are_read_once_where_the_driver_is_killed(
    flows: Any, tmp_path: Any, folder: str, runtime: str, kind: str
) -> None:
    flows.put_files(tmp_path / "in", 600, files=6)
    job = replace(flows.job(kind=kind, runtime=runtime), topic=folder)
    process = flows.start(job, "after:Decide#2")
    process.held()
    process.kill()
    flows.finish(job)
    flows.assert_exact(job)


@RUNTIMES
def test_a_source_that_is_added_is_read_from_its_begin_and_the_state_of_the_others_stays(
    flows: Any, kafka_topic: Any, runtime: str
) -> None:
    other = kafka_topic(partitions=2)
    flows.put(500)
    job = flows.job(kind="rows", runtime=runtime)
    flows.finish(job)
    flows.put(300, partitions=2, topic=other)
    flows.finish(replace(job, kind="union", other=other))
    flows.assert_exact(job)

"""Several sources of one flow, topics and files, on either runtime: every row once, whatever ends the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from harness.support import CrashError, Rig, crash, failing_at

from onefold.core import BadRecord, ConfigError
from onefold.flow import Flow
from onefold.sources import FileSource

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RUNTIMES = pytest.mark.parametrize("runtime", ["engine", "spark"])


@pytest.fixture
def folder(tmp_path: Any) -> str:
    (tmp_path / "in").mkdir()
    return str(tmp_path / "in")


@RUNTIMES
@pytest.mark.parametrize("place", ["after:ReadClock#2", "after:Decide#2"])
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
def test_a_source_that_is_added_is_read_from_its_begin_and_the_others_go_on(
    flows: Any, kafka_topic: Any, runtime: str
) -> None:
    other = kafka_topic(partitions=2)
    flows.put(500)
    job = flows.job(kind="rows", runtime=runtime)
    flows.finish(job)
    flows.put(300, partitions=2, topic=other)
    flows.finish(replace(job, kind="union", other=other))
    flows.assert_exact(job)


def apart(rig: Rig, *sources: str) -> Flow:
    """A topic into one table with dead letters, and files into another, whose bad lines are skipped: without exchanges,
    so that the tasks that read also write."""
    flow = Flow("apart")
    if "topic" in sources:
        topic = rig.source(at_most=50, on_error="dead_letter", bad_records_max=3)
        flow.source(topic, uid="topic", dead_letters=rig.sink(table="letters")).sink(rig.sink(table="topics"))
    if "files" in sources:
        schema: Any = {"format": "json", "schema": "id long, n long"}
        files = FileSource(str(rig.directory / "in"), on_error="skip", bad_records_max=2, **schema)
        flow.source(files, uid="files").sink(rig.sink(table="files"))
    return flow


def run(rig: Rig, flow: Flow) -> Any:
    query = flow.start(rig.spark, checkpoint=rig.checkpoint(), trigger={"availableNow": True})
    rig.pipelines.append(query.writer)
    try:
        assert query.await_termination(300)
        return query.writer.bad_records
    finally:
        query.query.stop()
        query.writer.close()


def test_each_source_has_bad_records_and_a_limit_of_its_own_and_a_crash_costs_no_row(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = rig.directory / "in"
    folder.mkdir()
    rig.put(120)
    rig.put_values([b"bad"] * 3)
    (folder / "a.json").write_text('{"id":1,"n":1}\nbad\n{"id":2,"n":2}\nbad\n')
    failing_at(monkeypatch, "after:Decide", crash)
    with pytest.raises(Exception, match=CrashError.__name__):
        run(rig, apart(rig, "topic", "files"))
    run(rig, apart(rig, "topic", "files"))

    def counts() -> list[tuple[Any, ...]]:
        return [*rig.sql("SELECT count(*), count(DISTINCT id) FROM topics"), *rig.sql("SELECT count(*) FROM files")]

    assert counts() == [(120, 120), (2,)]
    assert rig.sql("SELECT count(*) FROM letters") == [(3,)]
    (folder / "b.json").write_text("bad\n" * 3)
    rig.put(10)
    with pytest.raises(BadRecord) as refused:
        run(rig, apart(rig, "topic", "files"))
    assert refused.value.code == "too-many-bad-records"
    assert counts() == [(120, 120), (2,)]
    with pytest.raises(ConfigError) as gone:
        run(rig, apart(rig, "topic"))
    assert gone.value.code == "positions-not-read"

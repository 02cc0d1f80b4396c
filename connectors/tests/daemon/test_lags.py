"""How far a pipeline is behind sources that are no topics, on the API and as a metric."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.daemon_stubs import Asking, Query, daemon_of, pipeline_of, whole
from harness.stored_epochs import with_epochs

from onefold.core import DataLoss, Positions, Retriable
from onefold.core.source import BoundedSource
from onefold.core.waiting import Wait
from onefold.daemon.watch.poller import Poller
from onefold.flow import Flow
from onefold.operate.lags import Lags
from onefold.pipeline import Engine, Pipeline
from onefold.sinks import SqlSink
from onefold.sources import FileSource
from onefold.sources.files.source import BoundedFiles
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.journal import StoreJournal


def until(ask: Asking, name: str, value: object) -> None:
    wait = Wait(120)
    while ask.get("/pipelines/orders")[name] != value:
        assert wait.again(), ask.get("/pipelines/orders")


def test_the_lag_of_a_folder_is_its_files_that_were_not_read_and_its_history_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.daemon.watch.watch._SOURCE_S", 0.05)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id":1}\n')
    source = FileSource(str(folder), format="json", schema="id long", settle_s=0)

    def reading(of: FileSource | BoundedFiles) -> Pipeline:
        flow = Flow("orders")
        flow.source(of, uid="in").sink(SqlSink(f"sqlite:///{tmp_path}/out.db", "rows"))
        return Pipeline(flow, runtime=Engine(), directory=str(tmp_path))

    def journal() -> set[str]:
        with closing(CheckpointStore(pipeline.store_url)) as store:
            return StoreJournal(store, "orders", source.name).names()

    reading(source.bounded()).run()
    pipeline = reading(source)
    before = journal()
    for number in (2, 3):
        (folder / f"{number}.json").write_text('{"id":1}\n')
    names = ("store_url", "everyone", "flow", "topics", "dead_letters", "sinks")
    found = pipeline_of(Query, **{name: getattr(pipeline, name) for name in names})
    with daemon_of(found) as ask:
        until(ask, "behind", {"file": 2})
        (folder / "4.json").write_text('{"id":1}\n')
        until(ask, "behind", {"file": 3})
        points = [point["behind"] for point in ask.get("/pipelines/orders/lags")["points"]]
        assert points[0] == {"file": 2} and points[-1] == {"file": 3}
        metric = f'onefold_behind{{pipeline="orders",source="{source.name}",unit="file"}} 3.0'
        assert metric in ask("GET", "/metrics").body.decode()
    assert journal() == before


def test_the_end_of_a_bounded_source_is_asked_for_again_until_its_first_start_has_settled_it() -> None:
    there, settled, open_planners = [3], dict[str, str](), list[int]()

    class Planner:
        unit = "record"

        def __init__(self, until: Positions) -> None:
            self._until = until
            open_planners.append(1)

        def initial(self) -> Positions:
            return Positions.of({"t/0": 0})

        def latest(self, _: Positions) -> Positions:
            return Positions.of({"t/0": there[0]})

        def behind(self, _: Positions) -> dict[str, int]:
            return {name: int(at) for name, at in self._until.items}

        def close(self) -> None:
            open_planners.pop()

    source: Any = SimpleNamespace(
        name="t",
        covers=lambda _: True,
        resolved=lambda _: source,
        planner=lambda _=None, until=None, __=None: Planner(until or Positions()),
    )
    bounded: Any = BoundedSource(source)
    pipeline: Any = SimpleNamespace(
        check_positions=lambda: None, topics=[], found_first=lambda name, find: settled.get(name) or find()
    )
    with closing(Lags(pipeline, cast(Any, lambda _: None), 1)) as lags:

        def behind() -> list[int]:
            return [lag.behind for lag in lags.of(bounded, Positions.of({"t/0": 0}))]

        assert behind() == [3]
        there[0] = 5
        assert behind() == [5] and not open_planners
        settled["end of t"], there[0] = Positions.of({"t/0": 7}).to_json(), 9
        assert behind() == behind() == [7] and open_planners == [1]
    assert not open_planners


def test_a_look_that_comes_too_late_for_what_the_driver_has_left_behind_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def late(_lags: object, at: object) -> object:
        asked.append(at)
        raise DataLoss("file-log-missing", "the log does not have it")

    monkeypatch.setattr("onefold.daemon.watch.watch._SOURCE_S", 0.05)
    monkeypatch.setattr("onefold.operate.lags.Lags.__call__", late)
    with_epochs(f"sqlite:///{tmp_path / 'store.db'}", 3).close()
    with daemon_of(whole(tmp_path)) as ask:
        until(ask, "state", "running")
        wait = Wait(120)
        while len(asked) < 6:
            assert wait.again()
        found = ask.get("/pipelines/orders")
        assert (found["behind"], found["error"], ask("GET", "/ready").status) == (None, None, 200)


@pytest.mark.parametrize(("fails", "rests_s"), [(False, 0.9), (True, 0.01)])
def test_a_question_that_takes_long_is_asked_less_often_and_one_that_fails_soon_again(
    fails: bool, rests_s: float
) -> None:
    def ask() -> None:
        time.sleep(0.1)
        if fails:
            raise Retriable("test", "down")

    poller = Poller("that", ask, every_s=0.01)
    poller.start()
    wait = Wait(120)
    while not poller.has_answer and poller.error is None:
        assert wait.again()
    time.sleep(0.05)
    assert rests_s <= poller._rests_s < rests_s + 0.5
    poller.stop()

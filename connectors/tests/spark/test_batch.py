"""Batch runs without Spark: the store and the sink are as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core import Committable, ConfigError, DataLoss, LedgerEntry
from onefold.core.testing import ModelTwoPhaseSink
from onefold.sinks.staged.upsert import Changes
from onefold.spark.formats.postgres_format import _Target
from onefold.spark.runtime.batch import BatchOutcome, OpenedRun, decide_run, open_run
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of

SCHEMA = pa.schema([("id", pa.string())])


class Rig:
    """Any number of processes of one pipeline, over one sink."""

    def __init__(self, store: Path) -> None:
        self.sink = ModelTwoPhaseSink("sink")
        self.store = CheckpointStore(f"sqlite:///{store}")

    def session(self) -> Session:
        return Session("p", [self.sink], self.store, patience_s=0)

    def open(self, session: Session, run: str) -> OpenedRun:
        opened = open_run(session, run, SCHEMA)
        assert isinstance(opened, OpenedRun)
        return opened

    def write(self, opened: OpenedRun, row: str) -> tuple[Committable, ...]:
        writer = self.sink.writer(task_of(opened.record))
        writer.write(pa.record_batch({"id": [row]}))
        prepared = writer.prepare()
        assert prepared is not None
        return (prepared,)

    def run(self, run: str) -> BatchOutcome:
        session = self.session()
        opened = self.open(session, run)
        return decide_run(session, opened, self.write(opened, run))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path / "store.db")
    yield found
    found.store.close()


def test_a_finished_run_that_is_run_again_fences_nobody_who_decides_at_that_moment(rig: Rig) -> None:
    rig.run("first")
    other = rig.session()
    opened = rig.open(other, "second")
    manifest = rig.write(opened, "second")
    decided: list[BatchOutcome] = []

    class Looks(Session):
        """The other run decides between its look at the store and the one at the sink."""

        def ledgers(self) -> dict[str, LedgerEntry | None]:
            if not decided:
                decided.append(decide_run(other, opened, manifest))
            return super().ledgers()

    again = open_run(Looks("p", [rig.sink], rig.store, patience_s=0), "first", SCHEMA)
    assert again == BatchOutcome("first", 1, 1, replayed=True)
    assert decided == [BatchOutcome("second", 2, 1, replayed=False)]
    assert rig.store.facts("p").generation == 2, "nobody was taken over"
    assert rig.sink.shown() == {"first": 1, "second": 1}


def test_where_store_and_sink_contradict_each_other_a_finished_run_starts_and_says_so(rig: Rig) -> None:
    rig.run("first")
    rig.sink.entry = None
    with raises(DataLoss, "destination-older-copy"):
        open_run(rig.session(), "first", SCHEMA)


OPTIONS = {"url": "postgresql://me:sesame@here/shop", "table": "t", "pipeline": "p", "run": "r"}


def test_the_format_has_an_option_for_all_that_the_sink_can_be_told() -> None:
    given = {"evolve": "True", "role": "owner", "lockTimeoutS": "2.5", "KEY": "a, b", "order": "v", "rejectsMax": "7"}
    settings = _Target.of({**OPTIONS, **given}).sink.settings
    assert (settings.evolve, settings.role, settings.lock_timeout_s, settings.rejects_max) == (True, "owner", 2.5, 7)
    assert settings.changes == Changes(("a", "b"), ("v",))
    assert (settings.delivery, _Target.of(OPTIONS).sink.settings.mode) == ("staged", "append")
    with raises(ConfigError, "option-unknown", "'patienceT'", "'patienceS'"):
        _Target.of({**OPTIONS, "patienceT": "1"})
    with raises(ConfigError, "option-missing", "'run'"):
        _Target.of({**OPTIONS, "run": ""})
    for wrong, what in (("evolve", "true or false"), ("rejectsMax", "a number")):
        with raises(ConfigError, "option-value", f"{wrong}", f"{what}"):
            _Target.of({**OPTIONS, wrong: "x"})


def test_what_a_writer_carries_shows_no_password() -> None:
    assert "sesame" not in repr(_Target.of(OPTIONS))
    assert "sesame" in _Target.of(OPTIONS).store

"""`onefold reset` without servers: when it refuses, in which order it removes, and what a death leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from harness.definitions import named, piped
from harness.errors import raises
from typer.testing import CliRunner

from onefold.cli.commands import reset as command
from onefold.cli.main import app
from onefold.core import ConfigError, Generation, Positions, Range, Sink
from onefold.core.protocol.effects import EpochRequest
from onefold.operate.reset import places_of
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Pipeline
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink
from onefold.sinks.postgres.sink_reset import PostgresReset
from onefold.sources import KafkaSource
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.drivers import DriverNote

AT = [Positions.of({"t/0": n}) for n in range(3)]


class Died(BaseException):
    """Ends a process: nothing of onefold's catches it."""


@dataclass
class Recorded:
    """A place in memory: a ledger of one generation, and rows of one table that `onefold reset` is told of."""

    server: str
    done: list[str]
    ledger: int | None = 1
    rows: int | None = 20
    named: Mapping[str, str | None] = field(default_factory=lambda: {"t": "table t: all of its rows"})
    dies_at: str = ""

    def found(self) -> Iterator[str]:
        if self.ledger is not None:
            yield "the ledger"

    def targets(self) -> Mapping[str, str | None]:
        return self.named

    def generation(self) -> int | None:
        return self.ledger

    def remove(self) -> None:
        for what in ("rows", "ledger"):
            if self.dies_at == what:
                raise Died
            setattr(self, what, None)
            self.done.append(f"{what} of {self.server}")

    def close(self) -> None:
        self.done.append(f"{self.server} closed")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[CheckpointStore]:
    with closing(CheckpointStore(url)) as store:
        yield store


@pytest.fixture
def driver(store: CheckpointStore) -> Generation:
    """One that has begun, and is between two epochs."""
    generation = store.acquire("p", 0)
    store.freeze(generation, AT[0])
    return generation


def opens_an_epoch(store: CheckpointStore, driver: Generation) -> None:
    store.open_epoch(driver, EpochRequest(Range(AT[0], AT[1]), "q", 0, "job", ("t",), (), False), 0, 1)


def reset(
    url: str, *places: Recorded, checkpoint: Path | str = "/nowhere", take_over: bool = False, yes: bool = True
) -> None:
    pipeline = replace(defined(SqlSink(url, "t")), store=url, checkpoint=str(checkpoint))
    with closing(StoppedPipeline(pipeline, "Nothing was removed")) as stopped:
        command.reset_pipeline(stopped, places, take_over, yes)


def is_known(store: CheckpointStore) -> bool:
    return store.facts("p").frozen is not None


@pytest.mark.usefixtures("driver")
def test_the_store_goes_first_and_one_place_after_the_other_each_ledger_after_its_rows(
    url: str, store: CheckpointStore
) -> None:
    done: list[str] = []
    first, second = Recorded("a", done), Recorded("b", done, dies_at="rows")
    with pytest.raises(Died):
        reset(url, first, second)
    assert done == ["rows of a", "ledger of a", "b closed", "a closed"]
    assert not is_known(store) and (second.rows, second.ledger) == (20, 1), "the ledger stops a start"
    second.dies_at = "ledger"
    with pytest.raises(Died):
        reset(url, first, second)
    assert (second.rows, second.ledger) == (None, 1)
    second.dies_at = ""
    reset(url, first, second)
    assert (first.ledger, second.ledger) == (None, None)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_store_that_does_not_know_the_pipeline_of_a_ledger_is_refused_unless_it_is_lost(
    url: str, store: CheckpointStore, is_there: bool
) -> None:
    if is_there:
        store.acquire("another", 0)
    place = Recorded("a", [], ledger=0)
    with raises(ConfigError, "ledger-of-another-store"):
        reset(url, place)
    assert (place.rows, place.ledger) == (20, 0)
    reset(url, place, take_over=True)
    assert (place.rows, place.ledger) == (None, None)


def test_a_driver_that_opens_an_epoch_before_the_answer_is_noticed_after_it(
    url: str, store: CheckpointStore, driver: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: opens_an_epoch(store, driver))
    place = Recorded("a", [])
    with raises(ConfigError, "pipeline-may-run"):
        reset(url, place, yes=False)
    assert is_known(store) and place.rows == 20 and store.facts("p").generation == driver.number


def test_a_driver_that_opens_an_epoch_before_it_is_fenced_is_noticed_then_and_by_each_reset_to_come(
    url: str, store: CheckpointStore, driver: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = CheckpointStore.acquire

    def late(self: CheckpointStore, pipeline: str, above: int) -> Generation:
        opens_an_epoch(store, driver)
        return acquire(self, pipeline, above)

    place = Recorded("a", [])
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "acquire", late)
        with raises(ConfigError, "pipeline-may-run"):
            reset(url, place)
    with raises(ConfigError, "pipeline-may-run"):
        reset(url, place)
    assert is_known(store) and place.rows == 20
    reset(url, place, take_over=True)
    assert not is_known(store) and place.rows is None


def test_a_driver_that_starts_before_the_answer_is_noticed_after_it_and_no_more_once_it_has_ended(
    url: str, store: CheckpointStore, driver: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = DriverNote(store)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: note.began(driver))
    place = Recorded("a", [])
    with raises(ConfigError, "pipeline-may-run", f"{os.getpid()}"):
        reset(url, place, yes=False)
    assert is_known(store) and place.rows == 20
    note.ended()
    reset(url, place)
    assert not is_known(store) and place.rows is None


@pytest.mark.usefixtures("driver")
def test_a_target_that_is_not_there_is_refused(url: str, store: CheckpointStore) -> None:
    place = Recorded("a", [], named={"oders": None})
    with raises(ConfigError, "reset-target-missing", "'oders'"):
        reset(url, place)
    assert is_known(store) and place.ledger == 1


@pytest.mark.usefixtures("driver")
def test_the_plan_names_the_server_of_each_line_and_where_rows_stay(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reset(url, Recorded("a", []), Recorded("b", [], named={}))
    lines = capsys.readouterr().out.splitlines()
    assert {"  a: the ledger", "  a: table t: all of its rows, also those of other pipelines", "  b: the ledger"} < {
        *lines
    }
    assert [line for line in lines if "stay" in line] == ["the rows in b stay: --rows removes them, too"]


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to(path.parent), "is a link or a file"),
        (lambda path: path.symlink_to("nowhere"), "is a link or a file"),
        (lambda path: path.write_text(""), "is a link or a file"),
        (lambda path: path.mkdir(), "this user may not remove"),
    ],
)
def test_a_checkpoint_that_cannot_be_removed_is_refused_before_anything_is(
    url: str,
    store: CheckpointStore,
    tmp_path: Path,
    make: Callable[[Path], object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may do everything
    place, checkpoint = Recorded("a", []), tmp_path / "checkpoint"
    make(checkpoint)
    with pytest.raises(ConfigError, match=rf"{said}.*: nothing was removed\."):
        reset(url, place, checkpoint=checkpoint)
    assert is_known(store) and place.rows == 20


@pytest.mark.usefixtures("driver")
def test_a_checkpoint_that_is_not_removed_after_all_is_said_with_what_to_do(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path / "offsets"))

    monkeypatch.setattr("shutil.rmtree", refuse)
    (tmp_path / "checkpoint").mkdir()
    with raises(ConfigError, "checkpoint-not-removed"):
        reset(url, Recorded("a", []), checkpoint=tmp_path / "checkpoint")


@pytest.mark.usefixtures("driver")
def test_a_checkpoint_that_is_not_of_this_machine_stays_and_the_rest_goes(
    url: str, store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Recorded("a", [])
    reset(url, place, checkpoint="s3://bucket/orders")
    assert "the checkpoint s3://bucket/orders stays: remove it yourself\n" in capsys.readouterr().out
    assert not is_known(store) and place.ledger is None


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_checkpoint_of_this_machine_may_be_named_by_its_url(url: str, tmp_path: Path, scheme: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    reset(url, Recorded("a", []), checkpoint=f"{scheme}{checkpoint}")
    assert not checkpoint.exists()


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("left", [["checkpoint.restoring"], ["checkpoint.restoring", "checkpoint.replaced"]])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_restore_that_was_cut_short_left_beside_the_checkpoint_goes_too(
    url: str, tmp_path: Path, left: list[str], is_there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in [*(["checkpoint"] if is_there else []), *left]]
    other = tmp_path / "checkpoint.old"
    for folder in [*folders, other]:
        (folder / "offsets").mkdir(parents=True)
    reset(url, Recorded("a", []), checkpoint=f"{tmp_path / 'checkpoint'}/")
    shown = capsys.readouterr().out
    assert all(f"the checkpoint directory {folder}\n" in shown and not folder.exists() for folder in folders)
    assert other.exists()


@pytest.mark.usefixtures("driver")
def test_a_folder_named_as_a_restore_names_its_own_that_is_no_checkpoint_is_refused(url: str, tmp_path: Path) -> None:
    place, thesis = Recorded("a", []), tmp_path / "checkpoint.replaced" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("")
    with raises(ConfigError, "not-a-checkpoint", "which no checkpoint has"):
        reset(url, place, checkpoint=tmp_path / "checkpoint")
    assert thesis.exists() and place.rows == 20


def defined(*sinks: Sink, **more: Any) -> Pipeline:
    source = KafkaSource(
        "t",
        bootstrap_servers="nowhere:9092",
        format="json",
        schema="id long",
        on_error="dead_letter" if "dead_letters" in more else "fail",
    )
    return piped("p", source=source, sinks=sinks, store="sqlite://", **more)


def test_sinks_that_share_a_ledger_are_one_place_with_the_tables_of_all() -> None:
    bad, letters = {"on_error": "dead_letter"}, PostgresSink("postgresql://h/d", "shop.letters")
    sinks = [
        PostgresSink("postgresql://h/d", "orders", **bad),
        PostgresSink("postgresql://h/d", "returns", **bad, rejects_table="shop.bad"),
        PostgresSink("postgresql://h/d", "elsewhere", ledger="books"),
        PostgresSink("postgresql://h/other", "orders", name="others"),
        KafkaSink("sales", bootstrap_servers="h:1"),
        KafkaSink("events", bootstrap_servers="h:1"),
        SqlSink("sqlite:////x/rows.db", "rows"),
        HBaseSink("h:9090", "totals", row_key="id", family="f"),
    ]
    pipeline = defined(*sinks, dead_letters=letters)
    found = [getattr(place, "tables", getattr(place, "topics", None)) for place in places_of(pipeline, with_rows=True)]
    assert [[str(name) for name in named or ()] for named in found] == [
        ["orders", "returns", "shop.letters"],
        ["elsewhere"],
        ["orders"],
        ["sales", "events"],
        ["rows"],
        ["totals"],
    ]
    first, *others = places_of(pipeline, with_rows=False)
    assert isinstance(first, PostgresReset) and len(others) == 5
    assert [str(table) for table in first.rejects] == ["onefold_sinks.onefold_dead_letters", "shop.bad"]
    assert first.tables == ()


def test_a_sink_whose_ledger_reset_does_not_know_is_refused() -> None:
    class Own(PostgresSink):
        pass

    with raises(ConfigError, "reset-unsupported"):
        CliRunner().invoke(app, ["reset", named(defined(Own("postgresql://h/d", "t")))], catch_exceptions=False)

"""`onefold savepoint` without servers and without Spark: into SQLite, over checkpoints that the test writes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from harness.definitions import named, piped
from harness.errors import raises
from pyarrow import fs
from rich.console import Console
from typer.testing import CliRunner, Result

from onefold.cli.commands import positions as positions_command
from onefold.cli.listed_savepoints import print_savepoints
from onefold.cli.main import app
from onefold.clients import files
from onefold.clients.files import FileSystems, LocalFiles
from onefold.core import (
    CheckpointMismatch,
    Committable,
    ConfigError,
    EpochRecord,
    OutOfResources,
    Positions,
    Range,
    Retriable,
)
from onefold.core.moves import MoveNote
from onefold.core.positions import WATERMARK
from onefold.core.protocol import coordinator
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.core.values.remedies import SPARK_FLOW
from onefold.core.writing.dead_letters import Tally
from onefold.engine.savepoints.savepoint import CopiedFile, QueryCheckpoint, Savepoint, listed
from onefold.operate.savepoint import making
from onefold.operate.savepoint import query_restore as restoring
from onefold.operate.savepoint.checkpoint_files import belonging, with_query_id
from onefold.operate.stopped import StoppedPipeline
from onefold.pipeline import Pipeline
from onefold.sinks import SqlSink
from onefold.sources import KafkaSource
from onefold.spark.runtime.query import QuerySession
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.history import History
from onefold.store.job.offset_json import StreamOffset
from onefold.store.job.query import QueryJob, RunningQuery
from onefold.store.job.session import task_of
from onefold.store.savepoint_notes import Beginning, beginning

ROWS = pa.record_batch({"id": pa.array([1], pa.int64()), "n": pa.array([1], pa.int64())})
AT = [Positions.of({"t/0": 10 * n}, {"t/id": "topic-1"}) for n in range(9)]
NO_SPARK = cast(Any, None)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Died(BaseException):
    """Ends a process: nothing of onefold's catches it."""


def pipeline_in(directory: Path, name: str = "p", table: str = "rows", **more: Any) -> Pipeline:
    sink = SqlSink(f"sqlite:///{directory}/rows.db", table=table, **more)
    source = KafkaSource("t", bootstrap_servers="nowhere:9092", format="json", schema="id long, n long")
    return piped(name, source=source, sinks=[sink], directory=str(directory), patience_s=0.1)


def logged(of: Pipeline, batch: int, *, is_done: bool = True, provider: str = ROCKSDB) -> None:
    """That batch in the checkpoint: it ends at AT[batch + 1]."""
    root = Path(of.checkpoint)
    for folder in ("offsets", "commits", "state/0/0"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text('{"id":"query-1"}')
    settings = {"spark.sql.shuffle.partitions": "4", "spark.sql.streaming.stateStore.providerClass": provider}
    offsets = json.dumps(StreamOffset(AT[batch + 1], AT[0]).value())
    times = json.dumps({"batchWatermarkMs": 1000 * (batch + 1), "conf": settings})
    (root / f"offsets/{batch}").write_text(f"v1\n{times}\n{offsets}")
    (root / f"state/0/0/{batch + 1}.zip").write_text(f"state {batch}")
    (root / f"state/0/0/.{batch + 1}.zip.crc").write_text("")
    if is_done:
        (root / f"commits/{batch}").write_text("v1\n{}")


def opened(of: Pipeline) -> QuerySession:
    return QuerySession(of.name, of.sinks, CheckpointStore(of.store_url), 0, (), Tally(), SPARK_FLOW)


def write(session: QuerySession, request: EpochRequest) -> EpochRecord:
    def writers(record: EpochRecord) -> tuple[Committable, ...]:
        writer = session.sinks[0].writer(task_of(record))
        writer.write(ROWS)
        prepared = writer.prepare()
        assert prepared is not None
        return (prepared,)

    return session.run_epoch(request, writers).record


def run(of: Pipeline, *batches: int, clocks: tuple[str, ...] = ()) -> None:
    """The pipeline in a process of its own, which ends after these batches. By `clocks` its query makes rows."""
    with closing(opened(of)) as session:
        session.start(Initial(AT[0], setting="earliest"))
        session.check_checkpoint(NO_SPARK, of.checkpoint)
        list(session.check_targets())
        fingerprint = session.open_sinks(ROWS.schema)
        query = RunningQuery("query-1", "run-1", of.checkpoint, True, clocks)
        session.drive(session.lifecycle.bind(query))
        for batch in batches:
            logged(of, batch, is_done=False)
            request = session.drive(session.lifecycle.request(batch, QueryJob(fingerprint, session.names)))
            assert request.range.end.of_records() == AT[batch + 1]
            write(session, request)
            logged(of, batch)


def rows(of: Pipeline) -> int:
    with closing(CheckpointStore(of.store_url)) as store:
        return sum(record.rows for record in store.history(of.name))


def savepoint(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["savepoint", *arguments], input=answer, catch_exceptions=False)


def saved(of: Pipeline, name: str = "s") -> Path:
    return Path(of.directory) / ".onefold/savepoints" / of.name / name


def create(of: Pipeline, name: str = "s") -> Path:
    result = savepoint("create", named(of), "--name", name)
    assert result.exit_code == 0, result.output
    return saved(of, name)


def restore(of: Pipeline, *arguments: str, name: str = "s") -> str:
    result = savepoint("restore", named(of), name, "--yes", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Three epochs were written, and it is stopped."""
    made = pipeline_in(tmp_path)
    run(made, 0, 1, 2)
    return made


def test_a_savepoint_says_what_it_is_of_and_is_the_same_when_it_is_read_again() -> None:
    made = Savepoint(
        name="s",
        made_at="2026-11-23T18:00:00+00:00",
        pipeline="p",
        onefold="0.1.0",
        store_id="store",
        generation=3,
        epoch=7,
        timestamp_ms=1,
        fingerprint="f",
        positions=AT[2],
        frozen=AT[0].with_setting("earliest"),
        pins={"schema": "id long"},
        files=(CopiedFile("metadata", 16, "00"), CopiedFile("commits/6", 5, "11")),
        query=QueryCheckpoint("4.2.0", "q", 6, 4, None),
    )
    again = Savepoint.from_json(made.to_json())
    assert again == made and again.digest == made.digest and again.bytes == 21
    assert again.positions.marks == AT[2].marks and again.frozen is not None and again.frozen.setting == "earliest"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format":"x"}', '{"format":2}', '{"format":Infinity}', "[" * 100_000],
    ids=lambda t: t[:20],
)
def test_a_text_that_is_no_savepoints_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is no savepoint's|its content is not what was written"):
        Savepoint.from_json(text)


def test_a_savepoint_of_a_later_format_is_left_to_a_later_onefold() -> None:
    with raises(ConfigError, "savepoint-too-new"):
        Savepoint.from_json('{"format":9,"name":"s","onefold":"3.0"}')


def test_what_later_batches_have_left_does_not_belong_to_a_batch() -> None:
    of_batch_4 = [
        "metadata",
        "offsets/4",
        "commits/4",
        "sources/0/0",
        "state/0/1/5.delta",
        "state/0/1/5.snapshot",
        "state/0/1/left-keyToNumValues/5.zip",
        "state/0/1/5_2f6a.changelog",
        "state/0/1/SSTs/000008-1f.sst",
        "state/0/_metadata/metadata",
        "state/0/_metadata/v2/4",
    ]
    of_batch_5 = [
        "offsets/5",
        "commits/5",
        "state/0/1/6.delta",
        "state/0/1/left-keyToNumValues/6.zip",
        "state/0/1/6_2f6a.changelog",
        "state/0/_metadata/v2/5",
    ]
    assert belonging([*of_batch_4, *of_batch_5], 4) == of_batch_4


def test_state_that_is_no_tables_is_not_told_to_be_the_same(pipeline: Pipeline) -> None:
    create(pipeline)
    with raises(ConfigError, "savepoint-of-a-query", "'s' is a query's checkpoint"):
        savepoint("diff", named(pipeline), "s", "s")


def test_another_query_id_changes_nothing_else_of_the_metadata() -> None:
    assert with_query_id('{"id":"a","more":1}', "b") == '{"id":"b","more":1}'


def test_an_operators_metadata_names_the_schemas_of_the_checkpoint_that_it_is_in(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Spark has them by their whole paths, for transformWithState."""
    folder = Path(pipeline.checkpoint) / "state/0/_metadata/v2"
    folder.mkdir(parents=True)
    text = 'v2\n{"operatorId":0,"stateSchemaFilePaths":["file:/old/state/9/p/state/0/_stateSchema/default/0_ab"]}'
    (folder / "1").write_text(text)
    create(pipeline)
    other = pipeline_in(tmp_path, "green", "green")
    restore(pipeline, "--as", named(other))
    restore(pipeline)
    for each in (pipeline, other):
        found = (Path(each.checkpoint) / "state/0/_metadata/v2/1").read_text()
        assert f'"stateSchemaFilePaths":["file:{each.checkpoint}/state/0/_stateSchema/default/0_ab"]' in found
        assert found.startswith('v2\n{"operatorId":0,')


def test_a_savepoint_goes_back_to_its_place_where_nothing_was_written_since(pipeline: Pipeline) -> None:
    place = create(pipeline)
    copied = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert "savepoint.json" in copied and "checkpoint/state/0/0/3.zip" in copied
    assert not any(".crc" in path for path in copied)
    for path in Path(pipeline.checkpoint).rglob("*"):
        if path.is_file():
            path.write_text("ruined")
    assert "takes the place of what is in the checkpoint" in restore(pipeline)
    run(pipeline, 3, 4)
    assert rows(pipeline) == 5
    left = sorted(path.name for path in Path(pipeline.checkpoint).parent.iterdir())
    assert left == ["p.checkpoint", "savepoints"]


def noted(of: Pipeline) -> list[tuple[str, int] | None]:
    """The savepoints that the store has as last made and as last restored."""
    with closing(History(of.store_url, 1)) as history:
        status = history.status(of.name)
    assert status is not None
    return [None if note is None else (note.name, note.epoch) for note in (status.savepoint, status.restored)]


def test_the_store_knows_which_savepoint_was_last_made_and_which_was_last_restored(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    other = pipeline_in(tmp_path, "green", "green")
    create(pipeline, "first")
    assert noted(pipeline) == [("first", 3), None]
    restore(pipeline, name="first")
    run(pipeline, 3)
    create(pipeline, "second")
    assert noted(pipeline) == [("second", 4), ("first", 3)]
    restore(pipeline, "--as", named(other), name="second")
    assert noted(pipeline) == [("second", 4), ("first", 3)]
    assert noted(other) == [None, ("second", 4)]


def test_a_checkpoint_that_is_a_link_stays_one(pipeline: Pipeline, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    Path(pipeline.checkpoint).rename(volume)
    Path(pipeline.checkpoint).symlink_to(volume)
    create(pipeline)
    restore(pipeline)
    assert Path(pipeline.checkpoint).is_symlink() and not volume.is_symlink()
    run(pipeline, 3)
    assert rows(pipeline) == 4 and (volume / "commits/3").exists()


def test_no_pipeline_goes_back_where_rows_would_be_there_twice(pipeline: Pipeline) -> None:
    create(pipeline)
    run(pipeline, 3)
    with raises(ConfigError, "move-would-double", "'rows'", "'p'"):
        restore(pipeline)
    run(pipeline, 4)
    assert rows(pipeline) == 5


def test_a_move_forwards_is_taken_back_by_a_savepoint_also_where_rows_are_appended(pipeline: Pipeline) -> None:
    create(pipeline)
    stopped = StoppedPipeline(pipeline, "Nothing was changed")
    with closing(stopped.session(set_aside=lambda _: shutil.rmtree(pipeline.checkpoint))) as session:
        session.take_over()
        session.move(AT[5], MoveNote("us", "the wrong day"))
    said = savepoint("restore", named(pipeline), "s", answer="n\n").output
    assert "the pipeline goes back from epoch 4; records that come again: 0" in said
    restore(pipeline)
    run(pipeline, 3, 4)
    assert rows(pipeline) == 5
    with closing(CheckpointStore(pipeline.store_url)) as store:
        assert [move.range for move in store.moves("p")] == [Range(AT[3], AT[5]), Range(AT[5], AT[3])]


def upserting(directory: Path, name: str = "p") -> Pipeline:
    return pipeline_in(directory, name, mode="upsert", key="id", order="n")


@pytest.mark.parametrize(
    "place", ["", "restore:noted", "restore:removed", "restore:swapped", "after:ReadClock", "after:Decide"]
)
def test_a_pipeline_whose_rows_replace_each_other_goes_back_to_it_and_its_records_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    made = upserting(tmp_path)
    run(made, 0, 1)
    create(made)
    run(made, 2, 3)
    if place:
        dying(monkeypatch, place)
        with pytest.raises(Died):
            restore(made)
        monkeypatch.undo()
        with raises(CheckpointMismatch, "restore-unfinished"):
            run(made, 2)
    elif not place:
        said = savepoint("restore", named(made), "s", answer="n\n").output
        assert "the pipeline goes back from epoch 4; records that come again: 20" in said
    restore(made)
    with closing(CheckpointStore(made.store_url)) as store:
        moved = store.moves("p")[-1]
        assert (moved.range, moved.rows) == (Range(AT[4], AT[2]), 0) and "savepoint s" in moved.fingerprint
    run(made, 2, 3, 4)
    assert rows(made) == 7
    assert [path.name for path in Path(made.checkpoint).parent.iterdir() if "checkpoint" in path.name] == [
        "p.checkpoint"
    ]


def test_a_query_with_a_watermark_goes_on_from_a_savepoint_in_its_place_and_under_another_name(tmp_path: Path) -> None:
    made, other = upserting(tmp_path), upserting(tmp_path, "green")
    run(made, 0, 1, clocks=(WATERMARK,))
    create(made)
    restore(made)
    restore(made, "--as", named(other))
    run(other, 2, clocks=(WATERMARK,))
    run(made, 2, clocks=(WATERMARK,))
    with raises(ConfigError, "state-not-movable"):
        restore(made)
    assert (rows(made), rows(other)) == (3, 1)


def test_no_state_goes_back_over_an_empty_table(tmp_path: Path) -> None:
    made = upserting(tmp_path)
    run(made, 0, 1)
    create(made)
    run(made, 2)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("DELETE FROM rows")
        connection.commit()
    with raises(ConfigError, "savepoint-sink-empty", "'rows'"):
        restore(made)


def test_a_savepoint_of_another_life_of_the_pipeline_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    create(pipeline)
    (tmp_path / "again").mkdir()
    again = pipeline_in(tmp_path / "again")
    place = str(saved(pipeline).parent)
    with raises(CheckpointMismatch, "savepoint-elsewhere", "'s'"):
        restore(again, "--in", place)
    run(again, 0, 1)
    with raises(CheckpointMismatch, "savepoint-elsewhere"):
        restore(again, "--in", place)


def test_another_pipeline_begins_with_it_and_the_first_one_goes_on(pipeline: Pipeline, tmp_path: Path) -> None:
    other = pipeline_in(tmp_path, "green", "green")
    create(pipeline)
    run(pipeline, 3)
    restore(pipeline, "--as", named(other))
    with closing(CheckpointStore(other.store_url)) as store:
        facts = store.facts("green")
        assert facts.last is not None and facts.last.epoch == 3 and facts.frozen == AT[0]
    assert json.loads((Path(other.checkpoint) / "metadata").read_text())["id"] != "query-1"
    run(other, 3, 4)
    run(pipeline, 4)
    assert (rows(other), rows(pipeline)) == (2, 5)
    with raises(ConfigError, "checkpoint-exists"):
        restore(pipeline, "--as", named(other))
    with raises(ConfigError, "pipeline-not-new"):
        restore(pipeline, "--as", named(replace(other, checkpoint=str(tmp_path / "elsewhere"))))


@pytest.mark.parametrize(
    ("table", "noted"),
    [
        ([], Beginning(3, AT[3], ("green",))),
        (["CREATE TABLE green (id bigint)"], Beginning(3, AT[3], ("green",))),
        (["CREATE TABLE green (id bigint)", "INSERT INTO green VALUES (1)"], Beginning(3, AT[3], ())),
    ],
)
@pytest.mark.parametrize("has_state", [False, True])
def test_which_tables_were_empty_when_a_pipeline_began_with_it_is_noted_of_a_query_without_state(
    pipeline: Pipeline, tmp_path: Path, table: list[str], noted: Beginning, has_state: bool
) -> None:
    if not has_state:
        shutil.rmtree(Path(pipeline.checkpoint) / "state")
    create(pipeline)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        for statement in table:
            connection.execute(statement)
        connection.commit()
    other = pipeline_in(tmp_path, "green", "green")
    restore(pipeline, "--as", named(other))
    with closing(CheckpointStore(other.store_url)) as store:
        assert beginning(store, "green") == (None if has_state else noted)
        assert beginning(store, "p") is None


@pytest.mark.parametrize("place", ["restore:staged", "restore:noted", "restore:removed", "restore:swapped"])
def test_a_restore_that_dies_is_finished_by_the_same_command_and_no_start_goes_on_before(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    create(pipeline)
    dying(monkeypatch, place)
    with pytest.raises(Died):
        restore(pipeline)
    monkeypatch.undo()
    if place != "restore:staged":
        with raises(CheckpointMismatch, "restore-unfinished"):
            run(pipeline, 3)
    restore(pipeline)
    run(pipeline, 3)
    assert rows(pipeline) == 4
    left = sorted(path.name for path in Path(pipeline.checkpoint).parent.iterdir())
    assert left == ["p.checkpoint", "savepoints"]


PLACES = ["restore:noted", "restore:removed", "restore:swapped", "restore:begun"]


@pytest.mark.parametrize("place", PLACES)
def test_another_pipelines_restore_that_dies_is_finished_by_the_same_command(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    other = pipeline_in(tmp_path, "green", "green")
    create(pipeline)
    dying(monkeypatch, place)
    with pytest.raises(Died):
        restore(pipeline, "--as", named(other))
    monkeypatch.undo()
    with raises(CheckpointMismatch, "restore-unfinished"):
        run(other, 3)
    restore(pipeline, "--as", named(other))
    run(other, 3)
    assert rows(other) == 1


def test_a_restore_that_died_is_not_finished_with_another_savepoint(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(pipeline)
    create(pipeline, "other")
    dying(monkeypatch, "restore:removed")
    with pytest.raises(Died):
        restore(pipeline)
    monkeypatch.undo()
    with raises(CheckpointMismatch, "restore-unfinished", "'s'"):
        restore(pipeline, name="other")


def dying(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def failpoint(name: str) -> None:
        if name == place:
            raise Died

    monkeypatch.setattr(restoring, "failpoint", failpoint)
    monkeypatch.setattr(coordinator, "failpoint", failpoint)
    monkeypatch.setattr(making, "failpoint", failpoint)
    # A process that dies tidies nothing up.
    monkeypatch.setattr(
        LocalFiles, "remove", lambda self, path: None if place == "restore:staged" else LOCAL(self, path)
    )


LOCAL = LocalFiles.remove


def test_the_list_names_what_is_whole_and_what_is_damaged(pipeline: Pipeline) -> None:
    assert savepoint("list", named(pipeline)).output.startswith("no savepoint in ")
    for name in ("whole", "state", "gone", "positions", "text"):
        create(pipeline, name)
    (saved(pipeline, "state") / "checkpoint/state/0/0/3.zip").write_text("state X")
    (saved(pipeline, "gone") / "checkpoint/commits/2").unlink()
    described = saved(pipeline, "positions") / "savepoint.json"
    described.write_text(described.read_text().replace('"t/0": 30', '"t/0": 31'))
    (saved(pipeline, "text") / "savepoint.json").write_text("{")
    (saved(pipeline, "half") / "checkpoint").mkdir(parents=True)
    saved(pipeline, "half").rename(saved(pipeline, "half.partial"))
    result = savepoint("list", named(pipeline), "--json")
    found = {each["name"]: each for each in json.loads(result.output)}
    assert result.exit_code == 1
    damaged = {name: each["damage"] for name, each in found.items()}
    assert damaged.pop("whole") is None
    assert "state/0/0/3.zip is not what was copied" in damaged["state"]
    assert damaged["gone"] == "checkpoint/commits/2 is missing"
    assert "its content is not what was written" in damaged["positions"]
    assert "it is no savepoint's" in damaged["text"] and len(damaged) == 4
    assert (found["whole"]["epoch"], found["whole"]["positions"]["t/0"]) == (3, 30)
    shown = savepoint("list", named(pipeline)).output
    assert "DAMAGED" in shown and "half" not in shown
    at = datetime.fromisoformat(found["whole"]["made_at"])
    assert f" {at:%Y-%m-%d} " in shown and f" {at:%H:%M:%S} " in shown, "no column is cut"


@pytest.mark.parametrize("broken", ["checkpoint/state/0/0/3.zip", "savepoint.json"])
def test_a_damaged_savepoint_is_not_restored_and_nothing_is_changed(pipeline: Pipeline, broken: str) -> None:
    place = create(pipeline)
    (place / broken).write_text("broken")
    with raises(ConfigError, "savepoint-damaged", "'s'"):
        restore(pipeline)
    run(pipeline, 3)
    assert rows(pipeline) == 4


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_cuts_no_name_time_or_verdict_however_narrow_the_terminal_is(pipeline: Pipeline, width: int) -> None:
    (create(pipeline, "before-the-upgrade") / "checkpoint/commits/2").unlink()
    files = LocalFiles()
    (found,) = listed(files, str(saved(pipeline).parent))
    shown = StringIO()
    print_savepoints(Console(file=shown, width=width), [found])
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.getvalue().splitlines() if "│" in line]
    name, *_, verdict = map("".join, zip(*cells, strict=True))
    assert found.savepoint is not None
    assert (name, verdict) == ("before-the-upgrade", "DAMAGED")
    at = datetime.fromisoformat(found.savepoint.made_at)
    assert " ".join(row[1] for row in cells if row[1]) == f"{at:%Y-%m-%d %H:%M:%S} UTC", (
        "broken between its parts alone"
    )
    assert shown.getvalue().endswith("\nbefore-the-upgrade: DAMAGED: checkpoint/commits/2 is missing\n")


@pytest.mark.parametrize("gone", ["checkpoint/commits/2", "savepoint.json"])
def test_a_savepoint_that_lacks_a_file_is_damaged_to_the_list_as_to_a_restore(pipeline: Pipeline, gone: str) -> None:
    (create(pipeline) / gone).unlink()
    result = savepoint("list", named(pipeline), "--json")
    (told,) = json.loads(result.output)
    assert (result.exit_code, told["damage"]) == (1, f"{gone} is missing")
    with raises(ConfigError, "savepoint-damaged", f"{gone}"):
        restore(pipeline)
    run(pipeline, 3)
    assert rows(pipeline) == 4


@pytest.mark.parametrize("unread", ["checkpoint/commits/2", "savepoint.json"])
def test_a_savepoint_that_is_there_and_cannot_be_read_now_is_not_called_damaged(
    pipeline: Pipeline, unread: str
) -> None:
    file = create(pipeline) / unread
    content = file.read_bytes()
    file.unlink()
    file.mkdir()
    result = savepoint("list", named(pipeline), "--json")
    (told,) = json.loads(result.output)
    assert (result.exit_code, told["damage"]) == (1, None)
    assert told["unreadable"].endswith(f"{unread} cannot be read: it is no file, or a link, which is not followed")
    with raises(Retriable, "savepoint-unreadable"):
        restore(pipeline)
    file.rmdir()
    file.write_bytes(content)
    assert savepoint("list", named(pipeline)).exit_code == 0
    restore(pipeline)


@pytest.mark.parametrize("path", ["../../../../../elsewhere", "{tmp_path}/elsewhere"])
def test_a_savepoint_that_names_files_outside_of_it_is_damaged_and_writes_none(
    pipeline: Pipeline, tmp_path: Path, path: str
) -> None:
    described = create(pipeline) / "savepoint.json"
    (tmp_path / "elsewhere").write_text("as it was")
    made = Savepoint.from_json(described.read_text())
    whole = (*made.files, CopiedFile(path.format(tmp_path=tmp_path), 0, ""))
    described.write_text(replace(made, files=whole).to_json())
    assert savepoint("list", named(pipeline)).exit_code == 1
    with raises(ConfigError, "savepoint-damaged"):
        restore(pipeline)
    assert (tmp_path / "elsewhere").read_text() == "as it was"


def test_a_disk_that_is_full_is_said_and_nothing_is_left(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def fsync(number: int) -> None:
        written.append(number)
        if len(written) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with raises(OutOfResources, "savepoint-disk-full"):
            create(pipeline)
        written.clear()
    assert list(saved(pipeline).parent.iterdir()) == []
    create(pipeline)


def test_a_name_is_taken_once_and_is_a_folders_name(pipeline: Pipeline) -> None:
    create(pipeline)
    with closing(CheckpointStore(pipeline.store_url)) as store:
        before = store.facts(pipeline.name).generation
        with raises(ConfigError, "savepoint-exists"):
            create(pipeline)
        assert store.facts(pipeline.name).generation == before, "nothing was taken over"
    for name in ("", "a/b", ".a", "a.partial"):
        with raises(ConfigError, "option-value"):
            create(pipeline, name)
    with raises(ConfigError, "savepoint-missing", "'x'"):
        restore(pipeline, name="x")


def test_what_a_driver_has_open_is_left_to_it_unless_nobody_lives(pipeline: Pipeline) -> None:
    with closing(opened(pipeline)) as session:
        session.start(None)
        for command in ("create", "restore"):
            arguments = [named(pipeline), *(["s"] if command == "restore" else [])]
            if command == "restore":
                assert savepoint("create", named(pipeline), "--name", "s", "--take-over").exit_code == 0
                session.start(None)
            with raises(ConfigError, "pipeline-may-run"):
                savepoint(command, *arguments)


def test_the_last_epoch_must_be_where_the_checkpoint_is(pipeline: Pipeline, tmp_path: Path) -> None:
    (Path(pipeline.checkpoint) / "commits/2").unlink()
    with raises(CheckpointMismatch, "savepoint-not-at-rest"):
        create(pipeline)
    with raises(ConfigError, "pipeline-unknown"):
        create(pipeline_in(tmp_path, "new"))
    logged(pipeline, 2)
    logged(pipeline, 3, is_done=False)
    place = create(pipeline)
    assert not (place / "checkpoint/offsets/3").exists() and (place / "checkpoint/offsets/2").exists()


def test_where_it_stands_is_shown_while_its_brokers_are_away(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions_command, "_WITHIN_S", 0.5)
    shown = CliRunner().invoke(app, ["positions", named(pipeline)], catch_exceptions=False)
    assert shown.exit_code == 0 and "[kafka-unreachable]" in shown.output
    (line,) = (line.split() for line in shown.output.splitlines() if line.strip().startswith("t/0 "))
    assert line == ["t/0", str(dict(AT[3].items)["t/0"]), "?", "?", str(dict(AT[3].items)["t/0"])]


def test_what_it_is_of_and_what_it_becomes_must_go_together(pipeline: Pipeline, tmp_path: Path) -> None:
    create(pipeline)
    other = pipeline_in(tmp_path, "green", "green")
    with raises(ConfigError, "savepoint-of-another", "'p'", "'green'"):
        restore(other, "--in", str(saved(pipeline).parent))
    with raises(ConfigError, "option-value", "'p'"):
        restore(pipeline, "--as", named(pipeline))
    assert savepoint("restore", named(pipeline), "s", answer="n\n").exit_code == 1


@pytest.mark.parametrize(("has_state", "code"), [(True, "state-not-repartitioned"), (False, "savepoint-stateless")])
def test_only_the_state_of_rocksdb_is_shared_out_anew(tmp_path: Path, has_state: bool, code: str) -> None:
    made = pipeline_in(tmp_path)
    run(made, 0)
    logged(made, 0, provider="org.apache.spark.HDFSBackedStateStoreProvider")
    if not has_state:
        for path in (Path(made.checkpoint) / "state/0/0").iterdir():
            path.unlink()
    create(made)
    with raises(ConfigError, code):
        restore(made, "--shuffle-partitions", "7")
    if has_state:
        restore(made, "--shuffle-partitions", "4")


def test_a_batch_pipeline_has_no_savepoints(tmp_path: Path) -> None:
    made = pipeline_in(tmp_path)
    with closing(opened(made)) as session:
        from onefold.core.protocol.runs import NO_RUN, next_range

        session.start(Initial(NO_RUN))
        session.open_sinks(ROWS.schema)
        write(session, EpochRequest(next_range(session.facts(), "r"), "", 0, "job", session.names))
    with raises(ConfigError, "batch-and-stream-mixed"):
        create(made)


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    files = LocalFiles()
    for path in ("b/2", "a/1", "a/.1.crc"):
        files.write(f"file:{tmp_path}", path, [b"x", b"y"])
    assert files.below(str(tmp_path)) == ["a/1", "b/2"] and files.names(str(tmp_path)) == ["a", "b"]
    assert files.below(f"{tmp_path}/c") == [] and files.names(f"{tmp_path}/c") == []
    assert b"".join(files.read(str(tmp_path), "a/1")) == b"xy"
    files.remove(f"{tmp_path}/a")
    files.remove(f"{tmp_path}/a")
    assert not files.exists(f"{tmp_path}/a")


class Bucket(fs.SubTreeFileSystem):  # type: ignore[misc]  # pyarrow has no types
    """A store as `pyarrow.fs` has it, which makes no folders."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), fs.LocalFileSystem())
        self.root = root

    def open_output_stream(self, path: str, *more: Any) -> Any:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        return super().open_output_stream(path, *more)

    def move(self, path: str, to: str) -> None:
        (self.root / to).parent.mkdir(parents=True, exist_ok=True)
        super().move(path, to)


def test_savepoints_and_checkpoints_in_a_store_that_pyarrow_knows_need_no_spark(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Bucket(tmp_path)
    monkeypatch.setattr(files, "_arrow_files", lambda root: files._ArrowFiles(store, root, "bucket"))
    at = ("--in", "s3://bucket/savepoints")
    other = replace(pipeline_in(tmp_path, "green", "green"), checkpoint="s3://bucket/green")
    assert savepoint("create", named(pipeline), "--name", "s", *at).exit_code == 0
    shutil.rmtree(pipeline.checkpoint)
    restore(pipeline, *at)
    run(pipeline, 3)
    restore(pipeline, "--as", named(other), *at)
    assert sorted(path.name for path in (tmp_path / "bucket").iterdir()) == ["green", "savepoints"], (
        "nothing is left beside it"
    )
    assert savepoint("create", named(other), "--name", "t", *at).exit_code == 0
    result = savepoint("list", named(other), "--json", *at)
    assert [(each["name"], each["pipeline"], each["damage"]) for each in json.loads(result.output)] == [
        ("s", "p", None),
        ("t", "green", None),
    ]
    assert rows(pipeline) == 4


def test_what_pyarrow_does_not_know_is_left_to_spark() -> None:
    for root in ("s3a://bucket", "hdfs://host:8020", "hdfs://"):
        assert files._arrow_files(root) is None
    with pytest.raises(Exception, match="through Spark"):
        FileSystems().of("hdfs://host/x")

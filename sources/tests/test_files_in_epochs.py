"""Files into a SQLite table through the protocol, without any runtime: exactly once over restarts and replays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from onefold.core import Committable, EpochRecord, Range
from onefold.core.protocol.effects import EpochRequest
from onefold.core.protocol.epoch import Initial
from onefold.core.writing.attempt import write_task
from onefold.sinks import SqlSink
from onefold.sources import FileSource
from onefold.sources.files.file_planner import FilePlanner
from onefold.store.checkpoint_store import CheckpointStore
from onefold.store.job.session import Session, task_of


def batches(source: FileSource, planner: FilePlanner, span: Range) -> Iterator[pa.RecordBatch]:
    for split in planner.splits(span):
        for part in source.read(split):
            if part.rows.num_rows:
                yield part.rows


def life(tmp_path: Path, epochs_max: int, fails_at: int | None = None) -> int:
    """One process of the pipeline; how many epochs it wrote."""
    url = f"sqlite:///{tmp_path}/out.db"
    sink = SqlSink(url, "rows")
    source = FileSource(str(tmp_path / "in"), format="json", schema="id long", on_error="skip", max_files_per_trigger=1)
    with closing(Session("files", (sink,), CheckpointStore(url), -1)) as session:
        planner = source.planner(session.facts().frozen, journal=session.journal(source.name))
        session.start(Initial(planner.initial()))
        fingerprint, last = session.open_sinks(source.arrow_schema()), session.facts().last
        at, done = planner.initial() if last is None else last.range.end, 0
        while done < epochs_max and (end := planner.end(at)) != at:
            span = Range(at, end)

            def write(
                record: EpochRecord, span: Range = span, fails: bool = done == fails_at
            ) -> tuple[Committable, ...]:
                written = write_task((sink,), task_of(record), batches(source, planner, span))
                if fails:
                    raise KeyboardInterrupt
                return written.committables

            outcome = session.run_epoch(EpochRequest(span, "q", 0, fingerprint, session.names), write)
            assert not outcome.replayed
            planner.completed(end)
            at, done = end, done + 1
        return done


def test_each_record_is_there_once_whatever_was_cut_short(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.json").write_text(f'{{"id":{2 * number}}}\nno\n{{"id":{2 * number + 1}}}\n')
    assert life(tmp_path, 2) == 2
    with pytest.raises(KeyboardInterrupt):
        life(tmp_path, 5, fails_at=1)
    assert life(tmp_path, 9) == 2
    assert life(tmp_path, 9) == 0
    (folder / "late.json").write_text('{"id":10}\n')
    (folder / "0.json").unlink()
    assert life(tmp_path, 9) == 1
    with closing(sqlite3.connect(tmp_path / "out.db")) as db:
        assert [row[0] for row in db.execute("SELECT id FROM rows ORDER BY id")] == [*range(11)]

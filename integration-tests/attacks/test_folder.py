"""What who may write into the folder that a source reads can do to its flow, and to the flow's user."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.errors import raises

from onefold.core import BadRecord, DataLoss, OnefoldError
from onefold.core.positions import Range
from onefold.flow import Flow
from onefold.sinks import SqlSink
from onefold.sources import FileSource
from onefold.sources.files.listing import Folder, ListedFile

ANSI = "\x1b[31m\x1b]0;owned\x07"


def reads(tmp_path: Path, folder: Path, on_error: str) -> list[tuple[object, ...]]:
    """All rows of a flow that reads the folder once."""
    database = tmp_path / f"{on_error}.db"
    flow = Flow("reads")
    files = FileSource(str(folder), format="json", schema="id long", on_error=on_error).bounded()
    flow.source(files, uid="files").sink(SqlSink(f"sqlite:///{database}", "t"))
    flow.run(checkpoint=str(tmp_path / on_error), workers=1)
    with sqlite3.connect(database) as connection:
        return connection.execute("SELECT * FROM t ORDER BY 1").fetchall()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    (made / "good.json").write_text('{"id":1}\n')
    return made


@pytest.mark.attack(
    who="who may write into the folder that a source reads",
    does="links to files that only the flow's user may read, and the folder to itself, twice",
    gets="nothing: links are not followed, and other files are read once",
)
def test_links_lead_nowhere(tmp_path: Path, folder: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"id":666}\n')
    (folder / "out.json").symlink_to(secret)
    for name in ("round", "about"):
        (folder / name).symlink_to(".")
    assert reads(tmp_path, folder, "fail") == [(1,)]


@pytest.mark.attack(
    who="who may write into the folder that a source reads",
    does="puts a link in the place of a folder, or of a file, that was listed, or was looked at a moment ago",
    gets="a stop (`file-gone`): what is behind the link is not read, though it has the file's name, size and time",
)
@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("is_late", [False, True])
def test_no_link_in_the_place_of_what_was_listed_is_read(
    tmp_path: Path, folder: Path, what: str, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (tmp_path / "secret", folder / "sub"):
        at.mkdir()
        (at / "a.json").write_text('{"id":666}\n')
        os.utime(at / "a.json", ns=(10**18, 10**18))
    source = FileSource(str(folder / "sub" if what == "file" else folder), format="json", schema="id long")
    planner = source.planner()
    span = Range(planner.initial(), planner.latest(planner.initial()))
    splits = planner.splits(span)

    def swap() -> None:
        name = folder / ("sub" if what == "folder" else "sub/a.json")
        name.rename(tmp_path / "was")
        name.symlink_to(tmp_path / ("secret" if what == "folder" else "secret/a.json"))

    def checked_and_swapped(of: Folder, name: str, version: str) -> ListedFile:
        found = check_same(of, name, version)
        if name.endswith("a.json") and not (tmp_path / "was").exists():
            swap()
        return found

    check_same = Folder.check_same
    if is_late:
        monkeypatch.setattr(Folder, "check_same", checked_and_swapped)
    else:
        swap()
    read: list[object] = []

    def read_all() -> None:
        for split in splits:
            for part in source.read(split):
                read.extend(part.rows.to_pylist())

    with pytest.raises(DataLoss) as stopped:
        read_all()
    assert stopped.value.code == "file-gone" and (tmp_path / "was").exists()
    assert {"id": 666} not in read


@pytest.mark.attack(
    who="who may write into the folder that a source reads",
    does="names files with newlines, escape sequences, and bytes that are no UTF-8",
    gets="lines of the log that show them as text; other files are read",
)
def test_a_files_name_forges_no_line_of_a_log(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / f"x\n2026-11-26 12:00:00 ERROR onefold: taken over{ANSI}.json").write_text("{\n")
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.json"))).write_text('{"id":2}\n')
    assert reads(tmp_path, folder, "skip") == [(1,)]
    with raises(BadRecord, "record-unreadable") as refused:
        reads(tmp_path, folder, "fail")
    said = [str(refused.value), *(record.getMessage() for record in caplog.records)]
    assert not [text for text in said if any(sign in text for sign in "\n\r\x1b\x07")]


@pytest.mark.attack(
    who="who may write into the folder that a source reads",
    does="adds a Parquet file of few bytes, in which one text of a megabyte stands for many thousands",
    gets="bounded memory: what is taken apart at once has a limit",
)
def test_a_parquet_file_of_few_bytes_takes_bounded_memory(folder: Path) -> None:
    rows = 20_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * (1 << 20)])
    pq.write_table(pa.table({"s": texts}), folder / "bomb.parquet", compression="zstd")
    assert (folder / "bomb.parquet").stat().st_size < 64 << 10
    source = FileSource(str(folder), pattern="*.parquet", format="parquet", schema="s string")
    before = _most_kb()
    try:
        planner = source.planner()
        span = Range(planner.initial(), planner.latest(planner.initial()))
        seen = sum(part.rows.num_rows for split in planner.splits(span) for part in source.read(split))
    except OnefoldError:
        seen = 0
    assert seen in (0, rows)
    assert _most_kb() - before < 1 << 20  # of the 20 GB that they stand for


def _most_kb() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]

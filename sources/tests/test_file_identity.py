"""Which file is which: by its path, and by time, size and first content where that path is gone. Asks no server."""

from __future__ import annotations

import bz2
import gzip
import logging
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.errors import raises
from pyarrow import fs

from onefold.core.errors import CheckpointMismatch, ConfigError, Retriable
from onefold.core.positions import Positions, Range
from onefold.core.source import MemoryJournal
from onefold.sources import FileSource
from onefold.sources.files import file_planner
from onefold.sources.files.listing import Folder, Walk


class Reader:
    """A pipeline of one source: what it has read so far, over restarts."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.source = FileSource(str(folder), **{"format": "json", "schema": "id long", "name": "in", **more})
        self.journal, self.at = MemoryJournal(), Positions()
        self.ids: list[int] = []
        self.restart()

    def restart(self, **more: Any) -> None:
        if more:
            path = more.pop("path", self.source.path)
            settings = {"format": "json", "schema": "id long", "name": "in", **more}
            self.source = FileSource(str(path), **settings)
        self.planner = self.source.planner(journal=self.journal)

    def epoch(self) -> list[int]:
        """Read what there is now."""
        end = self.planner.end(self.at)
        splits = self.planner.splits(Range(self.at, end))
        found = [row["id"] for split in splits for part in self.source.read(split) for row in part.rows.to_pylist()]
        self.at = end
        self.planner.completed(end)
        self.ids += found
        return sorted(found)


def put(path: Path, *ids: int, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(b'{"id":%d}\n' % number for number in ids)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def pack(path: Path, *, keeps_time: bool = True) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    if keeps_time:
        shutil.copystat(path, packed)
    path.unlink()
    return packed


def test_a_file_that_was_moved_within_the_folder_is_not_read_again_and_the_log_says_whose_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json", 1)
    assert reader.epoch() == [1]
    (tmp_path / "done").mkdir()
    path.rename(tmp_path / "done/a.json")
    with caplog.at_level(logging.INFO, "onefold"):
        assert reader.epoch() == []
    assert f"{tmp_path}/done/a.json was read as {tmp_path}/a.json, and is not read again" in caplog.messages
    reader.restart()
    (tmp_path / "done/a.json").rename(tmp_path / "done/b.json")
    assert reader.epoch() == []


@pytest.mark.parametrize("keeps_time", [True, False])
def test_a_file_that_was_packed_in_place_is_not_read_again_and_may_be_moved_then(
    tmp_path: Path, *, keeps_time: bool
) -> None:
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json", *range(1000))
    assert len(reader.epoch()) == 1000
    packed = pack(path, keeps_time=keeps_time)
    assert reader.epoch() == []
    put(tmp_path / "b.json", 5)
    assert reader.epoch() == [5]
    reader.restart()
    (tmp_path / "done").mkdir()
    packed.rename(tmp_path / "done/x.json.gz")
    assert reader.epoch() == []


def test_a_file_that_was_unpacked_is_not_read_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json.gz", 1, 2, packed=True)
    assert reader.epoch() == [1, 2]
    (tmp_path / "a.json").write_bytes(gzip.decompress(path.read_bytes()))
    shutil.copystat(path, tmp_path / "a.json")
    path.unlink()
    assert reader.epoch() == []


def test_a_packed_file_that_has_more_in_it_is_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json", *range(1000))
    reader.epoch()
    path.unlink()
    put(tmp_path / "a.json.gz", *range(1001), packed=True)
    assert len(reader.epoch()) == 1001


def test_two_files_of_equal_content_that_are_both_there_are_both_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    put(tmp_path / "a.json", 1), put(tmp_path / "b.json", 1)
    assert reader.epoch() == [1, 1]
    put(tmp_path / "c.json", 1)
    assert reader.epoch() == [1]


def test_a_copy_waits_in_case_its_original_is_about_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json", 1)
    reader.epoch()
    shutil.copy2(path, tmp_path / "b.json")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(path.read_bytes())[:10])  # is being packed
    assert reader.epoch() == []
    path.unlink()
    (tmp_path / "a.json.gz").unlink()
    assert reader.epoch() == []  # a.json is b.json now
    shutil.copy2(tmp_path / "b.json", tmp_path / "c.json")
    assert reader.epoch() == []
    reader.restart()  # which knows that a.json went to b.json
    assert reader.epoch() == []
    monkeypatch.setattr(file_planner, "HELD_S", 0.0)
    assert reader.epoch() == [1]


def test_one_file_that_is_gone_stands_for_one_that_came_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json", 1)
    reader.epoch()
    kept = tmp_path / "_kept"
    shutil.copy2(path, kept)
    path.rename(tmp_path / "b.json")
    put(tmp_path / "other.json", 2)
    assert reader.epoch() == [2]
    (tmp_path / "b.json").unlink()
    reader.restart()
    shutil.copy2(kept, tmp_path / "c.json")
    put(tmp_path / "more.json", 3)
    assert reader.epoch() == [3]  # c.json is b.json
    shutil.copy2(kept, tmp_path / "d.json")
    monkeypatch.setattr(file_planner, "HELD_S", 0.0)
    reader.restart()
    assert reader.epoch() == [1]  # c.json is there, so d.json is another
    reader.restart()
    assert reader.epoch() == []


def test_links_are_not_followed_and_the_folder_itself_may_be_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, secret = tmp_path / "in", put(tmp_path / "secret.json", 9)
    put(folder / "a.json", 1)
    (folder / "b.json").symlink_to(secret)
    (folder / "c").symlink_to(".")
    (folder / "d").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to("in")
    reader = Reader(tmp_path / "link")
    assert reader.epoch() == [1]
    assert reader.epoch() == []
    assert len([said for said in caplog.messages if "links are not followed" in said]) == 1


def test_a_file_that_became_a_link_before_it_was_read_is_gone(tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", 1)
    folder = Folder(str(tmp_path / "in"))
    put(tmp_path / "x.json", 1)
    (tmp_path / "in/a.json").unlink()
    (tmp_path / "in/a.json").symlink_to(tmp_path / "x.json")
    assert folder.now("a.json") is None


def test_no_name_reaches_a_log_as_it_is_and_one_that_is_no_utf_8_is_passed_over_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "a.json", 1)
    for name in (b"caf\xe9.json", b".caf\xe9", b"e\x1b[31m\xe9.json", b"e\xe9/a.json"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b'{"id":2}\n')
    reader = Reader(tmp_path)
    assert [reader.epoch(), reader.epoch()] == [[1], []]
    assert len([said for said in caplog.messages if "not UTF-8" in said]) == 1
    moved = put(tmp_path / "b\x1b]0;x\x07.json", 3)
    assert reader.epoch() == [3]
    moved.rename(tmp_path / "c\n2026 ERROR.json")
    with caplog.at_level(logging.INFO, "onefold"):
        assert reader.epoch() == []
    assert not [said for said in caplog.messages if any(ord(each) < 32 for each in said)]


def test_what_vanishes_or_cannot_be_looked_into_while_it_is_listed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.json", "b/b.json", "lost+found/x.json", "c/c.json"):
        put(tmp_path / name, len(name))
    scandir = os.scandir

    def hostile(path: str) -> Any:
        if path.endswith("/b/"):
            raise FileNotFoundError(2, "No such file or directory", path)
        if "lost+found" in path:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", hostile)
    assert sorted(name for name, _, _ in Walk(str(tmp_path)).files()) == ["a.json", "c/c.json"]
    assert "cannot be listed are passed over (Permission denied)" in caplog.text


def test_a_folder_that_was_there_and_is_gone_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", 1)
    reader = Reader(tmp_path / "in")
    reader.epoch()
    (tmp_path / "in").rename(tmp_path / "away")
    with raises(Retriable, "files-unavailable"):
        reader.epoch()
    (tmp_path / "away").rename(tmp_path / "in")
    assert reader.epoch() == []


def test_a_file_of_the_future_is_read_at_once_or_when_it_has_been_seen_to_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_s = time.time() + 86400
    path = put(tmp_path / "a.json", 1)
    os.utime(path, (later_s, later_s))
    assert Reader(tmp_path).epoch() == [1]
    reader, now_s = Reader(tmp_path, settle_s=30), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    assert reader.epoch() == []
    now_s[0] = 29
    os.utime(path, (later_s + 1, later_s + 1))  # written to again
    assert reader.epoch() == []
    now_s[0] = 58
    assert reader.epoch() == []
    now_s[0] = 60
    assert reader.epoch() == [1]


def test_names_of_packed_files_may_be_in_capitals(tmp_path: Path) -> None:
    put(tmp_path / "a.json.GZ", 1, packed=True)
    (tmp_path / "b.JSON.Bz2").write_bytes(bz2.compress(b'{"id":2}\n'))
    assert Reader(tmp_path).epoch() == [1, 2]


def test_a_folder_within_or_above_goes_on_where_the_other_was_read(tmp_path: Path) -> None:
    put(tmp_path / "in/a/1.json", 1), put(tmp_path / "in/b/2.json", 2)
    reader = Reader(tmp_path / "in/a")
    assert reader.epoch() == [1]
    reader.restart(path=tmp_path / "in")
    assert reader.epoch() == [2]
    put(tmp_path / "in/b/3.json", 3)
    reader.restart(path=tmp_path / "in/b")
    assert reader.epoch() == [3]
    reader.restart(path=tmp_path)
    assert reader.epoch() == []
    reader.restart(path=tmp_path / "in/a/1.json")
    assert reader.epoch() == []
    (tmp_path / "in/a2").mkdir()
    reader.restart(path=tmp_path / "in/a2")
    with raises(CheckpointMismatch, "file-path-changed"):
        reader.epoch()


def test_files_of_an_epoch_that_must_run_again_are_not_looked_for_elsewhere(tmp_path: Path) -> None:
    put(tmp_path / "in/a/1.json", 1), put(tmp_path / "in/b/2.json", 2)
    reader = Reader(tmp_path / "in")
    end = reader.planner.end(reader.at)
    reader.restart(path=tmp_path / "in/a")
    with raises(CheckpointMismatch, "file-path-changed"):
        reader.planner.splits(Range(reader.at, end))


@pytest.mark.parametrize(
    ("path", "root", "own"),
    [
        ("in", "in", "in/flow"),
        ("in", "in/cp", "in/cp/flow"),
        ("in", "link/cp", "link/cp/flow"),
        ("cp/flow", "cp", "cp/flow"),
        ("cp/flow/epochs", "cp", "cp/flow"),
        ("in", "in/store.db", "in/store.db"),
    ],
)
def test_a_checkpoint_or_a_store_where_files_are_read_is_refused(
    tmp_path: Path, path: str, root: str, own: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    source = FileSource(str(tmp_path / path), format="json", schema="id long")
    for of in (source, source.bounded()):
        with raises(ConfigError, "checkpoint-in-source"):
            of.check_apart(str(tmp_path / root), str(tmp_path / own))


def test_a_checkpoint_beside_the_files_or_hidden_among_them_is_fine(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path / "in"), format="json", schema="id long")
    for root in (tmp_path, tmp_path / "in2", tmp_path / "in/.cp", tmp_path / "in/_cp/x"):
        source.check_apart(str(root), str(root / "flow"))
    source.check_apart("s3://bucket/in", "s3://bucket/in/flow")
    remote = FileSource("s3://key:secret@bucket/in?region=x", format="json", schema="id long")
    remote.check_apart("s3://bucket/cp", "s3://bucket/cp/flow")
    with raises(ConfigError, "checkpoint-in-source") as caught:
        remote.check_apart("s3://bucket/in/cp?region=x", "s3://bucket/in/cp/flow")
    assert "secret" not in str(caught.value)


def test_where_it_cannot_be_told_a_moved_file_is_read_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fs, "LocalFileSystem", type(None))  # so it is taken for one of others
    reader = Reader(tmp_path)
    path = put(tmp_path / "a.json", 1)
    assert reader.epoch() == [1]
    (tmp_path / "done").mkdir()
    path.rename(tmp_path / "done/a.json")
    assert reader.epoch() == [1]
    assert "/done/a.json may be" in caplog.text
    assert reader.epoch() == []


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_moved_packed_deleted_and_planned_again_each_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(file_planner, "HELD_S", 0.0)
    chance, reader, count = random.Random(seed), Reader(tmp_path, max_files_per_trigger=2), 0
    files: dict[Path, int] = {}
    gone: list[int] = []

    def create() -> None:
        nonlocal count
        count += 1
        path = put(tmp_path / f"{chance.choice('abc')}/{count}.json", count)
        os.utime(path, ns=(count * 10**9, count * 10**9))  # whole seconds
        files[path] = count

    def move() -> None:
        path = chance.choice([*files])
        to = tmp_path / chance.choice("abc") / f"m{chance.random()}{path.name[path.name.index('.') :]}"
        to.parent.mkdir(exist_ok=True)
        path.rename(to)
        files[to] = files.pop(path)

    def pack_one() -> None:
        path = chance.choice([*files])
        if path.suffix == ".json":
            files[pack(path)] = files.pop(path)

    def delete() -> None:
        path = chance.choice([*files])
        if files[path] in reader.ids:
            path.unlink()
            gone.append(files.pop(path))

    def superseded() -> None:
        reader.planner.end(reader.at)

    steps = [create, create, move, pack_one, delete, superseded, reader.restart, reader.epoch, reader.epoch]
    for _ in range(150):
        step = chance.choice(steps)
        if files or step in (create, superseded, reader.epoch):
            step()
    for _ in range(len(files) + 1):
        reader.epoch()
    assert Counter(reader.ids) == Counter([*files.values(), *gone])


def alike(path: Path, *, last: int, packed: bool = False) -> Path:
    """A file as those of a program that writes many in a second: of one size, time and beginning."""
    content = b'{"id":1}\n' * 2000 + b'{"id":%d}\n' % last
    path.write_bytes(gzip.compress(content, 0, mtime=0) if packed else content)
    os.utime(path, (10**9, 10**9))
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_the_size_time_and_beginning_of_one_that_is_gone_is_read_if_it_ends_otherwise(
    tmp_path: Path, packed: bool
) -> None:
    ending = ".json.gz" if packed else ".json"
    reader = Reader(tmp_path)
    first = alike(tmp_path / f"a{ending}", last=20, packed=packed)
    assert reader.epoch()[-1] == 20
    first.unlink()
    alike(tmp_path / f"b{ending}", last=30, packed=packed)
    assert reader.epoch()[-1:] == [30]
    (tmp_path / f"b{ending}").rename(tmp_path / f"c{ending}")
    assert reader.epoch() == []


def test_of_files_that_differ_at_their_end_alone_each_is_read_though_one_is_packed(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    alike(tmp_path / "a.json", last=20)
    assert reader.epoch()[-1] == 20
    (tmp_path / "a.json").unlink()
    alike(tmp_path / "b.json.gz", last=30, packed=True)
    assert reader.epoch()[-1:] == [30]
    (tmp_path / "b.json.gz").unlink()
    alike(tmp_path / "c.json", last=40)  # of a packed file, only the name could say that it is the same one
    assert reader.epoch()[-1:] == [40]


def test_of_many_files_of_one_time_and_beginning_each_is_known_when_it_is_moved(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for number in range(150):
        alike(tmp_path / f"{number:03}.json", last=100 + number)
    assert len(reader.epoch()) == 150 * 2001
    (tmp_path / "149.json").rename(tmp_path / "moved.json")
    assert reader.epoch() == []
    (tmp_path / "100.json").rename(tmp_path / "renamed.json")
    reader.restart()
    assert reader.epoch() == []

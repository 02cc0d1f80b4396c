"""What who may write where savepoints are can do to who lists and restores them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.errors import raises
from rich.console import Console

from onefold.cli.listed_savepoints import print_savepoints
from onefold.clients.files import LocalFiles
from onefold.core import ConfigError, Retriable
from onefold.engine.savepoints.savepoint import Savepoint, carried, listed
from onefold.engine.state.storage import Storage

OWNED = "\x1b]0;owned\x07\x1b[2J"
WRITES = "who may write where savepoints are"


QUERY = {"spark": "4.2", "query_id": "q", "batch_id": 0, "partitions": None, "provider": None}


def flow(**changed: Any) -> dict[str, Any]:
    state = {"uid": "n", "name": "x", "kind": "rows", "keys": 1, "rows": 1, "files": []} | changed
    return {"runtime": "engine", "max_parallelism": 1, "states": [state], "journals": None}


def made(place: Path, **changed: Any) -> None:
    """A savepoint's description, with a digest that is right."""
    body = {
        "format": 2,
        "name": "s",
        "made_at": "2026-11-26",
        "pipeline": "p",
        "onefold": "0.1.0",
        "store_id": "x",
        "generation": 1,
        "epoch": 1,
        "timestamp_ms": 1,
        "fingerprint": "f",
        "positions": {"t/0": 1},
        "frozen": None,
        "pins": {},
        "files": [],
        "query": QUERY,
        "flow": None,
    } | changed
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    place.mkdir(parents=True)
    (place / "savepoint.json").write_text(json.dumps(body | {"digest": digest}))


def shown(folder: Path) -> str:
    out = io.StringIO()
    found = listed(LocalFiles(), str(folder))
    print_savepoints(Console(file=out, width=200, force_terminal=True, no_color=True), found)
    return out.getvalue()


@pytest.mark.attack(
    who=WRITES,
    does="gives a savepoint names and times with escape sequences, or with rich's markup",
    gets="text: `savepoint list` shows what it is",
)
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (f"x{OWNED}", {}),
        ("a", {"made_at": f"{OWNED}2026"}),
        ("b", {"made_at": "[link=http://evil.example]2026[/link]"}),
        ("c", {"made_at": "2026[/nope]"}),
        ("d", {"query": QUERY | {"provider": f"a.b{OWNED}"}}),
        ("e", {"files": [{"path": f"/etc/{OWNED}", "bytes": 1, "sha256": "y"}]}),
        ("f", {"files": [{"path": OWNED, "bytes": 1, "sha256": "y"}]}),
    ],
)
def test_a_listing_writes_nothing_but_text(tmp_path: Path, name: str, changed: dict[str, Any]) -> None:
    made(tmp_path / name, **changed)
    made(tmp_path / "whole")
    said = shown(tmp_path)
    assert "owned" not in said or "\\x1b" in said
    assert not [mark for mark in ("\x1b]0;", "\x1b]8;", "\x1b[2J", "\x07") if mark in said]
    assert "whole" in said


@pytest.mark.attack(
    who=WRITES,
    does="gives a savepoint values of other types, nested ones without end, or files that it lacks",
    gets="a savepoint that is DAMAGED, beside the others",
)
@pytest.mark.parametrize(
    "changed",
    [
        {"made_at": 7},
        {"query": QUERY | {"provider": 7}},
        {"query": None},
        {"query": None, "flow": {"runtime": "engine", "max_parallelism": 1, "states": 7, "journals": None}},
        {"query": None, "flow": flow(kind="nobody's")},
        {"query": None, "flow": flow(files=["a"])},
        {"query": None, "flow": flow(files=[7])},
        {"query": None, "flow": flow(), "files": [{"path": "a", "bytes": 1, "sha256": "y"}]},
        {"epoch": True},
        {"epoch": "1"},
        {"files": [1]},
        {"files": {}},
        {"files": [{"path": "a", "bytes": "x", "sha256": "y"}]},
        {"files": [{"path": 5, "bytes": 1, "sha256": "y"}]},
        {"files": [{"path": "a//b", "bytes": 1, "sha256": "y"}]},
        {"files": [{"path": "a/../../b", "bytes": 1, "sha256": "y"}]},
        {"files": [{"path": "/a", "bytes": 1, "sha256": "y"}]},
        {"positions": [1]},
        {"positions": {"t/0": None}},
        {"pins": {"a": 1}},
        {"sinks": [{"name": "a"}]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_description_of_other_types_is_damage(tmp_path: Path, changed: dict[str, Any]) -> None:
    made(tmp_path / "bad", **changed)
    made(tmp_path / "whole")
    found = {each.name: each.verdict for each in listed(LocalFiles(), str(tmp_path))}
    assert found == {"bad": "DAMAGED", "whole": "whole"}
    assert "DAMAGED" in shown(tmp_path)


@pytest.mark.attack(
    who=WRITES,
    does="puts 200,000 brackets, a link to a file without end, or a FIFO in the place of savepoints' files",
    gets="a savepoint that is DAMAGED or UNREADABLE, in a second and in little memory",
)
def test_a_file_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    for name in ("deep", "link", "fifo", "copy"):
        made(tmp_path / name, files=[{"path": "a", "bytes": 3, "sha256": "y"}] if name == "copy" else [])
    (tmp_path / "deep/savepoint.json").write_text("[" * 200_000)
    (tmp_path / "link/savepoint.json").unlink()
    (tmp_path / "link/savepoint.json").symlink_to("/dev/zero")
    (tmp_path / "fifo/savepoint.json").unlink()
    os.mkfifo(tmp_path / "fifo/savepoint.json")
    (tmp_path / "copy/checkpoint").mkdir()
    os.truncate(os.open(tmp_path / "copy/checkpoint/a", os.O_CREAT | os.O_WRONLY), 1 << 40)
    found = {each.name: each.verdict for each in listed(LocalFiles(), str(tmp_path))}
    assert found == {"deep": "DAMAGED", "link": "UNREADABLE", "fifo": "UNREADABLE", "copy": "DAMAGED"}


@pytest.mark.attack(
    who=WRITES,
    does="has a savepoint pin what belongs to one pipeline: its targets, its restores, its process",
    gets="nothing: a restore passes over such pins, as it does over those of a savepoint that onefold made",
)
def test_pins_of_another_pipelines_own_are_not_restored(tmp_path: Path) -> None:
    made(tmp_path / "s", pins={"schema of t": "id long", "targets": "{}", "restore": "x", "driver": "y"})
    found = Savepoint.from_json((tmp_path / "s/savepoint.json").read_text())
    assert carried(found.pins) == {"schema of t": "id long"}


@pytest.mark.attack(
    who="who may write into a pipeline's checkpoint",
    does="lays a link to a file that only the pipeline's user may read, to have it in the next savepoint",
    gets="nothing: links are no files of a checkpoint; savepoints are their user's alone",
)
def test_no_link_is_copied_into_a_savepoint(tmp_path: Path) -> None:
    files, root = LocalFiles(), tmp_path / "checkpoint"
    (root / "offsets").mkdir(parents=True)
    (root / "offsets/0").write_text("v1")
    (root / "offsets/1").symlink_to("/etc/shadow")
    assert files.below(str(root)) == ["offsets/0"]
    files.write(f"{tmp_path}/copies/s", "offsets/0", files.read(str(root), "offsets/0"))
    for path in (tmp_path / "copies", *(tmp_path / "copies").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.attack(
    who=WRITES,
    does="puts a link in the place of the folder that a savepoint, or a restore, is just being written to",
    gets="a command that stops: nothing is written or removed behind the link",
)
@pytest.mark.parametrize("link", ["s.partial", "s.partial/checkpoint", "s.partial/checkpoint/offsets"])
def test_a_savepoint_is_not_written_through_a_link(tmp_path: Path, link: str) -> None:
    folder, victim = tmp_path / "savepoints", tmp_path / "victim"
    kept = victim / f"{'s.partial/checkpoint/offsets'.removeprefix(link)}/0".lstrip("/")
    kept.parent.mkdir(parents=True)
    kept.write_text("the user's own")
    (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(victim)
    with raises(ConfigError, "file-unwritable"):
        LocalFiles().write(f"{folder}/s.partial", "checkpoint/offsets/0", [b"another's"])
    assert kept.read_text() == "the user's own"


@pytest.mark.attack(
    who="who may write into a pipeline's checkpoint",
    does="puts a link in the place of a folder whose files a savepoint is about to copy",
    gets="a command that stops: nothing is read behind the link",
)
def test_a_savepoint_reads_no_file_through_a_folders_link(tmp_path: Path) -> None:
    files, root, secret = LocalFiles(), tmp_path / "checkpoint", tmp_path / "secret"
    for at in (root / "offsets", secret):
        at.mkdir(parents=True)
        (at / "0").write_text("v1")
    assert files.below(str(root)) == ["offsets/0"]
    (root / "offsets").rename(tmp_path / "was")
    (root / "offsets").symlink_to(secret)
    with raises(Retriable, "savepoint-unreadable"):
        list(files.read(str(root), "offsets/0"))


@pytest.mark.attack(
    who="who may write where a flow keeps its state, or into a pipeline's checkpoint",
    does="nests folders a thousand deep in it, or in the place of what a savepoint is made in",
    gets="nothing: they are passed over; or a command that stops, and says which folder it cannot remove",
)
def test_folders_that_are_nested_deep_end_nothing(tmp_path: Path) -> None:
    root = tmp_path / "flows" / "orders"
    (root / "epochs").mkdir(parents=True)
    (root / "epochs/1.json").write_text("{}")
    number = os.open(root / "epochs", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=number)
        inner = os.open("d", os.O_RDONLY, dir_fd=number)
        os.close(number)
        number = inner
    os.close(number)
    assert LocalFiles().below(str(root)) == ["epochs/1.json"]
    assert Storage(str(tmp_path / "flows"), "orders").below("epochs") == ["epochs/1.json"]
    with raises(ConfigError, "file-unwritable"):
        LocalFiles().remove(str(root))
    subprocess.run(["rm", "-r", root], check=True)

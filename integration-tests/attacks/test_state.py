"""What other users of the machine, and who may write where a flow keeps its state, can do to a flow and its user."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.totals_flow import run_totals

from onefold.core import OnefoldError
from onefold.engine.driver.opening import store_url
from onefold.engine.state import storage as storage_module
from onefold.engine.state.participant import StateSink
from onefold.engine.workers.messages import RestoreFrom

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

NOBODY = 65534
TRAILER = struct.Struct(">II8s")
VICTIM = "what nobody else may write"


def as_nobody(act: Callable[[], object]) -> str:
    """What the call answers, or by which error it ends, in a process of another user's."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = ""
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            told = str(act())
        except BaseException as error:
            told = type(error).__name__
        finally:
            os.write(write, told.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    return told


class Place:
    """A folder that every user may enter: what is read, a checkpoint, and a file that is the flow's user's alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint, self.read, self.own = root / "checkpoints", root / "in", root / "own"
        for folder in (self.read, self.own):
            folder.mkdir()
        self.victim = self.own / "victim"
        self.victim.write_text(VICTIM)
        self.number = 0

    @property
    def state(self) -> Path:
        return self.checkpoint / "totals"

    def run(self, backend: str = "memory", checkpoint: str | None = None, *, in_columns: bool = True) -> None:
        """The flow, for an epoch of one file more."""
        self.number += 1
        rows = "".join(f'{{"id": {number}, "account": {number % 7}}}\n' for number in range(50))
        (self.read / f"{self.number}.json").write_text(rows)
        run_totals(self.read, self.own, checkpoint or str(self.checkpoint), backend, in_columns=in_columns)

    def open_to_all(self) -> None:
        """As on storage that is shared, by whoever made its folders."""
        for path in (self.checkpoint, *self.checkpoint.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)


@pytest.fixture
def place() -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="onefold-attack-"))
    root.chmod(0o755)
    try:
        yield Place(root)
    finally:
        shutil.rmtree(root)


def note_of(state: Path) -> Path:
    return max(state.glob("epochs/*.json"), key=lambda path: int(path.stem))


def change_footers(state: Path, change: Callable[[dict[str, Any]], None]) -> int:
    """Change the footer of each snapshot of the last epoch, with checksums that are right. Returns how many."""
    handles = json.loads(note_of(state).read_text())["handles"]
    for handle in handles:
        data = (state / handle).read_bytes()
        _, length, magic = TRAILER.unpack(data[-TRAILER.size :])
        body, text = data[: -TRAILER.size - length], data[-TRAILER.size - length : -TRAILER.size]
        footer = json.loads(text)
        change(footer)
        text = json.dumps(footer).encode()
        (state / handle).write_bytes(body + text + TRAILER.pack(zlib.crc32(text), len(text), magic))
    return len(handles)


def ends_by(place: Place, code: str, backend: str = "memory", *, in_columns: bool = True) -> None:
    with pytest.raises(OnefoldError) as caught:
        place.run(backend, in_columns=in_columns)
    assert caught.value.code == code, caught.value


@pytest.mark.attack(
    who="another user of the machine",
    does="reads a flow's state and its store, or holds its lock so that the flow waits",
    gets="nothing: folders that onefold makes are 0700, files 0600",
)
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_nobody_else_reads_state_or_holds_its_lock(place: Place, backend: str) -> None:
    place.run(backend)
    made = [place.checkpoint, *place.checkpoint.rglob("*"), place.own / "rows.db"]
    assert len(made) > 5
    assert not [path for path in made if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    lock = place.state / "lock"
    for path in (place.state, lock, place.own / "rows.db"):
        assert as_nobody(lambda path=path: os.open(path, os.O_RDONLY)) == "PermissionError"


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="has a snapshot name a file of another place, which a restore would write",
    gets="a start that is refused (`state-file-damaged`)",
)
@pytest.mark.parametrize("name", ["{victim}", "../../../own/victim", "..", "CURRENT/../../x", "000001.sst/x"])
def test_a_snapshot_names_no_file_of_another_place(place: Place, name: str) -> None:
    place.run("rocksdb")
    place.open_to_all()

    def named(footer: dict[str, Any]) -> None:
        part = next(part for part in footer["parts"] if part["what"] == "file")
        footer["parts"].append({**part, "name": name.format(victim=place.victim)})

    assert as_nobody(lambda: change_footers(place.state, named)) == "1"
    ends_by(place, "state-file-damaged", "rocksdb")
    assert place.victim.read_text() == VICTIM


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="has a snapshot count a file of another place as an earlier one of its own",
    gets="a start that is refused (`state-file-damaged`)",
)
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_snapshot_counts_no_file_of_another_place(place: Place, backend: str) -> None:
    place.run(backend)
    place.open_to_all()

    def counted(footer: dict[str, Any]) -> None:
        piece = {"bytes": len(VICTIM), "crc": zlib.crc32(VICTIM.encode()), "first": 0, "end": 128}
        footer["pieces"].append({**piece, "name": "../../own/victim"})

    assert as_nobody(lambda: change_footers(place.state, counted)) == "1"
    ends_by(place, "state-file-damaged", backend)


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="has the note of an epoch name a file of another place, which goes with that epoch",
    gets="a stop (`state-note-damaged`)",
)
@pytest.mark.parametrize("names", ["files", "handles"])
def test_a_note_removes_no_file_of_another_place(place: Place, names: str) -> None:
    place.run()
    place.open_to_all()

    def named() -> None:
        note = note_of(place.state)
        values = json.loads(note.read_text())
        values[names] += ["../../own/victim", str(place.victim)]
        del values["crc"]
        note.write_text(json.dumps({**values, "crc": zlib.crc32(json.dumps(values).encode())}))

    assert as_nobody(named) == "None"
    ends_by(place, "state-note-damaged")
    assert place.victim.read_text() == VICTIM


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="lays a link where the flow writes next: a file's temporary name, the lock, a folder",
    gets="nothing written or removed behind it: a temporary name's link goes, and any other stops the flow",
)
@pytest.mark.parametrize(
    ("link", "code"),
    [
        ("ledger.json.tmp", None),
        ("epochs/2.json.tmp", None),
        ("lock", "state-storage-refused"),
        ("epochs", "state-storage-refused"),
        ("2", "state-storage-refused"),
        ("", "state-storage-refused"),
    ],
)
def test_no_link_is_written_through(place: Place, link: str, code: str | None) -> None:
    place.run()
    place.open_to_all()
    place.own.chmod(0o755)
    behind = place.own / "elsewhere"

    def laid() -> None:
        at = place.state / link if link else place.state
        target = place.victim if link.endswith((".tmp", "lock")) else behind
        if at.exists():
            at.rename(f"{at}-moved" if link else f"{place.checkpoint}/moved")
        at.symlink_to(target)

    behind.mkdir()
    (behind / "1.json").write_text(VICTIM)
    assert as_nobody(laid) == "None"
    if code is None:
        place.run()
        assert not (place.state / link).is_symlink()
    else:
        ends_by(place, code)
    assert place.victim.read_text() == VICTIM
    assert [path.name for path in behind.iterdir()] == ["1.json"]


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="puts a FIFO, or a file without an end, in the place of a note",
    gets="a stop by name, in a second",
)
def test_what_is_no_file_is_not_waited_for(place: Place) -> None:
    place.run()
    place.open_to_all()

    def laid() -> None:
        note = note_of(place.state)
        note.unlink()
        os.mkfifo(note)
        ledger = place.state / "ledger.json"
        ledger.unlink()
        ledger.symlink_to("/dev/zero")

    assert as_nobody(laid) == "None"
    ends_by(place, "state-storage-refused")


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="holds its lock, for as long as it likes",
    gets="a stop after a minute that says which lock is held (`state-lock-held`)",
)
def test_a_lock_that_is_held_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run()
    place.open_to_all()
    monkeypatch.setattr(storage_module, "LOCK_S_MAX", 0.2)
    lock = os.open(place.state / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ends_by(place, "state-lock-held")
    finally:
        os.close(lock)
    place.run()


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="changes bytes of a snapshot's columns, and their checksums with them",
    gets="a start that is refused (`state-value-damaged`), or another state; no worker crashes",
)
@pytest.mark.parametrize("in_columns", [True, False])
@pytest.mark.parametrize("change", ["offsets", "cut", "deep", "no hash", "no tuple", "no batch", "another type"])
def test_changed_columns_are_a_named_error(place: Place, change: str, in_columns: bool) -> None:
    place.run(in_columns=in_columns)
    place.open_to_all()

    def changed() -> int:
        found = 0
        for handle in json.loads(note_of(place.state).read_text())["handles"]:
            found += change_columns(place.state / handle, change)
        return found

    assert int(as_nobody(changed)) >= 1
    ends_by(place, "state-value-damaged", in_columns=in_columns)


def change_columns(path: Path, change: str) -> int:
    """Write every part of a snapshot anew; returns how many."""
    data = path.read_bytes()
    _, length, _ = TRAILER.unpack(data[-TRAILER.size :])
    footer = json.loads(data[-TRAILER.size - length : -TRAILER.size])
    body = data[: -TRAILER.size - length]
    parts = [part for part in footer["parts"] if part["what"] != "operator"]
    for part in parts:
        stream = damaged(body[part["at"] : part["at"] + part["bytes"]], change)
        part.update(at=len(body), bytes=len(stream), crc=zlib.crc32(stream))
        body += stream
    text = json.dumps(footer).encode()
    path.write_bytes(body + text + TRAILER.pack(zlib.crc32(text), len(text), b"onefoldS"))
    return len(parts)


DEEP = (b"(" + struct.pack(">I", 1)) * 20_000 + b"N"
LIST = b"[" + struct.pack(">I", 0)


def damaged(stream: bytes, change: str) -> bytes:
    with pa.ipc.open_stream(stream) as reader:
        batch = reader.read_next_batch()
    if change == "cut":
        return stream[: len(stream) // 2]
    names = [name for name in batch.schema.names if name.startswith("v" if change == "deep" else "k")]
    names = names or batch.schema.names[:1]  # of state in columns: the key
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    fields = {field.name: field for field in batch.schema}
    coded = {"deep": DEEP, "no hash": LIST, "no tuple": LIST}.get(change)
    for name in names:
        new = "k*" if change == "no tuple" else name
        columns.pop(name)
        fields.pop(name)
        if coded is not None:
            columns[new] = pa.array([coded] * batch.num_rows, pa.large_binary())
            fields[new] = pa.field(new, pa.large_binary(), metadata={b"coded": b"1"})
        elif change == "offsets":
            columns[new] = pa.array([f"MARK{number:06d}" for number in range(batch.num_rows)], pa.large_string())
            fields[new] = pa.field(new, pa.large_string())
        else:
            columns[new] = pa.array([{"a": 1}] * batch.num_rows)
            fields[new] = pa.field(new, columns[new].type)
    made = pa.record_batch([*columns.values()], schema=pa.schema([*fields.values()], batch.schema.metadata))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        if change != "no batch":
            writer.write_batch(made)
    found: bytes = sink.getvalue().to_pybytes()
    if change == "offsets":
        right = struct.pack(f"<{batch.num_rows + 1}q", *range(0, 10 * batch.num_rows + 1, 10))
        assert right in found
        wrong = struct.pack(f"<{batch.num_rows + 1}q", 0, 10, *[1 << 40] * (batch.num_rows - 1))
        found = found.replace(right, wrong)
    return found


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="changes what a snapshot's footer says: keys that are missing, other types and numbers",
    gets="a stop by name",
)
@pytest.mark.parametrize(
    "change",
    [
        lambda footer: footer.pop("first"),
        lambda footer: footer.update(end=1 << 60),
        lambda footer: footer.update(end=100),
        lambda footer: footer.update(max_parallelism="128"),
        lambda footer: footer.update(more=1),
        lambda footer: footer.update(parts={}, pieces=7),
        lambda footer: footer["parts"][0].update(at=-5),
        lambda footer: footer["parts"][0].update(bytes=1 << 60),
        lambda footer: footer["parts"][0].update(kind="none"),
        lambda footer: footer["parts"][0].update(what="all"),
    ],
)
def test_a_footer_that_says_what_none_does_is_damage(place: Place, change: Callable[[dict[str, Any]], None]) -> None:
    place.run()
    place.open_to_all()
    assert as_nobody(lambda: change_footers(place.state, change)) == "1"
    ends_by(place, "state-file-damaged")


@pytest.mark.attack(
    who="who may write where a flow keeps its state",
    does="writes what is no note and no ledger row in their places",
    gets="a stop by name (`state-note-damaged`); the last note is made again",
)
@pytest.mark.parametrize("name", ["ledger.json", "note"])
def test_junk_in_place_of_notes_is_named(place: Place, name: str) -> None:
    place.run()
    place.open_to_all()
    for junk in ("[" * 100_000, "[]", "7", '{"epoch": true}', '{"positions": [1]}', "null", ""):
        path = note_of(place.state) if name == "note" else place.state / name
        path.chmod(0o666)
        assert as_nobody(lambda path=path, junk=junk: path.write_text(junk)) == str(len(junk))
        if name == "note":
            place.run()
            assert json.loads(path.read_text())["handles"]
        else:
            ends_by(place, "state-note-damaged")


@pytest.mark.attack(
    who="who sees a flow's errors, logs and values",
    does="looks for the password in the URL of its checkpoint",
    gets="the URL without user, password and query",
)
def test_the_password_of_a_checkpoints_url_is_not_shown(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    secret = "PLANTED/hunter2"
    for url in (
        f"s3://AKIA:{secret}@bucket/flows?scheme=http&endpoint_override=127.0.0.1:1",
        f"s3://AKIA:{secret}@bucket/flows?nonsense=1",
        f"nowhere://u:{secret}@bucket/x?token={secret}",
        f"s3://bucket/flows?secret_key={secret}",
    ):
        said = [repr(StateSink(url)), repr(RestoreFrom(url, "p", "memory", 1, ()))]
        said += told_by(lambda url=url: store_url("totals", (), url, None))
        said += told_by(lambda url=url: place.run(checkpoint=url))
        shown = "\n".join([*said, caplog.text])
        assert "PLANTED" not in shown and "hunter2" not in shown, shown


def told_by(call: Callable[[], object]) -> list[str]:
    """What the error says by which the call ends, and all that it comes from."""
    with pytest.raises(OnefoldError) as caught:
        call()
    said, error = [], caught.value
    while error is not None:
        said.append(repr(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return said

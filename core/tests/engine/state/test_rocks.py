"""The RocksDB backend's own: new SST files only, files that are gone or changed, full disks, and long epochs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.disks import SmallDisk, small_disk
from harness.errors import raises

from onefold.core.errors import CheckpointMismatch, DataLoss, OutOfResources, Retriable, WorkLost
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter, committable
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage

TOTALS = StateSpec("sum", "total", StateKind.VALUE)
ALL = range(128)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "checkpoints"), "flow")


@pytest.fixture
def backend(storage: Storage, tmp_path: Path) -> Iterator[RocksBackend]:
    backend = RocksBackend(storage, 1, folder=str(tmp_path), within_bytes_max=0)
    yield backend
    backend.close()


def put(backend: RocksBackend, keys: range, text: str = "x") -> None:
    backend.table(TOTALS).put_many([(key,) for key in keys], [(key, text) for key in keys])


def restored(storage: Storage, *handles: str, groups: range = ALL) -> dict[object, object]:
    backend = RocksBackend(storage, 9)
    try:
        backend.restore(handles, groups)
        return {key: value for key, _, value in backend.table(TOTALS).scan()}
    finally:
        backend.close()


def files(storage: Storage) -> dict[str, int]:
    names = [name for name in storage.below("") if name.startswith("1/")]
    return {name: size for name, size in storage.sizes(names).items() if size is not None}


def test_an_epoch_stores_its_new_files_only(storage: Storage, backend: RocksBackend) -> None:
    letters = random.Random(1)
    put(backend, range(20_000), "".join(letters.choices("abcdefgh", k=40)))
    backend.freeze(1).store()
    before = files(storage)
    put(backend, range(100), "y")
    handle = backend.freeze(2).store()
    new = {name: size for name, size in files(storage).items() if name not in before}
    assert any(name.endswith(".sst") for name in new)
    assert sum(new.values()) < sum(before.values()) / 5
    found = restored(storage, handle)
    assert len(found) == 20_000 and found[(99,)] == (99, "y")


def test_small_files_are_in_the_snapshots_own_until_they_have_some_size_together(
    storage: Storage, tmp_path: Path
) -> None:
    backend = RocksBackend(storage, 1, folder=str(tmp_path), within_bytes_max=4000)
    alone = []
    for epoch in range(1, 9):
        put(backend, range(10 * epoch), "x" * epoch)
        alone.append(len(files(storage)))
        handle = backend.freeze(epoch).store()
        assert set(restored(storage, handle).values()) == {(key, "x" * epoch) for key in range(10 * epoch)}
        alone[-1] = len(files(storage)) - alone[-1]
    backend.close()
    assert alone[:2] == [1, 1]
    assert max(alone) > 1


def test_a_file_that_is_gone_or_changed_is_named(storage: Storage, backend: RocksBackend) -> None:
    put(backend, range(100))
    handle = backend.freeze(1).store()
    footer, _ = read_footer(storage, handle)
    for name in (handle, *(piece.name for piece in footer.pieces)):
        path = Path(storage.path(name))
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with raises(DataLoss, "state-file-damaged", name):
            restored(storage, handle)
        with raises(WorkLost, "state-work-gone", name):
            StateCommitter(storage).verify([committable(handle)])
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with raises(DataLoss, "state-file-damaged", f"{name}"):
            restored(storage, handle)
        path.unlink()
        with raises(DataLoss, "state-file-missing", f"{name}"):
            restored(storage, handle)
        path.write_bytes(content)
    assert len(restored(storage, handle)) == 100


def test_work_that_was_not_decided_goes_with_all_its_files(storage: Storage, backend: RocksBackend) -> None:
    put(backend, range(100))
    handle = backend.freeze(1).store()
    committer = StateCommitter(storage)
    assert committer.leftovers(1) == [committable(handle)]
    committer.abort(committer.leftovers(1))
    assert files(storage) == {}


def test_the_other_backends_snapshots_are_refused(storage: Storage, backend: RocksBackend) -> None:
    put(backend, range(10))
    handle = backend.freeze(1).store()
    with raises(CheckpointMismatch, "state-backend-changed", "state='rocksdb'") as refused:
        MemoryBackend(storage, 2).restore([handle], ALL)
    assert refused.value.code == "state-backend-changed"
    other = MemoryBackend(storage, 2)
    with raises(CheckpointMismatch, "state-backend-changed", "state='memory'"):
        restored(storage, other.freeze(1).store())


def test_a_long_epochs_changes_are_in_the_snapshot_that_follows_and_in_no_earlier_one(
    storage: Storage, tmp_path: Path
) -> None:
    backend = RocksBackend(storage, 1, folder=str(tmp_path), changes_max=50)
    put(backend, range(500), "early")
    frozen = backend.freeze(1)
    put(backend, range(400), "late")
    assert backend.table(TOTALS).get_many([(1,), (450,), (500,)]) == [(1, "late"), (450, "early"), None]
    first = frozen.store()
    put(backend, range(100), "later")
    second = backend.freeze(2).store()
    backend.close()
    assert set(restored(storage, first).values()) == {(key, "early") for key in range(500)}
    found = restored(storage, second)
    assert [found[(key,)] for key in (1, 200, 450)] == [(1, "later"), (200, "late"), (450, "early")]


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(4) as disk:
        yield disk


def test_a_full_disk_under_the_database_says_so_and_where(disk: SmallDisk, storage: Storage) -> None:
    backend = RocksBackend(storage, 1, folder=str(disk.folder))
    put(backend, range(5))
    first = backend.freeze(1).store()
    disk.fill()
    put(backend, range(5000), "z" * 3000)
    with raises(OutOfResources, "state-disk-full", f"{disk.folder}") as full:
        backend.freeze(2).store()
    assert full.value.code == "state-disk-full"
    backend.close()
    with raises(OutOfResources, "state-disk-full", f"{disk.folder}"):
        RocksBackend(storage, 2, folder=str(disk.folder)).restore([first], ALL)
    disk.make_room()
    assert len(restored(storage, first)) == 5


def test_a_database_that_fails_says_so(storage: Storage, backend: RocksBackend, tmp_path: Path) -> None:
    put(backend, range(100))
    handle = backend.freeze(1).store()
    shutil.rmtree(backend._home)
    put(backend, range(200))
    with raises(Retriable, "state-database-failed", f"{tmp_path}") as failed:
        backend.freeze(2).store()
    assert failed.value.code == "state-database-failed"
    assert len(restored(storage, handle)) == 100, "the snapshot is whole"


def open_files(below: Path) -> list[Path]:
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in targets if target.is_relative_to(below)]


def test_a_database_is_closed_before_its_folder_goes(storage: Storage, tmp_path: Path) -> None:
    handles = []
    for groups in (range(64), range(64, 128)):
        backend = RocksBackend(storage, 1, folder=str(tmp_path))
        backend.restore([], groups)
        for spec in (TOTALS, StateSpec("sum", "list", StateKind.LIST)):
            for key in range(300):
                backend.table(spec).put((key,), ("x" * 300,), () if spec is TOTALS else (1,))
        handles.append(backend.freeze(1).store())
        table = backend.table(TOTALS)  # a processor's handle goes on to have it
        backend.close()
        assert open_files(tmp_path) == []
    backend = RocksBackend(storage, 2, folder=str(tmp_path))
    backend.restore(handles, ALL)
    assert open_files(tmp_path)
    assert all(path.exists() for path in open_files(tmp_path))
    backend.close()
    assert (open_files(tmp_path), [*tmp_path.iterdir()]) == ([], [tmp_path / "checkpoints"])
    del table


def test_a_full_disk_says_so_and_loses_nothing(disk: SmallDisk, tmp_path: Path) -> None:
    storage = Storage(str(disk.folder), "flow")
    backend = RocksBackend(storage, 1, folder=str(tmp_path))
    put(backend, range(5))
    first = backend.freeze(1).store()
    put(backend, range(5000), "z")
    there = files(storage)
    disk.fill()
    frozen = backend.freeze(2)
    with raises(OutOfResources, "state-disk-full") as full:
        frozen.store()
    assert full.value.code == "state-disk-full"
    assert files(storage) == there
    assert len(restored(storage, first)) == 5
    disk.make_room()
    assert len(restored(storage, frozen.store())) == 5000
    backend.close()

"""Snapshots as files: what is cut, changed or gone is named, a full disk loses nothing, and files stay few."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.disks import SmallDisk, small_disk
from harness.errors import raises
from pyarrow import fs

from onefold.core.contract import Binding, Decided, EpochRecord, EpochState
from onefold.core.errors import CheckpointMismatch, ConfigError, Damaged, DataLoss, OutOfResources, WorkLost
from onefold.core.positions import Positions, Range
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter, committable
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage

TOTALS = StateSpec("sum", "total", StateKind.VALUE)
EVENTS = StateSpec("sum", "events", StateKind.LIST)
ALL = range(128)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path), "flow")


def filled(storage: Storage, keys: int = 5, generation: int = 1, **settings: int) -> MemoryBackend:
    backend = MemoryBackend(storage, generation, **settings)
    backend.table(TOTALS).put_many([(key,) for key in range(keys)], [(key, "x") for key in range(keys)])
    return backend


def restored(storage: Storage, *handles: str, groups: range = ALL) -> dict[object, object]:
    backend = MemoryBackend(storage, 9)
    backend.restore(handles, groups)
    return {key: value for key, _, value in backend.table(TOTALS).scan()}


def decided(epoch: int, *handles: str) -> Decided:
    works = tuple(committable(handle) for handle in handles)
    here = Positions.of({"t/0": epoch})
    return Decided(EpochRecord("flow", epoch, 1, EpochState.DECIDED, Range(here, here), epoch, "", 0, "", works))


def test_every_file_that_is_cut_changed_or_gone_is_named(storage: Storage) -> None:
    backend = filled(storage)
    backend.freeze(1).store()
    backend.table(TOTALS).put((7,), (7, "y"))
    handle = backend.freeze(2).store()
    whole = restored(storage, handle)
    assert whole[(7,)] == (7, "y") and len(whole) == 6
    for name in [name for name in storage.below("") if name.startswith("1/")]:
        path = Path(storage.path(name))
        content = path.read_bytes()
        for at in range(0, len(content), 7):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with raises(DataLoss, "state-file-damaged", name) as changed:
                restored(storage, handle)
            assert changed.value.code == "state-file-damaged"
        for size in (0, 5, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:size])
            with raises(DataLoss, "state-file-damaged", f"{name}"):
                restored(storage, handle)
            with raises(WorkLost, "state-work-gone", name):
                StateCommitter(storage).verify([committable(handle)])
        path.unlink()
        with raises(DataLoss, "state-file-missing", f"{name}") as gone:
            restored(storage, handle)
        assert gone.value.code == "state-file-missing"
        with raises(WorkLost, "state-work-gone", name):
            StateCommitter(storage).verify([committable(handle)])
        with raises(Damaged, "state-decided-gone", name):
            StateCommitter(storage).commit(decided(2, handle), [committable(handle)])
        path.write_bytes(content)
    assert restored(storage, handle) == whole


def test_another_snapshot_in_the_place_of_an_earlier_file_is_damage(storage: Storage) -> None:
    backend = filled(storage)
    first = backend.freeze(1).store()
    handle = backend.freeze(2).store()
    other = filled(storage, keys=4).freeze(1).store()
    Path(storage.path(other)).replace(storage.path(first))
    with raises(DataLoss, "state-file-damaged"):
        restored(storage, handle)


def test_another_number_of_key_groups_and_another_backend_are_refused(storage: Storage) -> None:
    handle = filled(storage, max_parallelism=64).freeze(1).store()
    with raises(CheckpointMismatch, "max-parallelism-changed") as refused:
        restored(storage, handle)
    assert refused.value.code == "max-parallelism-changed"


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(4) as disk:
        yield disk


def test_a_full_disk_says_so_and_loses_nothing(disk: SmallDisk) -> None:
    storage = Storage(str(disk.folder), "flow")
    backend = filled(storage)
    first = backend.freeze(1).store()
    backend.table(TOTALS).put_many([(key,) for key in range(5000)], [(key, "z" * 50) for key in range(5000)])
    disk.fill()
    frozen = backend.freeze(2)
    with raises(OutOfResources, "state-disk-full") as full:
        frozen.store()
    assert full.value.code == "state-disk-full"
    assert [name for name in storage.below("") if name.startswith("1/")] == [first]
    assert len(restored(storage, first)) == 5
    backend.table(TOTALS).put((-1,), (-1, "later"))
    disk.make_room()
    assert len(restored(storage, frozen.store())) == 5000
    assert len(restored(storage, backend.freeze(3).store())) == 5001


def test_a_folder_that_may_not_be_written_is_the_users_to_mend(disk: SmallDisk, tmp_path: Path) -> None:
    is_file = tmp_path / "file"
    is_file.touch()
    subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
    for root in (is_file, disk.folder):
        storage = Storage(str(root), "flow")
        with raises(ConfigError, "state-storage-refused"):
            filled(storage).freeze(1).store()
        with raises(ConfigError, "state-storage-refused"), storage.locked():
            pass


@pytest.mark.slow
def test_bytes_follow_the_changes_files_stay_few_and_a_restore_reads_three_times_the_state_at_most(
    storage: Storage,
) -> None:
    backend = filled(storage, keys=2000, copies_max=300, logged_min=100)
    committer = StateCommitter(storage, retain=1)
    sizes, files, rows = [], [], []
    for epoch in range(1, 400):
        handle = backend.freeze(epoch).store()
        size = storage.sizes([handle])[handle] or 0
        sizes.append(size)
        committer.commit(decided(epoch, handle), [committable(handle)])
        row = committer.ledger()
        assert row is not None
        committer._retire()
        footer, own = read_footer(storage, handle)
        named = [*footer.pieces, own]
        files.append(len(named))
        rows.append(sum(part.rows for piece in named for part in read_footer(storage, piece.name)[0].parts))
        kept = {name for name in storage.below("") if name.startswith("1/")}
        assert kept == {piece.name for piece in named}
        for key in range(20):
            backend.table(TOTALS).put((key * epoch % 2000,), (epoch, "x"))
    assert max(files) < 60
    assert max(rows) < 4 * 2000
    assert sorted(sizes[1:])[len(sizes) // 2] < sizes[0] / 3
    assert len(restored(storage, handle)) == 2000


def test_a_handle_is_a_name_and_everything_pickles(storage: Storage) -> None:
    handle = filled(storage, generation=3).freeze(17).store()
    assert handle.startswith("3/17-")
    assert pickle.loads(pickle.dumps(storage)).sizes([handle]) == storage.sizes([handle])


@pytest.mark.parametrize("pipeline", ["..", "a/b", "größe", "A"])
def test_each_pipeline_has_a_folder_of_its_own(tmp_path: Path, pipeline: str) -> None:
    storage = Storage(str(tmp_path), pipeline)
    storage.write("1/a", [b"x"])
    assert storage.read("1/a") == b"x"
    assert not (tmp_path.parent / "1").exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_url_works_like_a_folder_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path}", "flow")
    handle = filled(storage).freeze(1).store()
    assert len(restored(Storage(str(tmp_path), "flow"), handle)) == 5
    with raises(ConfigError, "state-storage-unknown") as refused:
        Storage("nowhere://x", "flow").below("")
    assert refused.value.code == "state-storage-unknown"


def test_another_filesystem_than_this_machines_keeps_snapshots_too(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path), "flow")
    storage.__dict__["_place"] = (fs.SubTreeFileSystem(str(tmp_path.parent), fs.LocalFileSystem()), tmp_path.name)
    for folder in ("1", "epochs"):
        (tmp_path / "flow" / folder).mkdir(parents=True)
    handle = filled(storage).freeze(1).store()
    committer = StateCommitter(storage)
    committer.bind(Binding("store", 1))
    committer.commit(decided(1, handle), [committable(handle)])
    assert committer.leftovers(1) == []
    other = filled(storage).freeze(2).store()
    assert committer.leftovers(1) == [committable(other)]
    committer.abort([committable(other)])
    assert committer.leftovers(1) == []
    assert len(restored(Storage(str(tmp_path), "flow"), handle)) == 5


def test_subtasks_restore_only_their_own_key_groups(storage: Storage) -> None:
    backend = filled(storage, keys=200)
    handle = backend.freeze(1).store()
    halves = [restored(storage, handle, groups=groups) for groups in (range(64), range(64, 128))]
    assert halves[0].keys().isdisjoint(halves[1])
    assert halves[0] | halves[1] == restored(storage, handle)
    assert len(halves[0]) > 50 < len(halves[1])

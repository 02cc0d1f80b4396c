"""Power cuts at every step of storing: a start finds the last decided epoch's state whole, with two syncs an epoch."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from power_cut import Disk

from onefold.core.contract import Committable, EpochRecord
from onefold.core.errors import DataLoss
from onefold.core.positions import Positions, Range
from onefold.core.protocol.coordinator import Coordinator
from onefold.core.protocol.effects import EpochRequest, Pause
from onefold.core.protocol.epoch import Initial
from onefold.core.testing.simulator.model_store import ModelStore
from onefold.engine.state import STATE
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter, committable, note_again
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import StateBackend, StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.store.job.lifecycle import Lifecycle

FLOW = "flow"
COUNTS = StateSpec("count", "n", StateKind.VALUE)
SHARES = (0.0, 0.5)
Make = Callable[[Storage, int], StateBackend]


@pytest.fixture
def folder() -> Iterator[Path]:
    in_memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=in_memory if in_memory.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def of_memory(storage: Storage, generation: int) -> StateBackend:
    return MemoryBackend(storage, generation, copies_max=3, logged_min=4)


def written_anew(storage: Storage, generation: int) -> StateBackend:
    return MemoryBackend(storage, generation, logged_min=0)


def of_rocks(storage: Storage, generation: int) -> StateBackend:
    return RocksBackend(storage, generation)


class Life:
    """A driver from a start on, with one subtask that counts; key N is new in its round N, and all count on."""

    def __init__(
        self, root: Path, store: ModelStore, make: Make = of_memory, makes_notes: bool = True, retain: int = 2
    ) -> None:
        self.storage, self.store = Storage(str(root), FLOW), store
        if makes_notes:
            note_again(str(root), FLOW, store.facts(FLOW))
        self.life = Lifecycle(FLOW, (STATE,))
        committer = StateCommitter(self.storage, retain)
        self.driver = Coordinator(FLOW, store, {STATE: committer}, _impatient)
        started = self.driver.run(self.life.start(Initial(at(0))))
        self.driver.run(self.life.sweep())
        last = store.facts(FLOW).last
        self.backend = make(self.storage, started.generation.number)
        self.backend.restore([c.handle for c in last.manifest] if last is not None else [], range(128))
        self.round = int(dict(last.range.end.items)["t/0"]) if last is not None else 0

    def run_epoch(self) -> None:
        self.round += 1
        request = EpochRequest(Range(at(self.round - 1), at(self.round)), FLOW, self.round, "job", (STATE,), ())
        self.driver.run(self.life.run_epoch(request, 1), self._write)

    @property
    def counts(self) -> dict[Any, Any]:
        return {key: value for key, _, value in self.backend.table(COUNTS).scan()}

    def _write(self, record: EpochRecord) -> tuple[Committable, ...]:
        table = self.backend.table(COUNTS)
        for key, value in after(self.round).items():
            table.put(key, value)
        return (committable(self.backend.freeze(record.epoch).store()),)


def at(rounds: int) -> Positions:
    return Positions.of({"t/0": rounds})


def after(rounds: int) -> dict[tuple[int], tuple[int]]:
    return {(key,): (rounds - key + 1,) for key in range(1, rounds + 1)}


def _impatient(pause: Pause, _: float) -> None:
    raise pause.because


@pytest.mark.proof
def test_a_start_after_a_power_cut_anywhere_finds_the_last_decided_state_whole(folder: Path) -> None:
    root, cut = folder / "disk/state", folder / "cut"
    root.parent.mkdir()
    disk, store, chance = Disk(root.parent), ModelStore(), random.Random(35)
    lost = refused = steps = 0

    def strike() -> None:
        nonlocal lost, refused, steps
        steps += 1
        for share in SHARES:
            disk.after_a_cut(cut, chance, share)
            noted = len([*cut.glob("state/flow/epochs/*.json")])
            again = shutil.copytree(cut, folder / "again")
            life = Life(cut / "state", deepcopy(store))
            assert life.counts == after(life.round)
            life.run_epoch()
            life = Life(cut / "state", life.store)
            assert life.counts == after(life.round)
            lost += noted < len([*root.glob("flow/epochs/*.json")])
            try:
                life = Life(again / "state", deepcopy(store), makes_notes=False)
            except DataLoss as error:
                refused += error.code == "destination-older-copy"
            else:
                assert life.counts == after(life.round)
            shutil.rmtree(again)

    with disk.watched():
        for _ in range(2):
            disk.on_step = strike
            life = Life(root, store)
            for _ in range(4):
                life.run_epoch()
            disk.on_step = None
    assert life.round == 8
    assert life.counts == after(life.round)
    assert steps > 50
    assert lost > 50, "notes are taken by a cut, or nothing was tried"
    assert refused > 20, "a start that makes no notes refuses, where it would have swept the state"


@pytest.mark.parametrize("retain", [1, 2])
def test_the_notes_of_all_epochs_may_go_also_after_one_that_names_no_earlier_file(folder: Path, retain: int) -> None:
    store, files = ModelStore(), set[int]()
    life = Life(folder, store, written_anew, retain=retain)
    for _ in range(8):
        life.run_epoch()
        files.add(len([*folder.glob(f"{FLOW}/1/*")]))
        cut = shutil.copytree(folder, folder.with_name(f"{folder.name}_cut"))
        try:
            for note in cut.glob(f"{FLOW}/epochs/*"):
                note.unlink()
            after_it = Life(cut, deepcopy(store), written_anew, retain=retain)
            assert after_it.counts == after(life.round)
        finally:
            shutil.rmtree(cut)
    assert min(files) == 1 < max(files), "some names no earlier file, and some does"


@pytest.mark.parametrize("make", [of_memory, of_rocks])
def test_an_epoch_has_two_syncs(folder: Path, make: Make) -> None:
    disk = Disk(folder)
    with disk.watched():
        life = Life(folder, ModelStore(), make)
        life.run_epoch()
        found = []
        disk.on_step = bool
        for _ in range(12):
            disk.syncs = 0
            life.run_epoch()
            found.append(disk.syncs)
    life.backend.close()
    assert found == [2] * 12

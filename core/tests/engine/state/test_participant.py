"""The participant `state`: it keeps a sink's promises, and never removes a file that a decided snapshot names."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
from harness.errors import raises
from snapshot_sink import SnapshotSink, prepared, rows

from onefold.core.contract import Decided, EpochRecord, EpochState, LedgerEntry
from onefold.core.errors import Retriable
from onefold.core.positions import Positions, Range
from onefold.core.testing import check_sink
from onefold.engine.state import STATE, storage
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter, committable
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.state.storage import Storage


@pytest.mark.proof
def test_it_keeps_every_promise_of_a_two_phase_sink() -> None:
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        report = check_sink(
            partial(SnapshotSink, folder, 10**9),
            partial(rows, folder),
            prepared=partial(prepared, folder),
            modules=["onefold.engine.state", "snapshot_sink"],
            steps_max=10,
            moments=1,
        )
    assert {"prepare", "abort", "commit", "bind", "write_ledger"} <= report.strikes.keys()
    assert all(report.promises.values())


class Epochs:
    """A flow that keeps two epochs, and counts in one state."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage(str(folder), "flow")
        self.committer, self.backend = StateCommitter(self.storage, retain=2), MemoryBackend(self.storage, 1)
        self.backend.restore((), range(128))

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.backend.table(StateSpec("n", "n", StateKind.VALUE)).put((1,), (number,))
            work = committable(self.backend.freeze(number).store())
            end = Positions.of({"t/0": number})
            record = EpochRecord(
                "flow", number, 1, EpochState.DECIDED, Range(end, end), number, "q", number, "f", (STATE,)
            )
            self.committer.commit(Decided(record), [work])
            self.committer.write_ledger(LedgerEntry(number, 1, number, end, ""))

    def notes(self) -> list[str]:
        return self.storage.below("epochs")


def test_notes_that_a_power_cut_has_cut_are_no_reason_to_fail(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    epochs.write(1, 2)
    for name in epochs.notes():
        (tmp_path / "flow" / name).write_bytes(b"")
    epochs.committer = StateCommitter(epochs.storage, retain=2)
    epochs.write(3)
    assert "epochs/3.json" in epochs.notes()
    epochs.write(4, 5)
    assert epochs.notes() == ["epochs/4.json", "epochs/5.json"]


def test_an_epoch_that_is_read_stays_until_it_was(tmp_path: Path) -> None:
    epochs, reader = Epochs(tmp_path), StateCommitter(Storage(str(tmp_path), "flow"))
    epochs.write(1, 2)
    with reader.held(2) as handles:
        epochs.write(3, 4, 5)
        assert epochs.notes() == ["epochs/2.json", "epochs/4.json", "epochs/5.json"]
        assert not epochs.committer.leftovers(9)
        again = MemoryBackend(epochs.storage, 2)
        again.restore(handles, range(128))
        assert again.table(StateSpec("n", "n", StateKind.VALUE)).get((1,)) == (2,)
    epochs.write(6)
    assert epochs.notes() == ["epochs/5.json", "epochs/6.json"]
    with raises(Retriable, "state-epoch-retired"), reader.held(2):
        raise AssertionError
    assert epochs.storage.below("holds") == []


def test_what_a_killed_reader_has_held_is_let_go_of_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(tmp_path)
    epochs.write(1)
    (tmp_path / "flow/holds").mkdir()
    for name, content in (("a", '{"number": 1, "at_s": 0}'), ("b", "cut"), ("c", '{"number": 1, "at_s": 1e400}')):
        (tmp_path / f"flow/holds/{name}.json").write_text(content)
    monkeypatch.setattr(storage.time, "time", lambda: storage.HELD_S_MAX - 1)
    epochs.write(2, 3)
    assert epochs.notes() == ["epochs/1.json", "epochs/2.json", "epochs/3.json"]
    monkeypatch.setattr(storage.time, "time", lambda: storage.HELD_S_MAX + 1)
    epochs.write(4)
    assert epochs.notes() == ["epochs/3.json", "epochs/4.json"] and epochs.storage.below("holds") == []

"""The snapshots of a flow's state, as an audit finds them in the checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from onefold.core import Committable, EpochRecord, LedgerEntry, SinkKind
from onefold.core.invariants import Comparison
from onefold.engine.state import OWN_FILES, STATE
from onefold.engine.state.participant import StateSink
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.workload_settings import Job


@dataclass
class StateFiles:
    """A Destination, of no rows. Every file is named by the note of a kept epoch, and every file that one names is
    there; the snapshots of these notes are those of the epochs' manifests."""

    job: Job
    name: ClassVar[str] = STATE
    writes_through: ClassVar[bool] = False

    def create(self) -> None:
        """The flow makes the folder."""

    def ledger(self) -> LedgerEntry | None:
        return StateSink(self.job.checkpoint).recover(PIPELINE).ledger()

    def look(self, due: DueRecords) -> Compared:
        """Lost are files that a note names, and that are gone."""
        del due
        gone = sorted(self._named() - self._there())
        return Compared(Comparison(0, 0, lost=len(gone), duplicated=0, changed=0, unexpected=0, samples={"lost": gone}))

    def leftovers(self) -> tuple[Committable, ...]:
        """The files that no note names."""
        there = self._there()  # before the notes: what is written meanwhile is then no leftover
        return tuple(Committable(STATE, SinkKind.TWO_PHASE, name, 0, 0, 0) for name in sorted(there - self._named()))

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        del epochs, ledger
        notes = self._notes()
        parts = tuple(
            Committable(STATE, SinkKind.TWO_PHASE, handle, note["generation"], note["epoch"], 0)
            for note in notes
            for handle in note["handles"]
        )
        return CommittedParts(parts, since=min((note["epoch"] for note in notes), default=0))

    def close(self) -> None:
        """Nothing is kept open."""

    @property
    def _folder(self) -> Path:
        return Path(self.job.checkpoint) / PIPELINE

    def _notes(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self._folder.glob("epochs/*.json"))]

    def _named(self) -> set[str]:
        return {name for note in self._notes() for name in note["files"]}

    def _there(self) -> set[str]:
        found = {str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file()}
        return {name for name in found - OWN_FILES if not (name.startswith("epochs/") and name.endswith(".json"))}

"""Whether a flow has written, by a note in its checkpoint: bookkeeping that is gone is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.core.contract import LedgerEntry
from onefold.core.errors import CheckpointMismatch
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.state import STATE, folder_of

if TYPE_CHECKING:
    from onefold.engine.state.storage import Storage

__all__ = ["WrittenMarker"]

_NAME = "has_written.json"


class WrittenMarker:
    """Whether the flow has written, by a note in its checkpoint: it is left where the bookkeeping is gone, and the rows
    are not. Store and ledgers may be in one schema of the sink's database, and go with it.

    The note is made once, after the first decided epoch; a flow with state has its ledger there besides. `root` is the
    checkpoint, a folder or a URL.
    """

    def __init__(self, root: str, flow: str) -> None:
        self._root, self._flow = root, flow
        self.is_there = False

    def check(self, facts: StoreFacts, ledgers: Callable[[], dict[str, LedgerEntry | None]]) -> None:
        """Raise CheckpointMismatch where the flow has written, and neither store nor ledgers know of it. Where only the
        ledgers know, the protocol says what to do. Raises ConfigError where no note could be made later."""
        self.is_there = self._find()
        if not self.is_there:
            if facts.last is not None:
                self.keep(facts.store_id)
            else:
                with self._storage.locked():  # which makes the folder
                    pass
        elif facts.last is None and not any(_has_epoch(sink, entry) for sink, entry in ledgers().items()):
            raise CheckpointMismatch(
                "bookkeeping-gone",
                f"flow {self._flow!r} has written epochs, by {self._storage.path(_NAME)}, and neither its checkpoint"
                " store nor its destinations know of one: their bookkeeping was dropped, or is an older copy, and all"
                " would be written again. Nothing was written. Restore it, or name the store that the flow had; or"
                f" begin anew: empty its tables, and remove the folder {self._storage.path()}",
            )

    def keep(self, store_id: str) -> None:
        """From here on the flow has written."""
        with self._storage.locked():
            self._storage.replace(_NAME, json.dumps({"store_id": store_id}).encode())
        self.is_there = True

    def _find(self) -> bool:
        if "://" in self._root:
            return self._storage.find(_NAME) is not None
        try:
            return (Path(self._root) / folder_of(self._flow) / _NAME).exists()
        except OSError:  # a folder that this process may not enter: the storage says so in words of its own
            return self._storage.find(_NAME) is not None

    @cached_property
    def _storage(self) -> Storage:
        from onefold.engine.state.storage import Storage  # with file systems: for a local folder only once

        return Storage(self._root, self._flow)


def _has_epoch(sink: str, entry: LedgerEntry | None) -> bool:
    """The state's own ledger goes with the note, and says no more than it."""
    return (
        sink != STATE and entry is not None and (entry.epoch > 0 or bool(entry.members) or entry.announced is not None)
    )

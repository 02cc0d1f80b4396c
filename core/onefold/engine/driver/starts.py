"""What a flow's start settles, and what it refuses: positions that no source reads, settings that have no effect,
bookkeeping that is gone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.core.contract import LedgerEntry
from onefold.core.errors import CheckpointMismatch, ConfigError
from onefold.core.positions import Positions
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Initial
from onefold.core.protocol.misfits import other_setting
from onefold.core.source import Journal, Source, own_positions, settled
from onefold.engine.state import STATE, folder_of

if TYPE_CHECKING:
    from onefold.engine.state.storage import Storage

__all__ = ["HasWritten", "check_covered", "check_journals", "initial_of"]

log = logging.getLogger("onefold")

SHOWN_MAX = 3
_NAME = "has_written.json"


def check_covered(flow: str, sources: Iterable[Source], facts: StoreFacts) -> None:
    """Raise ConfigError where the flow stands in something that no source of today reads, or has begun an epoch there,
    which runs again without its records."""
    read = [*sources]
    at = facts.last.range.end.of_records() if facts.last else facts.frozen or Positions()
    begun = facts.begun.range.end.of_records() if facts.begun else Positions()
    names = dict.fromkeys(name for name, _ in (*at.items, *begun.items))
    strange = [name for name in names if not any(source.covers(name) for source in read)]
    if strange:
        more = f" and {len(strange) - SHOWN_MAX} more" if len(strange) > SHOWN_MAX else ""
        raise ConfigError(
            "positions-not-read",
            f"flow {flow!r} stands at positions in {', '.join(strange[:SHOWN_MAX])}{more}, which none of its sources"
            f" reads ({', '.join(source.name for source in read) or 'it has none'}): a source or a topic was taken out,"
            " or a path or a name was changed. Nothing was read. Put it back as it was: a topic that is gone for good"
            " stays in forget_topics; or give the flow with the other sources another name, and empty tables",
        )


def check_journals(
    sources: Iterable[Source], ledgers: Mapping[str, LedgerEntry | None], journal: Callable[[str], Journal]
) -> None:
    """Raise the source's own error where a ledger has positions that name texts of a journal which is gone, as with
    the store that had it: such a ledger is not to be adopted."""
    for source in sources:
        for entry in ledgers.values():
            own = own_positions(source, Positions() if entry is None else entry.positions)
            if any(isinstance(position, str) for _, position in own.items):
                with closing(source.planner(journal=journal(source.name))) as planner:
                    planner.is_done(own)


def initial_of(flow: str, sources: Iterable[Source], facts: StoreFacts, begin: Positions) -> Initial:
    """Where the flow's first start begins. Raises ConfigError for a setting that is another than the one by which this
    was settled, and says so in the log where it has no effect any more, since records were written."""
    read = [*sources]
    told = {source.name: of.starting_text for source in read if (of := settled(source)) is not None}
    for source in read:
        was, now = _settled_by(source, facts.frozen), told.get(source.name)
        if was is None or now in (None, was, "ledger"):
            continue
        if facts.last is None:
            raise other_setting(was, now)
        log.warning(
            "flow %r: starting_offsets=%r of %s is ignored: the flow goes on from what was written. To begin"
            " elsewhere, give it another name and an empty table",
            flow,
            now,
            source.name,
        )
    if facts.frozen is not None:
        setting = facts.frozen.setting
    else:  # of one source as it is, as a pipeline on Spark has it
        setting = json.dumps(sorted(told.items())) if len(told) > 1 else next(iter(told.values()), None)
    return Initial(begin, "ledger" in told.values(), setting)


def _settled_by(source: Source, frozen: Positions | None) -> str | None:
    """The setting by which the begin of a source was settled; None for one that was added later."""
    text = frozen.setting if frozen else None
    if frozen is None or text is None:
        return None
    if text.startswith("["):
        return dict(json.loads(text)).get(source.name)
    return text if any(source.covers(name) for name, _ in frozen.items) else None


class HasWritten:
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

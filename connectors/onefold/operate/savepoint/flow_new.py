"""Makes a savepoint of a flow that no pipeline gives: from tables, so that the flow begins with what somebody else has
counted, or from a checkpoint whose store is gone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version

import pyarrow as pa

from onefold.clients.files import FileSystems
from onefold.core import ConfigError, LedgerEntry, Positions
from onefold.core.protocol.effects import StoreFacts
from onefold.core.source import MemoryJournal
from onefold.core.values.plain import shown_url
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.building import form_of, mark
from onefold.engine.savepoints.exporting import exported
from onefold.engine.savepoints.saved_tables import SavedTable
from onefold.engine.savepoints.savepoint import Savepoint
from onefold.engine.state import refuse_in_flight
from onefold.engine.state.participant import StateCommitter
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.planning import Planners, check_journals, initial_of
from onefold.operate.savepoint.making import being_made
from onefold.pipeline import Pipeline


@dataclass(frozen=True)
class SavepointBuilder:
    """A savepoint of a flow that was never started, of tables, or of a checkpoint. The flow reads on from `positions`:
    texts as `onefold positions --set` takes them, of one topic, or where its sources begin. `epoch` and `timestamp_ms`
    are those that it goes on from."""

    pipeline: Pipeline
    positions: Sequence[str] | Positions = ()
    files: FileSystems = field(default_factory=FileSystems)
    tables: Mapping[tuple[str, str], Callable[[], Iterator[SavedTable]]] = field(default_factory=dict)
    kept: RestoreFrom | None = None
    epoch: int = 1
    timestamp_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def state(self, uid: str, name: str, table: pa.Table) -> SavepointBuilder:
        """With that state: the columns are those that `savepoint show --state UID/NAME` shows; an aggregate's may have
        its name alone. Raises ConfigError for a table of another form, and for a second one of a state."""
        saved = partial(form_of(self._plan, uid, name).saved, table)
        if (uid, name) in self.tables:
            raise ConfigError(
                "savepoint-table", f"{uid}/{name} is given twice. Put its rows into one table. Nothing was written"
            )
        saved()  # which checks it
        return replace(self, tables={**self.tables, (uid, name): saved})

    def of_checkpoint(self, root: str, epoch: int | None = None) -> SavepointBuilder:
        """With all state of an epoch, by default of the last, that is in the engine's checkpoint `root`, a folder or
        URL; and with its positions, number and time. Nobody asks its store.

        Raises ConfigError where there is no such epoch, or its note is cut, and a source's own error where it cannot go
        on without what it has kept in the store; while it is written, CheckpointMismatch where the flow keeps something
        else, and DataLoss where files are gone or damaged.
        """
        name = self.pipeline.name
        committer = StateCommitter(Storage(root, name))
        epochs = committer.epochs()
        epoch = epoch or max(epochs, default=0)
        note = committer.note(epoch)
        if note is None:
            what = f"no whole note of epoch {epoch}; it has {', '.join(map(str, epochs))}" if epochs else "nothing"
            raise ConfigError(
                "checkpoint-epoch-missing",
                f"the checkpoint {shown_url(root)} has {what} of flow {name!r}. Nothing was written. Name the folder or"
                " URL that the pipeline has as its checkpoint; or an earlier epoch, whose later rows sinks may have",
            )
        refuse_in_flight(name, note.handles, "Nothing was written")
        positions = Positions.from_json(note.positions)
        entry = LedgerEntry(note.epoch, note.generation, note.timestamp_ms, positions, note.store_id)
        check_journals(self.pipeline.flow.sources(), {name: entry}, lambda _: MemoryJournal())
        kept = RestoreFrom(root, name, "", 0, note.handles)
        return replace(self, positions=positions, kept=kept, epoch=note.epoch, timestamp_ms=note.timestamp_ms)

    def write(self, place: str) -> Savepoint:
        """To the folder or URL `place`, whose last part is the savepoint's name. Raises ConfigError where it is
        taken."""
        self.pipeline.check_snapshots()
        folder, _, name = place.rpartition("/")
        there, journals = self.files.of(folder), defaultdict[str, MemoryJournal](MemoryJournal)
        begin = self._begin(journals)
        with being_made(there, folder, name, self.epoch) as making:
            texts = [(source, *each) for source, of in journals.items() for each in of.texts.items()]
            flow = making.keep_flow(self.pipeline, self._plan, self._saved(), texts)
            return making.describe(
                Savepoint(
                    name=making.name,
                    made_at=making.made_at,
                    pipeline=self.pipeline.name,
                    onefold=version("onefold"),
                    store_id="",
                    generation=0,
                    epoch=self.epoch,
                    timestamp_ms=self.timestamp_ms,
                    fingerprint="",
                    positions=begin.with_setting(None),
                    frozen=begin,
                    pins={},
                    files=tuple(making.files),
                    flow=flow,
                )
            )

    @cached_property
    def _plan(self) -> Plan:
        return plan(self.pipeline.graph)

    def _saved(self) -> Iterator[SavedTable]:
        if self.kept is not None:
            yield from exported(self.kept, self._plan)
        for uid in dict.fromkeys(uid for uid, _ in self.tables):
            yield mark(self._plan, uid)
        for saved in self.tables.values():
            yield from saved()

    def _begin(self, journals: Mapping[str, MemoryJournal]) -> Positions:
        """With the setting by which it was found, if that is the sources' own."""
        if isinstance(self.positions, Positions):
            return self.positions
        sources, name = self.pipeline.flow.sources(), self.pipeline.name
        with closing(Planners(dict(enumerate(sources)), None, journals.__getitem__)) as planners:
            begin = planners.initial()
        if not self.positions:
            return begin.with_setting(initial_of(name, sources, StoreFacts("", 0), begin).setting)
        from onefold.sources.kafka import wanted_positions

        return wanted_positions(self.pipeline.topic, begin, self.positions, "--positions").positions

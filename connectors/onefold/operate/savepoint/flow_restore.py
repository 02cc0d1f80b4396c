"""Puts a savepoint of a flow's state in the place of what a pipeline of the engine has: by one decision, which switches
positions and state together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.core import Committable, ConfigError, EpochRecord, Sink
from onefold.core.failpoints import failpoint
from onefold.core.protocol.beginning import begin_at, take
from onefold.core.values.plain import plain
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.importing import check_kept, imported
from onefold.engine.savepoints.saved_tables import SavedTable
from onefold.engine.state.participant import StateSink, committable, note_again
from onefold.engine.state.state_backend import StateKind, StateSpec
from onefold.engine.workers.messages import RestoreFrom
from onefold.operate.savepoint.restore import Restore
from onefold.operate.savepoint.savepoint import FlowState, SavedState, carried, read_copy
from onefold.pipeline import Engine
from onefold.store.job.move_session import MoveSession
from onefold.store.pins import pin

__all__ = ["FlowRestore"]


@dataclass(frozen=True)
class FlowRestore(Restore):
    """`missing` are the operators whose state may be left out, since the flow does not have them any more; `new` are
    those that may begin without any, since the savepoint does not have them."""

    missing: Collection[str] = field(default=())
    new: Collection[str] = field(default=())

    def check(self) -> None:
        """Also raises CheckpointMismatch where an operator keeps something else than the savepoint has of it."""
        saved, mine = {*self._flow.uids()}, {str(chain.uid) for chain in self._plan.chains if chain.uid is not None}
        if gone := saved - mine - {*self.missing}:
            entries = sum(state.rows for state in self._flow.states if state.uid in gone and state.name[0] != "$")
            raise ConfigError(
                "savepoint-missing-operator",
                f"savepoint {self.savepoint.name!r} has state of the operator {', '.join(sorted(gone))} ({entries:,}"
                f" entries), which flow {self.stopped.name!r} does not have. Nothing was changed. Give the operator its"
                " uid back; or leave its state out: --allow-missing UID",
            )
        if begun := mine - saved - {*self.new}:
            raise ConfigError(
                "savepoint-lacks-operator",
                f"savepoint {self.savepoint.name!r} has no state of the operator {', '.join(sorted(begun))} of flow"
                f" {self.stopped.name!r}, which would begin without any. Nothing was changed. Is it another operator's,"
                " under another uid? To have it begin empty: --allow-new UID",
            )
        if unknown := ({*self.missing} - saved) | ({*self.new} - mine):
            raise ConfigError(
                "option-value",
                f"no operator {', '.join(sorted(unknown))} is left out, or begins: the savepoint has"
                f" {', '.join(sorted(saved)) or 'none'}, the flow {', '.join(sorted(mine)) or 'none'}",
            )
        for uid, tables in self._tables(lambda state: state.name.startswith("$")).items():
            check_kept(self._plan, uid, tables)

    def into_same(self) -> None:
        root, name = self.stopped.pipeline.checkpoint, self.stopped.name
        if self._plan.has_state:
            note_again(root, name, self.stopped.facts())
        with closing(self.stopped.session(keeper=self._keeper)) as session:
            facts, _ = session.take_over()
            self.goes_back(facts)
            self._move(session)

    def into_new(self) -> None:
        of, pipeline = self.savepoint, self.stopped.pipeline
        with closing(self.stopped.session(keeper=self._keeper)) as session:
            generation, store_id = session.drive(take(self.origin(), session.names, again=True))
            session.drive(begin_at(self.origin(), generation, store_id, session.names))
            session.accept_targets(generation)
            for name, value in carried(of.pins).items():
                pin(session.store, pipeline.name, name, lambda value=value: value)  # type: ignore[misc]  # a default cannot be inferred
            self._write_journals(session)
            failpoint("restore:begun")
            session.take_over()
            self._move(session)

    def _write_journals(self, session: MoveSession) -> None:
        by_source: dict[str, dict[str, str]] = {}
        if self._flow.journals is not None:
            for row in self._table(self._flow.journals).to_pylist():
                by_source.setdefault(row["source"], {})[row["name"]] = row["text"]
        for source, texts in by_source.items():
            journal = session.journal(source)
            session.patience.retry(lambda journal=journal, texts=texts: journal.write(texts), "writing the store")  # type: ignore[misc]  # defaults cannot be inferred

    def _move(self, session: MoveSession) -> None:
        session.restore(self.savepoint.positions, self.move_note(), self._prepare)
        self.note(session)

    def _prepare(self, record: EpochRecord) -> tuple[Committable, ...]:
        if not self._plan.has_state:
            return ()
        pipeline, engine = self.stopped.pipeline, self._engine
        into = RestoreFrom(pipeline.checkpoint, pipeline.name, engine.state, record.generation, ())
        handles = imported(into, record.epoch, engine.workers, self._plan, self._tables())
        failpoint("restore:imported")
        return tuple(map(committable, handles))

    def _tables(self, wanted: object = None) -> Mapping[str, Iterator[SavedTable]]:
        chosen = [state for state in self._flow.states if not callable(wanted) or wanted(state)]
        return {
            uid: self._read([state for state in chosen if state.uid == uid])
            for uid in self._flow.uids()
            if uid not in self.missing
        }

    def _read(self, states: list[SavedState]) -> Iterator[SavedTable]:
        for state in states:
            spec = StateSpec(state.uid, state.name, StateKind(state.kind))
            yield from (SavedTable(spec, self._table(path), state.keys) for path in state.files)

    def _table(self, path: str) -> pa.Table:
        """A file, once it was compared with its digest. Raises ConfigError where it is damaged."""
        copies = {file.path: file for file in self.savepoint.files}
        try:
            content = read_copy(self.stopped.files.of(self.place), self.place, self.savepoint, copies[path])
            return pq.read_table(pa.BufferReader(b"".join(content)))
        except (ValueError, pa.ArrowException, OSError) as damage:
            raise ConfigError(
                "savepoint-damaged",
                f"savepoint {self.savepoint.name!r} is damaged: {plain(str(damage))}. Nothing was changed: use another"
                " one",
            ) from damage

    @cached_property
    def _plan(self) -> Plan:
        return plan(self.stopped.pipeline.graph)

    @property
    def _flow(self) -> FlowState:
        found = self.savepoint.flow
        if found is None:
            raise ConfigError(
                "savepoint-of-a-query",
                f"savepoint {self.savepoint.name!r} is a query's checkpoint, whose state is in Spark's own form,"
                " which the engine does not read. Nothing was changed. Restore it into a pipeline on Spark",
            )
        return found

    @property
    def _engine(self) -> Engine:
        runtime = self.stopped.pipeline.runtime
        assert isinstance(runtime, Engine)
        return runtime

    @property
    def _keeper(self) -> tuple[Sink, ...]:
        if not self._plan.has_state:
            return ()
        return (StateSink(self.stopped.pipeline.checkpoint, self._engine.retain),)

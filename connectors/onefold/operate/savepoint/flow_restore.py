"""Puts a savepoint of a flow's state in the place of what a pipeline has: by one decision, which switches positions and
state together, and from one runtime to the other.

On the engine the decision's manifest names the state. On Spark it says where the savepoint is: with that a new
checkpoint begins, until its first batch is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from onefold.core import MOVED, Committable, ConfigError, EpochRecord, Sink
from onefold.core.checks import present
from onefold.core.failpoints import failpoint
from onefold.core.protocol.beginning import begin_at, take
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.savepoints.exporting import mark_of
from onefold.engine.savepoints.importing import imported
from onefold.engine.savepoints.reading import SavepointReader
from onefold.engine.savepoints.saved_tables import SavedTable
from onefold.engine.savepoints.savepoint import FlowState
from onefold.engine.state import STATE, folder_of
from onefold.engine.state.participant import StateSink, committable, note_again
from onefold.engine.workers.messages import RestoreFrom
from onefold.operate.savepoint.restore import Restore
from onefold.pipeline import Engine, Spark
from onefold.store.job.move_session import MoveSession


@dataclass(frozen=True)
class FlowRestore(Restore):
    """`missing` are the operators whose state may be left out, since the flow does not have them any more; `new` are
    those that may begin without any, since the savepoint does not have them."""

    missing: Collection[str] = field(default=())
    new: Collection[str] = field(default=())

    def check(self) -> None:
        """Also raises CheckpointMismatch where an operator keeps something else than the savepoint has of it."""
        self.stopped.pipeline.check_snapshots()
        evolution = self._plan.graph.evolution
        saved = {*evolution.moved(self._flow.uids()).values()} - {*evolution.drops}
        mine = self._plan.by_uid.keys()
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
        if unknown := ({*self.missing} - (saved - mine)) | ({*self.new} - (mine - saved)):
            raise ConfigError(
                "option-value",
                f"no operator {', '.join(sorted(unknown))} is left out, or begins: the savepoint has"
                f" {', '.join(sorted(saved)) or 'none'}, the flow {', '.join(sorted(mine)) or 'none'}",
            )
        if on_spark := isinstance(self.stopped.pipeline.runtime, Spark):
            self.stopped.pipeline.check()
        self._reader.changes(self._plan, on_spark)

    def into_same(self) -> None:
        with self._session() as session:
            if self._keeper:
                note_again(self.stopped.pipeline.checkpoint, self.stopped.name, self.stopped.facts())
            last = self.stopped.facts().last
            facts, _ = session.take_over(compares=last is not None and last.query_id not in (MOVED, self.stopped.name))
            self.goes_back(facts)
            self._move(session)

    def into_new(self) -> None:
        with self._session() as session:
            generation, store_id = session.drive(take(self.origin(), session.names, again=True))
            # From `begin_at` on it may be started, where it keeps no state.
            self.pin_carried(session)
            self._write_journals(session)
            self.note_beginning(session, generation)
            session.drive(begin_at(self.origin(), generation, store_id, session.names))
            session.accept_targets(generation)
            failpoint("restore:begun")
            session.take_over()
            self._move(session)

    def _write_journals(self, session: MoveSession) -> None:
        by_source: dict[str, dict[str, str]] = {}
        if self._flow.journals is not None:
            for row in self._reader.table(self._flow.journals).to_pylist():
                by_source.setdefault(row["source"], {})[row["name"]] = row["text"]
        for source, texts in by_source.items():
            journal = session.journal(source)
            session.patience.retry(lambda journal=journal, texts=texts: journal.write(texts), "writing the store")  # type: ignore[misc]  # defaults cannot be inferred

    def _session(self) -> closing[MoveSession]:
        return closing(self.stopped.session(added=[STATE], keeper=self._keeper))

    def _move(self, session: MoveSession) -> None:
        on_engine = isinstance(self.stopped.pipeline.runtime, Engine)
        note = self.move_note()
        if not on_engine:
            note = replace(note, state=(self.place, self.savepoint.digest) if self._flow.states else None)
            generation = present(session.started, "it was taken over").generation
            from onefold.spark.flows.refusals import pins_of  # for pipelines on Spark alone

            for name, value in pins_of(self.stopped.pipeline.graph).items():
                session.store.note(generation, name, value)
        sinks = [name for name in session.names if name != STATE or (on_engine and self._plan.has_state)]
        session.restore(self.savepoint.positions.of_records(), note, sinks, self._prepare)
        self.note(session)

    def _prepare(self, record: EpochRecord) -> tuple[Committable, ...]:
        pipeline, engine = self.stopped.pipeline, self.stopped.pipeline.runtime
        if not isinstance(engine, Engine) or not self._plan.has_state:
            return ()
        into = RestoreFrom(pipeline.checkpoint, pipeline.name, engine.state, record.generation, ())
        handles = imported(into, record.epoch, engine.workers, self._plan.graph.max_parallelism, self._tables())
        failpoint("restore:imported")
        return tuple(map(committable, handles))

    def _tables(self) -> dict[str, Iterable[SavedTable]]:
        """Of the operators that the flow has; one that begins has nothing but what says so."""
        tables: dict[str, Iterable[SavedTable]] = {
            uid: self._reader.of(uid) for uid in self._reader.changes(self._plan)
        }
        heads = {uid: chain.head for uid, chain in self._plan.by_uid.items() if uid in self.new}
        return tables | {uid: [mark_of(self._plan.graph, head)] for uid, head in heads.items()}

    @property
    def _reader(self) -> SavepointReader:
        return SavepointReader(self.stopped.files.of(self.place), self.place, self.savepoint)

    @cached_property
    def _plan(self) -> Plan:
        return plan(self.stopped.pipeline.graph)

    @property
    def _flow(self) -> FlowState:
        of = self.savepoint
        if of.query is not None and of.query.provider is not None:
            raise ConfigError(
                "savepoint-of-a-query",
                f"savepoint {of.name!r} is a query's checkpoint, whose state is in Spark's own form, which the engine"
                " does not read. Nothing was changed. Restore it into a pipeline on Spark",
            )
        return of.flow or FlowState("spark", self._plan.graph.max_parallelism, ())

    @property
    def _keeper(self) -> tuple[Sink, ...]:
        """Of the state that the engine is to have, or has had until now."""
        pipeline = self.stopped.pipeline
        folder = Path(pipeline.checkpoint) / folder_of(pipeline.name)
        if isinstance(pipeline.runtime, Engine) and self._plan.has_state:
            return (StateSink(pipeline.checkpoint, pipeline.runtime.retain),)
        return (StateSink(pipeline.checkpoint),) if (folder / "ledger.json").exists() else ()

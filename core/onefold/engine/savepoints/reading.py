"""Reads the tables of a savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from onefold.clients.files import FileSystem
from onefold.core.checks import present
from onefold.core.errors import ConfigError, DataLoss
from onefold.engine.dataflow.chains import Plan
from onefold.engine.savepoints.importing import as_now, description_of
from onefold.engine.savepoints.saved_tables import SavedTable, from_file, readable
from onefold.engine.savepoints.savepoint import Savepoint, damaged, read_copy
from onefold.engine.state.state_backend import Migrations, StateKind, StateSpec
from onefold.engine.workers.snapshots import changes_of, check_times


@dataclass(frozen=True)
class SavepointReader:
    """Of a flow's savepoint in the folder `place`."""

    files: FileSystem
    place: str
    savepoint: Savepoint

    def of(self, uid: str, marks: bool = False) -> Iterator[SavedTable]:
        """An operator's tables; with `marks`, only those that say what it keeps. Raises as `table` does."""
        for state in present(self.savepoint.flow, "it is of a flow").states:
            if state.uid == uid and ((state.name.startswith("$") and state.kind == "operator") or not marks):
                spec = StateSpec(uid, state.name, StateKind(state.kind))
                for path in state.files:
                    with self._vetting():
                        saved = SavedTable(spec, self.table(path), state.keys)
                        saved.check()
                    yield saved

    def changes(self, plan: Plan, on_spark: bool = False) -> dict[str, Migrations]:
        """How the state of each operator of the flow that it has becomes what that keeps now, by the uid that it had.
        Raises CheckpointMismatch where it cannot."""
        chains, found = plan.by_uid, {}
        for uid, now in plan.graph.evolution.moved(present(self.savepoint.flow, "it is of a flow").uids()).items():
            if now in chains:
                with self._vetting():
                    before = description_of(self.of(uid, marks=True))
                found[uid] = changes_of(plan.graph, chains[now].head, before)
                if on_spark:
                    check_times(plan.graph, chains[now].head, before)
        return found

    def as_now(self, plan: Plan) -> Iterator[SavedTable]:
        """The tables of what the flow keeps now, for Spark. Raises as `changes` does."""
        changes = self.changes(plan, on_spark=True)
        tables = {uid: self.of(uid) for uid in changes}
        if any(changes.values()) or any(uid != now for uid, now in plan.graph.evolution.moved(tables).items()):
            yield from as_now(plan, tables)
            return
        for of in tables.values():
            yield from of

    def first(self, state: str, limit: int) -> list[dict[str, Any]]:
        """The first rows of a state (`UID/NAME`), as they are in the files. Raises ConfigError for one that it has
        not."""
        states = () if self.savepoint.flow is None else self.savepoint.flow.states
        found = [each for each in states if f"{each.uid}/{each.name}" == state]
        if not found:
            known = ", ".join(f"{each.uid}/{each.name}" for each in states if not each.name.startswith("$"))
            raise ConfigError("option-value", f"the savepoint has no state {state!r}; it has {known or 'none'}")
        rows: list[dict[str, Any]] = []
        for path in (path for each in found for path in each.files):
            rows += readable(self.table(path).slice(0, limit - len(rows))).to_pylist()
            if len(rows) >= limit:
                break
        return rows

    def table(self, path: str) -> pa.Table:
        """A file, once it was compared with its digest. Raises ConfigError where it is damaged."""
        copies = {file.path: file for file in self.savepoint.files}
        with self._vetting():
            return from_file(b"".join(read_copy(self.files, self.place, self.savepoint, copies[path])))

    @contextmanager
    def _vetting(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, IndexError, pa.ArrowException, OSError, DataLoss) as damage:
            raise damaged(self.savepoint, damage) from damage

"""Subtasks of a window or a join, with a backend each: epoch by epoch, over stores and restores by another number."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from timed_rows import ROWS

from onefold.core import TaskId
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.engine.key_groups import key_groups_of_subtask, split_by_subtask
from onefold.engine.logics.joins.join_logic import JoinLogic
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.logics.windows.elements import ElementsLogic
from onefold.engine.logics.windows.sessions import SessionLogic
from onefold.engine.logics.windows.slicing import SlicingLogic
from onefold.engine.savepoints.exporting import columns_of, tables_of
from onefold.engine.savepoints.importing import share_out
from onefold.engine.savepoints.saved_tables import SavedTable, from_file, to_file
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.rocks import RocksBackend
from onefold.engine.state.state_backend import Frozen, StateBackend
from onefold.engine.state.storage import Storage
from onefold.engine.workers.describing import described
from onefold.flow import Flow, Watermarks
from onefold.flow.graph.operators import Joining, Windowing
from onefold.flow.time.clocks import Highest, SourceEnd
from onefold.flow.time.watermarks import UNTIMED

GROUPS = 16
Row = dict[str, Any]


class Subtasks:
    """Those of the windows of a flow that reads one source `rows` and has one window, whose input is the source's; or
    of its join, of the rows whose amount is not below 0 with the others."""

    def __init__(
        self,
        flow: Flow,
        watermarks: Watermarks | None,
        folder: Path,
        backend: str,
        count: int = 1,
        columns: pa.Schema = ROWS,
    ) -> None:
        self._watermarks, self._folder, self._backend, self._columns = watermarks or UNTIMED, folder, backend, columns
        self._begin(flow)
        self._storage = Storage(str(folder / "state"), "windows")
        self._named: dict[str, None] = {}
        self._handles: list[str] = []
        self._generation = self._epoch = 0
        self.logics: list[SlicingLogic | SessionLogic | ElementsLogic | JoinLogic] = []
        self.backends: list[StateBackend] = []
        self._frozen: list[Frozen] = []
        self.restore(count)

    def restore(self, count: int) -> None:
        """That many subtasks, from what the last epoch left, which is stored only for this."""
        if self._frozen:
            self._handles = [each.store() for each in self._frozen]
        self.close()
        self._generation += 1
        self.backends = [self._made(number) for number in range(count)]
        for number, backend in enumerate(self.backends):
            backend.restore(self._handles, key_groups_of_subtask(number, count, GROUPS))
        logics = [
            make_logic(self._graph, self._node, {}, backend, number, count)
            for number, backend in enumerate(self.backends)
        ]
        self.logics = [
            logic for logic in logics if isinstance(logic, SlicingLogic | SessionLogic | ElementsLogic | JoinLogic)
        ]

    def move(self, count: int, backend: str) -> None:
        """As `restore`, by a savepoint, and with another backend from here on."""
        columns, saved = columns_of(self._graph, self._node), list[SavedTable]()
        self.restore(len(self.logics))
        for number, each in enumerate(self.backends):
            assert isinstance(each, MemoryBackend | RocksBackend)
            saved += tables_of(each, columns, described(self._graph, self._node), number)
        self.close()
        self._backend, self._generation = backend, self._generation + 1
        self.backends = [self._made(number) for number in range(count)]
        written = [replace(each, table=from_file(to_file(each.table))) for each in saved]
        share_out(written, cast(Any, self.backends), GROUPS)
        self._frozen = [each.freeze(self._epoch) for each in self.backends]
        self.restore(count)

    def die(self, count: int) -> None:
        """Before the last epoch is decided: that many subtasks, from what the one before it left."""
        for each in self._frozen:
            each.release()
        self._frozen = []
        self.restore(count)

    def change(self, flow: Flow) -> None:
        """As many, with other code from here on."""
        self._begin(flow)
        self.restore(len(self.logics))

    def epoch(
        self, rows: Mapping[str, Sequence[Any]], now_s: float, is_last: bool = False, batch_rows: int = 1_000
    ) -> tuple[list[Row], list[Row]]:
        """Results, and late rows, of rows by their partition."""
        self._epoch += 1
        self._named |= dict.fromkeys(rows)
        task = TaskId("windows", self._generation, self._epoch, round(now_s * 1_000), uuid.UUID(int=self._epoch))
        highest = Highest("rows", self._watermarks)
        for logic in self.logics:
            logic.begin(task)
        found: list[tuple[str | None, pa.RecordBatch]] = []
        for partition, of in rows.items():
            for at in range(0, len(of), batch_rows):
                columns = zip(*of[at : at + batch_rows], strict=True)
                arrays = [pa.array(values, field.type) for values, field in zip(columns, self._columns, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=self._columns)
                highest.see(partition, Part(batch, empty_batch(BAD_COLUMNS)))
                for port, of_port in enumerate(self._inputs(batch)):
                    parts = split_by_subtask(of_port, self._operator.key, GROUPS, len(self.logics))
                    for logic, part in zip(self.logics, parts, strict=True):
                        found += logic.take(part, port)
        times = highest.take(SourceEnd(tuple(self._named), is_last))
        for logic in self.logics:
            logic.advance(times, task)
            found += logic.flush(task)
        clocks = [clock for logic in self.logics if (clock := logic.clock()) is not None]
        assert len({replace(clock, late=0) for clock in clocks}) <= 1
        if self._node.sides:
            late = sum(len(batch) for output, batch in found if output is not None)
            assert sum(clock.late for clock in clocks) == late
        for each in self._frozen:
            each.release()
        self._frozen = [backend.freeze(self._epoch) for backend in self.backends]
        results = [row for output, batch in found if output is None for row in batch.to_pylist()]
        return results, [row for output, batch in found if output is not None for row in batch.to_pylist()]

    def kept(self) -> list[tuple[int, int]]:
        """The blocks that are left of all tables."""
        logs: list[Any] = []
        kept: list[tuple[int, int]] = []
        for logic in self.logics:
            if isinstance(logic, JoinLogic):
                logs += [side._log for side in logic._sides]
                continue
            if isinstance(logic, ElementsLogic):
                tables = logic._contents._windows, logic._contents._rows
                kept += [(0, 0) for table in tables for _ in table.scan()]
                continue
            logs += [logic._open if isinstance(logic, SessionLogic) else logic._slices, logic._fired]
        return kept + [at for log in logs for at in log._table.ids()]

    def close(self) -> None:
        self._frozen.clear()
        for backend in self.backends:
            backend.close()

    def _begin(self, flow: Flow) -> None:
        self._graph = flow.graph()
        (self._node,) = (node for node in self._graph.nodes if isinstance(node.operator, Windowing | Joining))

    @property
    def _operator(self) -> Windowing | Joining:
        assert isinstance(self._node.operator, Windowing | Joining)
        return self._node.operator

    def _inputs(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if isinstance(self._operator, Windowing):
            return [batch]
        is_left = pc.greater_equal(batch["amount"], 0)
        return [batch.filter(is_left), batch.filter(pc.invert(is_left))]

    def _made(self, number: int) -> StateBackend:
        if self._backend == "memory":
            return MemoryBackend(self._storage, self._generation, GROUPS, copies_max=9, logged_min=12)
        folder = self._folder / f"{self._generation}-{number}"
        folder.mkdir()
        return RocksBackend(self._storage, self._generation, GROUPS, folder=str(folder), changes_max=15)


def counted(rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    """The rows in no order."""
    return Counter(tuple(row.values()) for row in rows)

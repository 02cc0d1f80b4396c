"""A savepoint's tables as snapshots of an epoch: for any backend, number of workers and number of key groups.

They are of what was kept, as it was, and say so: the start that restores them has it become what the flow keeps now.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from onefold.engine.dataflow.chains import Plan
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.savepoints.exporting import exported
from onefold.engine.savepoints.saved_tables import SavedTable, blocks_of, entries_of, of_groups, one_batch
from onefold.engine.state.arrow_entries import guarded
from onefold.engine.state.codec import unreadable
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.schemas.description import OperatorDescription
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import BlockTable, StateKind, StateSpec, StateTables, Value
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.messages import RestoreFrom
from onefold.engine.workers.snapshots import MARK

if TYPE_CHECKING:
    from onefold.engine.state.rocks import RocksBackend

_LISTS = (StateKind.OPERATOR, StateKind.CLOCKS)
Tables = Mapping[str, Iterable[SavedTable]]
"""Of each operator, by the uid that it had."""


def imported(into: RestoreFrom, epoch: int, workers: int, max_parallelism: int, tables: Tables) -> tuple[str, ...]:
    """Write the snapshots with which so many workers restore, of that epoch under the generation of `into`; returns
    their handles. Raises DataLoss for a table that no export has made."""
    handles = list[str]()
    storage = Storage(into.root, into.flow)
    for of in tables.values():
        with ExitStack() as stack:
            backends = []
            for _ in range(workers):
                backends.append(made_backend(into.backend, storage, into.generation, max_parallelism, into.scratch))
                stack.enter_context(closing(backends[-1]))
            share_out(of, backends, max_parallelism)
            handles += [backend.freeze(epoch).store() for backend in backends]
    return tuple(handles)


def as_now(plan: Plan, tables: Tables) -> Iterator[SavedTable]:
    """The tables of what the flow keeps now, where that is not what was kept. Raises CheckpointMismatch where it cannot
    become that."""
    with tempfile.TemporaryDirectory(prefix="onefold-savepoint-") as folder:
        into = RestoreFrom(folder, plan.graph.flow, MemoryBackend.name, 1, ())
        handles = imported(into, 1, 1, plan.graph.max_parallelism, tables)
        yield from exported(RestoreFrom(folder, plan.graph.flow, MemoryBackend.name, 1, handles), plan)


def description_of(tables: Iterable[SavedTable]) -> OperatorDescription:
    """What the tables of an operator are of. Raises DataLoss where they do not say it."""
    marks = [each.table for each in tables if each.spec.name == MARK]

    def read() -> OperatorDescription:
        ((text,), *_) = cast("Sequence[Value]", entries_of(marks[0]).values)
        return OperatorDescription.from_json(str(text))

    if not marks:
        raise unreadable()
    return guarded(read)


def share_out(
    tables: Iterable[SavedTable], backends: Sequence[MemoryBackend | RocksBackend], max_parallelism: int
) -> None:
    """Put the tables of an operator into the backends of its subtasks, which have restored nothing."""
    parts = list[Part]()
    for number, backend in enumerate(backends):
        groups = key_groups_of_subtask(number, len(backends), max_parallelism)
        backend.restore((), groups)
        parts.append(Part(backend, Wanted(range(min(groups), max(groups) + 1), max_parallelism, len(backends) == 1)))
    for spec, by_subtask in take_all(tables, parts).items():
        # Savepoints are of aligned epochs, in which all subtasks know the same of time: the first one's clocks are
        # everyone's. Behind barriers that overtook, each would stand in an epoch of its own.
        is_alike = spec.kind is StateKind.CLOCKS or spec.name == MARK
        for number, backend in enumerate(backends):
            backend.adopt(spec, by_subtask[:1] if is_alike else by_subtask if number == 0 else [])


def take_all(tables: Iterable[SavedTable], parts: Sequence[Part]) -> dict[StateSpec, list[list[Value]]]:
    """Share the tables of an operator out among the parts. Returns its lists, in the order of the subtasks that kept
    them."""
    lists = dict[StateSpec, dict[tuple[int, int], Value]]()
    for each in tables:
        if each.spec.kind in _LISTS:
            entries = entries_of(each.table)
            values = zip(entries.keys, entries.values, strict=True)
            lists.setdefault(each.spec, {}).update(cast("Iterable[tuple[tuple[int, int], Value]]", values))
        else:
            for part in parts:
                part.take(each)
    return {spec: _by_subtask(of) for spec, of in lists.items()}


def _by_subtask(values: Mapping[tuple[int, int], Value]) -> list[list[Value]]:
    found: dict[int, list[Value]] = {}
    for (subtask, _), value in sorted(values.items(), key=lambda entry: entry[0]):
        found.setdefault(subtask, []).append(value)
    return [*found.values()]


class Part:
    """One subtask's share of an operator's state."""

    def __init__(self, backend: StateTables, wanted: Wanted) -> None:
        self.backend, self._wanted = backend, wanted
        self._opened: dict[StateSpec, Any] = {}
        self._blocks: dict[StateSpec, set[tuple[int, int]]] = {}

    def take(self, saved: SavedTable) -> None:
        """The rows and entries of its key groups."""
        spec = saved.spec
        if spec.kind is StateKind.ROWS:
            rows = of_groups(saved.table, range(saved.keys), self._wanted)
            if len(rows):
                batch = one_batch(rows)
                self._table(spec, batch.schema, saved.keys).put_rows(batch)
        elif spec.kind is StateKind.BLOCKS:
            rows = of_groups(saved.table, range(2, 2 + saved.keys), self._wanted)
            self._take_blocks(spec, rows, saved.keys)
        else:
            groups = None if self._wanted.is_whole else self._wanted.groups
            entries, table = entries_of(saved.table, groups, self._wanted.max_parallelism), self._table(spec)
            if spec.kind is StateKind.VALUE:
                table.put_many(entries.keys, entries.values)
                return
            for key, sub, value in zip(entries.keys, entries.subs, entries.values, strict=True):
                table.put(key, value, sub)

    def _take_blocks(self, spec: StateSpec, rows: pa.Table, keys: int) -> None:
        there = self._blocks.setdefault(spec, set())
        for at, block in blocks_of(rows) if len(rows) else ():
            table: BlockTable = self._table(spec, block.schema, keys)
            found = block
            if at in there:  # of another subtask
                found = pa.concat_batches([table.get(at), block])
            there.add(at)
            table.put(at, found)

    def _table(self, spec: StateSpec, schema: pa.Schema | None = None, keys: int = 0) -> Any:
        """`schema` is that of rows and blocks, whose first `keys` columns are the key."""
        if spec not in self._opened:
            if spec.kind is StateKind.ROWS:
                opened: Any = self.backend.rows(spec.uid, spec.name, schema, keys)
            elif spec.kind is StateKind.BLOCKS:
                opened = self.backend.blocks(spec.uid, spec.name, schema, keys)
            else:
                opened = self.backend.table(spec)
            self._opened[spec] = opened
        return self._opened[spec]

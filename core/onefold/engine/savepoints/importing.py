"""A savepoint's tables as snapshots of an epoch: for any backend, number of workers and number of key groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from onefold.core.errors import ConfigError
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.key_groups import key_groups_of_subtask
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.savepoints.exporting import Columns, columns_of
from onefold.engine.savepoints.saved_tables import SavedTable, blocks_of, entries_of, of_groups, one_batch
from onefold.engine.state.backends import made_backend
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.snapshot import Wanted
from onefold.engine.state.state_backend import BlockTable, StateKind, StateSpec, StateTables, Value
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import RestoreFrom
from onefold.engine.workers.snapshots import mark

if TYPE_CHECKING:
    from onefold.engine.state.rocks import RocksBackend

__all__ = ["Part", "check_kept", "imported", "share_out", "take_all"]

_LISTS = (StateKind.OPERATOR, StateKind.CLOCKS)


def imported(
    into: RestoreFrom, epoch: int, workers: int, plan: Plan, tables: Mapping[str, Iterable[SavedTable]]
) -> tuple[str, ...]:
    """Write the snapshots with which so many workers restore, of that epoch under the generation of `into`; returns
    their handles. `tables` are those of each operator by uid: an operator without any begins empty.

    Raises CheckpointMismatch where an operator keeps something else than its tables have, DataLoss for a table that no
    export has made."""
    handles = list[str]()
    for chain in plan.chains:
        if chain.uid is not None:
            handles += _imported(into, epoch, workers, plan, chain, tables.get(chain.uid, ()))
    return tuple(handles)


def check_kept(plan: Plan, uid: str, tables: Iterable[SavedTable]) -> None:
    """Raise CheckpointMismatch where the operator keeps something else than is said in its lists."""
    chain = next(chain for chain in plan.chains if chain.uid == uid)
    backend = MemoryBackend(Storage("", ""), 0, plan.graph.max_parallelism)
    share_out(tables, [backend], plan.graph.max_parallelism, {})
    mark(backend, chain)
    make_logic(plan.graph, chain.head, {}, backend, 0, 1).close()


def _imported(
    into: RestoreFrom, epoch: int, workers: int, plan: Plan, chain: Chain, tables: Iterable[SavedTable]
) -> list[str]:
    storage, most = Storage(into.root, into.flow), plan.graph.max_parallelism
    with ExitStack() as stack:
        backends = []
        for _ in range(workers):
            backends.append(made_backend(into.backend, storage, into.generation, most, into.scratch))
            stack.enter_context(closing(backends[-1]))
        share_out(tables, backends, most, columns_of(plan.graph, chain.head))
        for backend in backends:
            mark(backend, chain)
        return [backend.freeze(epoch).store() for backend in backends]


def share_out(
    tables: Iterable[SavedTable],
    backends: Sequence[MemoryBackend | RocksBackend],
    max_parallelism: int,
    columns: Columns,
) -> None:
    """Put the tables of an operator into the backends of its subtasks, which have restored nothing."""
    parts = list[Part]()
    for number, backend in enumerate(backends):
        groups = key_groups_of_subtask(number, len(backends), max_parallelism)
        backend.restore((), groups)
        wanted = Wanted(range(min(groups), max(groups) + 1), max_parallelism, len(backends) == 1)
        parts.append(Part(backend, wanted, columns))
    for spec, by_subtask in take_all(tables, parts).items():
        is_alike = spec.kind is StateKind.CLOCKS or spec.name.startswith("$")  # in all subtasks there were
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

    def __init__(self, backend: StateTables, wanted: Wanted, columns: Columns) -> None:
        self.backend, self._wanted, self._columns = backend, wanted, columns
        self._opened: dict[StateSpec, Any] = {}
        self._blocks: dict[StateSpec, set[tuple[int, int]]] = {}

    def take(self, saved: SavedTable) -> None:
        """The rows and entries of its key groups."""
        spec = saved.spec
        if spec.kind is StateKind.ROWS:
            rows = of_groups(saved.table, range(saved.keys), self._wanted)
            if len(rows):
                self._table(spec).put(self._as_asked(spec, one_batch(rows)))
        elif spec.kind is StateKind.BLOCKS:
            rows = of_groups(saved.table, range(2, 2 + saved.keys), self._wanted)
            self._take_blocks(spec, rows)
        else:
            groups = None if self._wanted.is_whole else self._wanted.groups
            entries, table = entries_of(saved.table, groups, self._wanted.max_parallelism), self._table(spec)
            if spec.kind is StateKind.VALUE:
                table.put_many(entries.keys, entries.values)
                return
            for key, sub, value in zip(entries.keys, entries.subs, entries.values, strict=True):
                table.put(key, value, sub)

    def _take_blocks(self, spec: StateSpec, rows: pa.Table) -> None:
        if not len(rows):
            return
        table: BlockTable = self._table(spec)
        there = self._blocks.setdefault(spec, set())
        for at, block in blocks_of(rows):
            found = self._as_asked(spec, block)
            if at in there:  # of another subtask
                found = pa.concat_batches([table.get(at), found])
            there.add(at)
            table.put(at, found)

    def _as_asked(self, spec: StateSpec, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema, _ = _asked(spec, self._columns.get((spec.uid, spec.name)))
        return pa.RecordBatch.from_arrays([*map(_cast, rows.columns, schema.types)], schema=schema)

    def _table(self, spec: StateSpec) -> Any:
        if spec not in self._opened:
            asked = self._columns.get((spec.uid, spec.name))
            if spec.kind is StateKind.ROWS:
                opened: Any = self.backend.rows(spec.uid, spec.name, *_asked(spec, asked))
            elif spec.kind is StateKind.BLOCKS:
                opened = self.backend.blocks(spec.uid, spec.name, *_asked(spec, asked))
            else:
                opened = self.backend.table(spec)
            self._opened[spec] = opened
        return self._opened[spec]


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind) else column.cast(kind)


def _asked(spec: StateSpec, asked: tuple[pa.Schema, int] | None) -> tuple[pa.Schema, int]:
    if asked is None:
        raise ConfigError(
            "savepoint-state-unknown",
            f"the savepoint has the state {spec.name!r} of the operator {spec.uid!r}, which does not keep any such:"
            " the savepoint is of another flow, or of another version of onefold. Nothing was changed",
        )
    return asked

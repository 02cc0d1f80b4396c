"""A decided epoch's snapshots as tables of a savepoint. They are read, and nothing is written where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from onefold.engine.dataflow.chains import Plan
from onefold.engine.savepoints.saved_tables import Names, SavedTable, in_parts, table_of_entries, tables_of_blocks
from onefold.engine.state.arrow_entries import Entries
from onefold.engine.state.schemas.description import OperatorDescription
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.state_backend import EXPIRY, StateKind, StateSpec, Value
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.describing import asked_for, described
from onefold.engine.workers.messages import RestoreFrom
from onefold.engine.workers.snapshots import MARK, check_times, description_in, restore, snapshots_by_uid
from onefold.flow.graph.nodes import Graph, Node

if TYPE_CHECKING:
    from onefold.engine.state.memory import MemoryBackend
    from onefold.engine.state.rocks import RocksBackend

_LIST = Names(("subtask", "index"))

Columns = dict[tuple[str, str], tuple[pa.Schema, int]]
"""Of the states that are rows of a folding, or blocks, by uid and name: their schema, and how many columns their key
has."""


def columns_of(graph: Graph, node: Node) -> Columns:
    """Of the states of an operator."""
    return {(spec.uid, spec.name): (schema, keys) for spec, schema, keys in asked_for(graph, node) if len(schema)}


def mark_of(graph: Graph, node: Node) -> SavedTable:
    """What says what an operator keeps."""
    now = described(graph, node)
    return _list(StateSpec(now.uid, MARK, StateKind.OPERATOR), [(now.to_json(),)], 0)


def exported(restoring: RestoreFrom, plan: Plan) -> Iterator[SavedTable]:
    """All state of the snapshots that are named, as their operators keep it now, an operator after the other; a
    subtask's is in memory at a time, where the memory backend has kept it. Raises CheckpointMismatch where it cannot
    become what the flow keeps."""
    storage = Storage(restoring.root, restoring.flow)
    for uid, handles in snapshots_by_uid(restoring, plan).items():
        head = plan.by_uid[uid].head
        columns = columns_of(plan.graph, head)
        check_times(plan.graph, head, description_in(storage, handles[0]))
        yield mark_of(plan.graph, head)
        for number, handle in enumerate(sorted(handles)):
            footer, _ = read_footer(storage, handle)
            backend = made_backend(footer.backend, storage, 0, footer.max_parallelism, restoring.scratch)
            try:
                restore(backend, storage, plan.graph, head, [handle], range(footer.first, footer.end))
                yield from tables_of(backend, columns, described(plan.graph, head), number)
            finally:
                backend.close()


def tables_of(
    backend: MemoryBackend | RocksBackend, columns: Columns, of: OperatorDescription, subtask: int
) -> Iterator[SavedTable]:
    """All that a backend has restored, of the subtask of that number."""
    for spec, lists in backend.lists().items():
        values = [value for each in lists for value in each]
        if spec.name == EXPIRY:  # places of walks are of a backend
            values = [(*value[:-1], None) for value in values]
        if spec.name != MARK:
            yield _list(spec, values, subtask)
    for spec in backend.specs():
        schema, width = columns.get((spec.uid, spec.name), (None, 0))
        if schema is None:
            for some in in_parts(backend.table(spec).scan()):
                yield SavedTable(
                    spec, table_of_entries(spec.kind, names_of(of, spec), Entries(*zip(*some, strict=True)))
                )
        elif spec.kind is StateKind.BLOCKS:
            blocks = backend.blocks(spec.uid, spec.name, schema, width)
            for table in tables_of_blocks((at, blocks.get(at)) for at in blocks.ids()):
                yield SavedTable(spec, table, width)
        else:  # which RocksDB keeps as values
            rows = StateSpec(spec.uid, spec.name, StateKind.ROWS)
            for states in backend.rows(spec.uid, spec.name, schema, width).scan():
                if len(states):
                    yield SavedTable(rows, pa.Table.from_batches([states]), width)


def names_of(of: OperatorDescription, spec: StateSpec) -> Names:
    """What the places of a state's entries are called."""
    state = next((state for state in of.states if state.name == spec.name), None)
    return Names(of.key.names, *(((), ()) if state is None else (state.key.names, state.value.names)))


def _list(spec: StateSpec, values: Sequence[Value], subtask: int) -> SavedTable:
    places = [(subtask, at) for at in range(len(values))]
    return SavedTable(spec, table_of_entries(spec.kind, _LIST, Entries(places, [()] * len(values), values)))

"""The state of one operator of a stopped flow, in this process: as its snapshots have it, or tables of a savepoint."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace

from onefold.core.errors import ConfigError
from onefold.engine.dataflow.chains import plan
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.queries.questions import Views, queryable
from onefold.engine.queries.undo import QueryableBackend, StateMoment
from onefold.engine.savepoints.importing import imported
from onefold.engine.savepoints.saved_tables import SavedTable
from onefold.engine.state import is_flight
from onefold.engine.state.memory import MemoryBackend
from onefold.engine.state.participant import StateCommitter
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.messages import RestoreFrom
from onefold.engine.workers.snapshots import restore, snapshots_by_uid
from onefold.flow.graph.nodes import Graph


def views_of_snapshots(storage: Storage, graph: Graph, uid: str) -> Views:
    """Of the last decided epoch. Raises ConfigError where there is none."""
    committer = StateCommitter(storage)
    row = committer.ledger()
    note = None if row is None or not row.epoch else committer.note(row.epoch)
    if note is None or not note.handles:
        raise ConfigError(
            "state-not-kept",
            f"flow {storage.pipeline!r} has no snapshot in {storage.path()}: it has not decided an epoch with state"
            " yet, or keeps its state elsewhere. Name the checkpoint that it has",
        )
    kind = read_footer(storage, next(handle for handle in note.handles if not is_flight(handle)))[0].backend
    at = RestoreFrom(storage.root, storage.pipeline, kind, note.generation, note.handles)
    return _views(graph, uid, at, StateMoment(note.epoch, note.timestamp_ms))


def views_of_tables(graph: Graph, uid: str, tables: Iterable[SavedTable], at: StateMoment) -> Views:
    """Of the tables that a savepoint would have of the operator, as it is now."""
    with tempfile.TemporaryDirectory(prefix="onefold-state-") as folder:
        into = RestoreFrom(folder, graph.flow, MemoryBackend.name, 1, ())
        handles = imported(into, 1, 1, graph.max_parallelism, {uid: tables})
        return _views(graph, uid, replace(into, handles=handles), at)


def _views(graph: Graph, uid: str, of: RestoreFrom, at: StateMoment) -> Views:
    cut, storage = plan(graph), Storage(of.root, of.flow)
    head = cut.by_uid[uid].head
    backend = QueryableBackend(made_backend(of.backend, storage, of.generation, graph.max_parallelism), at)
    handles = snapshots_by_uid(of, cut).get(uid, ())
    restore(backend, storage, graph, head, handles, range(graph.max_parallelism))
    return queryable(graph, head, make_logic(graph, head, {}, backend, 0, 1), backend)

"""The state of one operator as its snapshots have it, in this process."""

from __future__ import annotations

from onefold.core.errors import ConfigError
from onefold.engine.dataflow.chains import plan
from onefold.engine.logics.logic_factory import make_logic
from onefold.engine.queries.questions import Views, queryable
from onefold.engine.queries.undo import QueryableBackend, StateMoment
from onefold.engine.state.participant import StateCommitter
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.storage import Storage
from onefold.engine.workers.backends import made_backend
from onefold.engine.workers.messages import RestoreFrom
from onefold.engine.workers.snapshots import restore, snapshots_by_uid
from onefold.flow.graph import Graph

__all__ = ["views_of_snapshots"]


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
    kind = read_footer(storage, note.handles[0])[0].backend
    cut, at = plan(graph), RestoreFrom(storage.root, storage.pipeline, kind, note.generation, note.handles)
    chain = next(chain for chain in cut.chains if chain.uid == uid)
    made = made_backend(kind, storage, note.generation, graph.max_parallelism)
    backend = QueryableBackend(made, StateMoment(note.epoch, note.timestamp_ms))
    handles = snapshots_by_uid(at, cut).get(uid, ())
    restore(backend, storage, graph, chain.head, handles, range(graph.max_parallelism))
    return queryable(graph, chain.head, make_logic(graph, chain.head, {}, backend, 0, 1), backend)

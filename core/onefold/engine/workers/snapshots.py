"""Whose snapshots are whose: each is of one subtask of one operator, which a mark in it describes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onefold.core.checks import present
from onefold.core.errors import CheckpointMismatch
from onefold.core.values.remedies import RESET
from onefold.engine.dataflow.chains import Plan
from onefold.engine.state import is_flight
from onefold.engine.state.arrow_entries import from_ipc
from onefold.engine.state.codec import unreadable
from onefold.engine.state.schemas.description import OperatorDescription
from onefold.engine.state.schemas.planning import Unlike, migrations, times_changed
from onefold.engine.state.snapshot import read_footer, read_part
from onefold.engine.state.state_backend import NO_MIGRATIONS, Migrations, StateBackend, StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.describing import deleted, described
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.graph.nodes import Graph, Node

MARK = "$operator"  # a name that no user's state has


def restore(
    backend: StateBackend,
    storage: Storage,
    graph: Graph,
    node: Node,
    handles: Sequence[str],
    key_groups: Collection[int],
) -> None:
    """Restore a node's state from its snapshots, as it keeps it now; from here on the backend's describe that. Raises
    CheckpointMismatch where what is kept cannot become that."""
    changes = changes_of(graph, node, description_in(storage, handles[0])) if handles else NO_MIGRATIONS
    backend.restore(handles, key_groups, changes)
    now = described(graph, node)
    text = now.to_json()
    backend.operator(StateSpec(now.uid, MARK, StateKind.OPERATOR), lambda: [(text,)])


def changes_of(graph: Graph, node: Node, before: OperatorDescription) -> Migrations:
    """How what was kept becomes what the node keeps. Raises CheckpointMismatch where it cannot."""
    try:
        return migrations(before, described(graph, node), graph.evolution, deleted(node))
    except Unlike as unlike:
        told = f"In Flow(..., evolution=Evolution(...)) {unlike.remedy}" if unlike.remedy else "Change it back"
        raise CheckpointMismatch(
            "state-operator-changed",
            f"{unlike.what}. Nothing was written. {told}; or give the operator another uid, under which it begins"
            " without state",
        ) from None


def check_times(graph: Graph, node: Node, before: OperatorDescription) -> None:
    """Raises CheckpointMismatch where a state that was kept has a time to live now and had none, or the other way
    round: a running operator alone gives its entries their times, or takes them away."""
    if changed := times_changed(before, described(graph, node), graph.evolution):
        raise CheckpointMismatch(
            "state-ttl-changed",
            f"the operator {node.uid!r} has {', '.join(changed)} with a time to live and was kept without, or the other"
            " way round: a savepoint has entries as they were kept. Nothing was written. Change the time to live back;"
            " a start on the engine may change it",
        )


def description_in(storage: Storage, handle: str) -> OperatorDescription:
    """Of the operator that a snapshot is of. Raises DataLoss for a snapshot that is damaged."""
    footer, piece = read_footer(storage, handle)
    part = next((part for part in footer.parts if part.name == MARK), None)
    if part is None:
        raise unreadable()
    entries = from_ipc(read_part(storage, piece.name, part), None, footer.max_parallelism)
    return OperatorDescription.from_json(str(next(iter(present(entries.values[0], "an operator's list is there")))))


def snapshots_by_uid(restoring: RestoreFrom, plan: Plan) -> dict[str, list[str]]:
    """The snapshots of each operator, by the uid that it has now. Raises CheckpointMismatch where an operator with
    state is not there any more."""
    storage, evolution = Storage(restoring.root, restoring.flow), plan.graph.evolution
    uids = plan.by_uid.keys()
    found: dict[str, list[str]] = {}
    for handle in restoring.handles:
        if is_flight(handle):
            continue
        footer, _ = read_footer(storage, handle)
        uid = next(part.uid for part in footer.parts if part.name == MARK)
        found.setdefault(uid, []).append(handle)
    moved = evolution.moved(found)
    if unknown := {uid for uid, now in moved.items() if now not in uids and uid not in evolution.drops}:
        raise CheckpointMismatch(
            "state-operator-missing",
            f"flow {restoring.flow!r} has state of the operator {', '.join(sorted(unknown))}, which is not in its graph"
            " any more. Nothing was written. Give the operator its uid back; or in Flow(..., evolution=Evolution(...))"
            f" say uids={{'{min(unknown)}': ...}} if it has another now, or drops={{'{min(unknown)}'}} if it is to go;"
            f" or {RESET}",
        )
    return {now: found[uid] for uid, now in moved.items() if now in uids}

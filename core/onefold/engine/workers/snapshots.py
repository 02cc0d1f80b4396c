"""Whose snapshots are whose: each is of one subtask of one operator, and says so by a mark in it."""

from __future__ import annotations

from onefold.core.errors import CheckpointMismatch
from onefold.engine.dataflow.plan import Plan
from onefold.engine.state.backend import StateBackend, StateKind, StateSpec
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.storage import Storage
from onefold.engine.workers.messages import Restoring

__all__ = ["mark", "snapshots_by_uid"]

_MARK = "$operator"  # a name that no user's state has


def mark(backend: StateBackend, uid: str) -> None:
    """Once the backend is restored: its snapshots are of that operator, also where it has no entry."""
    backend.operator(StateSpec(uid, _MARK, StateKind.OPERATOR), lambda: [(uid,)])


def snapshots_by_uid(restoring: Restoring, plan: Plan) -> dict[str, list[str]]:
    """The snapshots of each operator. Raises CheckpointMismatch where an operator with state is not there any more."""
    storage = Storage(restoring.root, restoring.flow)
    found: dict[str, list[str]] = {}
    for handle in restoring.handles:
        footer, _ = read_footer(storage, handle)
        uid = next(part.uid for part in footer.parts if part.name == _MARK)
        found.setdefault(uid, []).append(handle)
    if unknown := found.keys() - {chain.uid for chain in plan.chains}:
        raise CheckpointMismatch(
            "state-operator-missing",
            f"flow {restoring.flow!r} has state of the operator {', '.join(sorted(unknown))}, which is not in its graph"
            " any more. Nothing was written. Give the operator its uid back; or start under another name, with empty"
            " tables",
        )
    return found

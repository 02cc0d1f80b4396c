"""Whose snapshots are whose: each is of one subtask of one operator, and says so by a mark in it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onefold.core.aggregates import Aggregate
from onefold.core.checks import present
from onefold.core.errors import CheckpointMismatch
from onefold.core.values.exact import Family, family
from onefold.core.values.ids import OrderedIds
from onefold.core.values.remedies import RESET
from onefold.core.values.tuples import form_name
from onefold.engine.dataflow.chains import Chain, Plan
from onefold.engine.state.common import mark_kept
from onefold.engine.state.snapshot import read_footer
from onefold.engine.state.state_backend import StateBackend, StateKind, StateSpec
from onefold.engine.state.storage import Storage
from onefold.engine.workers.describing import described
from onefold.engine.workers.messages import RestoreFrom
from onefold.flow.graph import Aggregating, Connecting, Deduplicating, Graph, Joining, Processing, Reducing, Windowing
from onefold.flow.time.joins import JoinSide
from onefold.flow.time.windows import Aligned

__all__ = ["kept_by", "mark", "snapshots_by_uid"]

_EXACT = (Family.INTEGER, Family.DECIMAL)
_MARK = "$operator"  # a name that no user's state has


def mark(backend: StateBackend, graph: Graph, chain: Chain) -> None:
    """Once the backend is restored: its snapshots are of that operator and describe it, also where it has no entry.
    Raises CheckpointMismatch where the operator that kept them had another key, or kept something else."""
    uid = present(chain.uid, "operators with state have a uid")
    description = described(graph, chain.head).to_json()
    mark_kept(backend, StateSpec(uid, _MARK, StateKind.OPERATOR), kept_by(chain), description)


def kept_by(chain: Chain) -> str:
    """What the chain's head keeps, in words that differ where its state cannot be taken for that of another."""
    node, given = chain.head, chain.inputs[0].schema
    match node.operator:
        case Aggregating(aggregates, key):
            what = _made(aggregates, given)
        case Windowing(windows, key=key, aggregates=aggregates) as of:
            early = f", {of.trigger}" if of.trigger else ""
            if isinstance(windows, Aligned):
                back = ", retracting" if of.results == "retracting" else ""
            else:  # one that has come out may go on, and come again
                back = ", more than once" if of.fires_again else ""
            what = f"{_made(aggregates, given)} in {windows} of {of.on}{early}{back}"
        case Joining(of, _, sides, key=key):
            rows = [_kept(side, exchange.schema) for side, exchange in zip(sides, chain.inputs, strict=True)]
            what = f"{' and '.join(rows)}, to join {of},"
        case Reducing(_, key):
            what = f"rows of {', '.join(present(node.schema, 'of rows').names)}"
        case Processing(_, key, _, timers) if timers == "event":
            what = "a processor's states, and timers of event time,"
        case Processing(_, key) | Connecting(_, key):
            what = "a processor's states"
        case Deduplicating(OrderedIds(), key):
            what = "the highest number of each source"
        case Deduplicating(_, key):
            what = "ids and when they came"
        case operator:
            raise AssertionError(operator)
    return f"{what} by {', '.join(f'{name} ({_form(given.field(name).type)})' for name in key) or 'no key'}"


def _made(aggregates: Sequence[tuple[str, Aggregate]], given: pa.Schema) -> str:
    return ", ".join(f"{each.keeps()} as {_kinds(each, given)}" for _, each in aggregates)


def _kept(side: JoinSide, given: pa.Schema) -> str:
    names = (*side.key, *(name for name, _ in side.taken))
    return f"rows of {', '.join(f'{name} ({given.field(name).type})' for name in names)} by {side.on}"


def _form(kind: pa.DataType) -> str:
    """Of a key's column, whose values keep their zone."""
    zone = getattr(kind, "tz", None)
    return form_name(kind) if zone is None else f"{form_name(kind)}, {zone}"


def _kinds(aggregate: Aggregate, given: pa.Schema) -> str:
    """Of its states: those of another would be read as values of this one. Only numbers that are exact have all values
    of a narrower type, and raise for those that they have not."""
    kinds = aggregate.kinds(aggregate.given(given)) or ()
    return " and ".join(form_name(kind) if family(kind) in _EXACT else str(kind) for kind in kinds)


def snapshots_by_uid(restoring: RestoreFrom, plan: Plan) -> dict[str, list[str]]:
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
            f" any more. Nothing was written. Give the operator its uid back; or {RESET}",
        )
    return found

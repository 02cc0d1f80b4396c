"""What of a flow Spark cannot run, as far as the flow and its state show it. Needs no Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from onefold.core import CheckpointMismatch, ConfigError
from onefold.core.source import Placed
from onefold.core.values.remedies import remedies
from onefold.core.values.tuples import form_of
from onefold.engine.dataflow.chains import Plan
from onefold.engine.workers.snapshots import kept_by
from onefold.flow.graph import Aggregating, Connecting, Graph, Node, Processing, Reducing
from onefold.flow.processing.declaring import DeclaredKind
from onefold.flow.time.ttl import Ttl
from onefold.spark.flows.packing import levels

__all__ = ["check_flow", "check_kept", "check_reached"]

_KEYED = (DeclaredKind.VALUE, DeclaredKind.LIST, DeclaredKind.MAP, DeclaredKind.BYTES)


def check_flow(graph: Graph) -> None:
    """Raises ConfigError, by the uid, for the first of its operators that Spark cannot run."""
    for node in graph.nodes:
        match node.operator:
            case Connecting():
                raise _refused(graph, node, "connects with a broadcast stream, and Spark has no broadcast state")
            case Processing(_, _, states):
                for state in states:
                    if state.kind is DeclaredKind.DELETED:
                        raise _refused(graph, node, f"deletes the state {state.name!r} of earlier code: leave it there")
                    if state.kind not in _KEYED:
                        raise _refused(graph, node, f"has {state.name!r}, a state of no key ({state.kind.value})")


def check_reached(graph: Graph, elsewhere: str | None) -> None:
    """Raises ConfigError for a source that is a folder of this machine, where tasks run `elsewhere`."""
    for node, reading in graph.readings():
        if elsewhere is not None and isinstance(reading.source, Placed) and reading.source.is_local:
            raise _refused(
                graph,
                node,
                f"reads a folder of this machine, and {elsewhere}: give it a place that all machines reach, such as"
                " s3://",
            )


def _refused(graph: Graph, node: Node, why: str) -> ConfigError:
    return ConfigError(
        "flow-not-on-spark", f"flow {graph.flow!r} cannot run on Spark: {node.name!r} {why}. Or use flow.run(...)"
    )


def check_kept(pin: Callable[[str, Callable[[], str]], str], flow: Plan) -> None:
    """Spark knows the operators with state by their order, and would begin anew with another's uid. To it their state
    is bytes: what these are of is kept beside it."""
    uids = [sorted(chain.uid for chain in level if chain.uid) for level in levels(flow)]
    now = json.dumps([of for of in uids if of])
    if (before := pin("operators with state", lambda: now)) != now:
        raise CheckpointMismatch(
            "state-operators-changed",
            f"flow {flow.graph.flow!r} began on Spark with the operators with state {before}, between exchanges in this"
            f" order, and has {now} now: Spark would lose their state. Nothing was written. Give the operators their"
            f" uids and places back; or {remedies().begin_anew(empties=True)}",
        )
    for uid, of, ttl in _states(flow):
        name = f"expires {_digest(uid, of)}"
        if ttl is not None:
            pin(name, lambda: "yes")
            continue
        with suppress(_NotPinned):
            pin(name, _not_pinned)
            raise CheckpointMismatch(
                "state-operators-changed",
                f"the state {of!r} of the operator {uid!r} of flow {flow.graph.flow!r} had a time to live, which Spark"
                " keeps with its entries, and has none now. Nothing was written. Give it one that is long, such as"
                f" Ttl('5000 weeks'); or {remedies().begin_anew(empties=True)}",
            )
    for uid, of, keeps in _kept(flow):
        name = f"kept {_digest(uid, of)}"
        if (kept := pin(name, partial(str, keeps))) != keeps:
            raise CheckpointMismatch(
                "state-operators-changed",
                f"the operator {uid!r} of flow {flow.graph.flow!r} keeps {keeps}, and its state is of {kept}. Nothing"
                " was written. Give its columns their earlier names and types before it, as by"
                f" select(earlier=pc.field('now').cast(...)); or {remedies().begin_anew(empties=True)}",
            )


class _NotPinned(Exception):
    pass


def _not_pinned() -> str:
    raise _NotPinned


def _digest(uid: str, of: str) -> str:
    """Names of pins have a limit."""
    return hashlib.sha256(json.dumps([uid, of]).encode()).hexdigest()[:32]


def _states(flow: Plan) -> Iterator[tuple[str, str, Ttl | None]]:
    """The states of operators that may expire: the uid, the state's name, and how long its entries live."""
    for chain in flow.chains:
        match chain.head.operator:
            case Processing(_, _, states):
                yield from ((str(chain.uid), state.name, state.ttl) for state in states)
            case Reducing(_, _, ttl):
                yield str(chain.uid), "reduced", ttl
            case Aggregating(_, _, ttl):
                yield str(chain.uid), "aggregates", ttl


def _kept(flow: Plan) -> Iterator[tuple[str, str, str]]:
    """What each operator with state keeps, and each of its maps: the uid, the map's name, and words for it."""
    for chain in flow.chains:
        if chain.uid is not None:
            yield chain.uid, "", kept_by(chain)
            operator = chain.head.operator
            for state in operator.states if isinstance(operator, Processing) else ():
                if state.key_schema is not None:
                    yield chain.uid, state.name, f"the map {state.name!r} by {form_of(state.key_schema)}"

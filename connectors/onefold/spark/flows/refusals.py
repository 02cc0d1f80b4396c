"""What of a flow Spark cannot run, as far as the flow and its state show it. Needs no Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress

from onefold.core import CheckpointMismatch, ConfigError
from onefold.core.source import Placed
from onefold.core.values.remedies import remedies
from onefold.engine.dataflow.chains import Plan, plan
from onefold.engine.state.schemas.description import OperatorDescription
from onefold.engine.state.schemas.planning import Unlike, migrations, said
from onefold.engine.workers.describing import described
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import Aggregating, Connecting, Processing, Reading, Reducing
from onefold.flow.processing.declaring import DeclaredKind
from onefold.flow.processing.evolution import NO_EVOLUTION
from onefold.flow.processing.processor import StatefulProcessor
from onefold.flow.time.ttl import Ttl
from onefold.spark.flows.packing import levels

KEY_GROUPS = "key groups of the flow"  # a pin of its first start

_KEYED = (DeclaredKind.VALUE, DeclaredKind.LIST, DeclaredKind.MAP, DeclaredKind.BYTES)


def check_flow(graph: Graph) -> None:
    """Raises ConfigError, by the uid, for the first of its operators that Spark cannot run."""
    if graph.alignments:
        first = next(node for node, _ in graph.readings() if node.uid in graph.alignments[0].uids)
        raise _refused(graph, first, "is aligned with other sources, which Spark reads as it likes: leave out align()")
    for node in graph.nodes:
        match node.operator:
            case Reading(_, watermarks) if watermarks is not None and watermarks.goes_on:
                raise _refused(graph, node, "has ingestion(), or when_silent='advance', whose time no record moves")
            case Connecting():
                raise _refused(graph, node, "connects with a broadcast stream, and Spark has no broadcast state")
            case Processing(processor, _, states):
                if type(processor).onSnapshot is not StatefulProcessor.onSnapshot:
                    raise _refused(graph, node, "has onSnapshot(), and Spark says nothing before it keeps state")
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
        name = f"expires {hashlib.sha256(json.dumps([uid, of]).encode()).hexdigest()[:32]}"
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
    for chain in flow.chains:
        if chain.uid is not None:
            _check_alike(pin, flow.graph.flow, described(flow.graph, chain.head))


class _NotPinned(Exception):
    pass


def _not_pinned() -> str:
    raise _NotPinned


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


def _check_alike(pin: Callable[[str, Callable[[], str]], str], flow: str, now: OperatorDescription) -> None:
    name = f"kept {hashlib.sha256(now.uid.encode()).hexdigest()[:32]}"  # names of pins have a limit
    before = OperatorDescription.from_json(pin(name, now.to_json))
    try:
        changes = migrations(before, now, NO_EVOLUTION)
        if not changes:
            return
        of = next(iter(changes)).name
        had, has = (next(said(each.value) for each in one.states if each.name == of) for one in (before, now))
        what = f"the operator {now.uid!r} keeps {of!r} as {has}, and its state is of {had}"
    except Unlike as unlike:
        what = unlike.what
    raise CheckpointMismatch(
        "state-operators-changed",
        f"In flow {flow!r} {what}. Nothing was written: on Spark state stays as it is. Give its columns their earlier"
        " names and types before it, as by select(earlier=pc.field('now').cast(...)); or"
        f" {remedies().begin_anew(empties=True)}",
    )


def pins_of(graph: Graph) -> dict[str, str]:
    """What a flow's first start on Spark finds for good: of one whose state comes with a savepoint."""
    found = {KEY_GROUPS: str(graph.max_parallelism)}

    def pin(name: str, find: Callable[[], str]) -> str:
        return found.setdefault(name, find())

    check_kept(pin, plan(graph, sinks_apart=True))
    return found

"""How rows get to a sink: which of them its writers need in one task, and what a sink of changing rows must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from onefold.core.contract import Merging, Sink, Upsert, Upserting
from onefold.core.errors import ConfigError
from onefold.core.writing.arrangement import EPOCH_COLUMN, needed_by
from onefold.core.writing.replacing import Origins, check_replaces
from onefold.flow.building import NodeOrigin, Nodes, check_key, origin_of
from onefold.flow.graph.nodes import Edge, Node, Shipping
from onefold.flow.graph.operators import (
    WINDOW_START,
    Aggregating,
    Filtering,
    FlatMapping,
    MappingBatches,
    Querying,
    Reducing,
    Selecting,
    Uniting,
    Windowing,
    Writing,
)
from onefold.flow.time.triggers import Every
from onefold.flow.windowing import EMISSION, RETRACTS

Groups = Mapping[str, "tuple[str, ...]"]

STATE = "state"  # the participant of an epoch that keeps the state of operators


def add_sink(nodes: Nodes, edge: Edge, sink: Sink, *, is_letters: bool = False) -> None:
    """Write the rows of an edge to a sink. Raises ConfigError where they do not go together."""
    if sink.name in (STATE, *nodes.sinks()):
        raise ConfigError(
            "sink-names",
            f'flow {nodes.flow!r} cannot have a second sink {sink.name!r}: give one name="...", another one'
            + (f", and not {STATE!r}, which is the state's" if sink.name == STATE else ""),
        )
    if is_letters:
        nodes.add(Writing(sink, is_letters=True), [edge], None)
        return
    schema, upsert = nodes.schema(edge), sink.upsert() if isinstance(sink, Upserting) else None
    is_numbered = upsert is not None and EPOCH_COLUMN in upsert.order and EPOCH_COLUMN not in schema.names
    origin = origin_of(nodes, edge)
    groups, operator = _groups(origin), origin.node.operator
    if groups is not None and not (isinstance(operator, Windowing) and not operator.fires_again):
        _check_rewritten(sink, upsert, groups, origin)
    elif groups is None and upsert is None and _gives_whole_again(origin):
        row = "what a function gives of all rows of a window"
        parts = "" if isinstance(operator, Windowing) and operator.takes_back else "'discarding' or "  # not of sessions
        instead = f"use results={parts}'retracting'"
        check_replaces(sink.name, None, partial(_origins, {}), row=row, instead=instead, newest=(EMISSION,))
    elif isinstance(operator, Querying) or upsert is None or not is_numbered or {*upsert.order} != {EPOCH_COLUMN}:
        pass  # Spark knows its groups, and looks at them when it starts
    elif groups is None or _origins(groups, upsert.key).left_out:  # else there is one row of each group at all
        raise _ties(sink.name)
    nodes.add(Writing(sink, is_numbered=is_numbered), [_arranged(nodes, edge, sink, origin)], None)


def _check_rewritten(to: Sink, upsert: Upsert | None, groups: Groups, origin: NodeOrigin) -> None:
    """Raise ConfigError where the sink is not one for rows of groups that come again."""
    sink = to.name
    row, instead = "an aggregate's or a reduce's row", "emit what is final from a process()"
    newest: tuple[str, ...] = (EPOCH_COLUMN,)
    if isinstance(operator := origin.node.operator, Windowing):
        emission = origin.names.get(EMISSION)
        if (need := needed_by(to)).order_by[-1:] == (emission,):  # a row whose number is not above the last is a repeat
            if left_out := _origins(groups, need.partition_by).left_out:
                raise _counted_together(sink, left_out)
            if operator.results == "retracting":
                raise _merged(sink)
        if operator.results == "discarding":
            if upsert is not None and emission not in upsert.key:
                raise _parts_replaced(sink)
            return
        if operator.results == "retracting":
            if upsert is not None:
                raise _kept_by_key(sink)
            if isinstance(to, Merging) and to.merges():
                raise _merged(sink)
            return
        if operator.takes_back and upsert is not None and upsert.delete_when_true != origin.names.get(RETRACTS, ""):
            raise _stale(sink)
        other = "retracting" if operator.takes_back else "discarding"
        row, instead = "the result of a window that comes again", f"use results={other!r}"
        newest_of_epoch = () if upsert is None else (*upsert.order, *upsert.within_epoch[:1])
        is_often = isinstance(operator.trigger, Every) or operator.elements is not None
        if is_often and upsert is not None and emission not in newest_of_epoch:
            raise _several(sink)
        newest = newest if emission is None else (emission, *newest)
    check_replaces(sink, upsert, partial(_origins, groups), row=row, instead=instead, newest=newest)


def _groups(origin: NodeOrigin) -> Groups | None:
    """Where the rows are those of groups, one of each at most in an epoch: what makes a group, and the columns that it
    is in now, each of which says it."""
    operator = origin.node.operator
    if not isinstance(operator, Aggregating | Reducing | Windowing) or origin.output is not None:
        return None
    places: dict[str, tuple[str, ...]] = {name: (name,) for name in operator.key}
    if isinstance(operator, Windowing):
        if operator.elements is not None and operator.elements.processor is not None:
            return None  # it may give several
        of = (WINDOW_START,) if operator.takes_back else operator.columns
        places |= dict.fromkeys(of[:1], of)
    return {name: tuple(origin.names[each] for each in of if each in origin.names) for name, of in places.items()}


def _gives_whole_again(origin: NodeOrigin) -> bool:
    """Whether the rows are what a function makes of all rows of a window each time when it fires."""
    of = origin.node.operator
    if not isinstance(of, Windowing) or origin.output is not None or of.elements is None:
        return False
    return of.fires_again and of.results == "accumulating" and of.elements.evictor is None


def with_query(flow: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of a flow. Where Spark makes rows, all of its sinks get the number of their epoch, or none. Raises
    ConfigError where something stands beside that which cannot."""
    found = [(node, node.operator) for node in nodes if isinstance(node.operator, Querying)]
    if not found:
        return tuple(nodes)
    (query, operator), *others = found
    if others:
        raise _misplaced(flow, others[0][0], f"is one more beside {query.name!r}: let one SELECT or function do both")
    fed: dict[int, Writing] = {}
    for node in nodes:
        match node.operator:
            case _ if node.keeps_state:
                told = f"{node.name!r}, which keeps state: let Spark do that, too, or make two flows of it"
                raise _misplaced(flow, query, f"cannot stand beside {told}")
            case Writing(is_letters=False) as writing if node.inputs[0].source == query.number:
                fed[node.number] = writing
            case Writing(sink, is_letters=False):
                told = f"the sink {sink.name!r}, which gets other rows: write these with a flow of their own"
                raise _misplaced(flow, query, f"cannot stand beside {told} (bad records with dead_letters=)")
    is_numbered = operator.output_mode == "update" and any(writing.is_numbered for writing in fed.values())
    numbered = {number: replace(writing, is_numbered=is_numbered) for number, writing in fed.items()}
    return tuple(replace(node, operator=numbered.get(node.number, node.operator)) for node in nodes)


def _is_rebalanced(nodes: Nodes, edge: Edge) -> bool:
    """Whether `rebalance` spread the rows over the tasks after they were read or last brought together by key."""
    node = nodes.made[edge.source]
    is_stateless = isinstance(node.operator, Filtering | Selecting | MappingBatches | FlatMapping | Uniting)
    before = is_stateless and any(_is_rebalanced(nodes, each) for each in node.inputs)
    return before or edge.shipping is Shipping.REBALANCE


def _arranged(nodes: Nodes, edge: Edge, sink: Sink, origin: NodeOrigin) -> Edge:
    """The edge to the sink, with an exchange where rows of one key must come to one writer."""
    need = needed_by(sink)
    is_rebalanced = _is_rebalanced(nodes, edge)
    if need.in_place and is_rebalanced:
        raise ConfigError(
            "sink-rebalanced",
            f"sink {sink.name!r} takes rows in the tasks and the order in which they come, and rebalance() spreads them"
            " over all tasks: leave out rebalance(), or let the sink have them by key",
        )
    if need.in_place or not need.partition_by:
        return edge
    operator = origin.node.operator
    if isinstance(operator, Aggregating | Windowing) and origin.output is None and not is_rebalanced:
        now = {origin.names.get(name) for name in operator.key}
        if now <= {*need.partition_by}:  # equal values of these are in one task already
            return edge
    check_key(need.partition_by, nodes.schema(edge), f"sink {sink.name!r}, which needs rows by {need.partition_by}")
    return replace(edge, shipping=Shipping.KEYED, key=need.partition_by)


def _ties(sink: str) -> ConfigError:
    return ConfigError(
        "epoch-order-ties",
        f"the flow may write several rows of a key in one epoch, and for sink {sink!r}, whose order= is"
        f" {EPOCH_COLUMN!r} alone, none of them is the newest. Let order= be {EPOCH_COLUMN!r} and a column that grows"
        " with each row of a key, such as a count or a time; or write the rows of an aggregate or a reduce, which have"
        " one of each key in an epoch, filtered and selected at most",
    )


def _parts_replaced(sink: str) -> ConfigError:
    return ConfigError(
        "window-parts-replaced",
        f"results='discarding' gives the result of a window in parts, and of these sink {sink!r} would keep the last"
        " one alone: leave out results=, and each one is of the whole window; or let the sink append or add, or have"
        f" {EMISSION!r} in its key",
    )


def _kept_by_key(sink: str) -> ConfigError:
    return ConfigError(
        "retractions-replaced",
        f"results='retracting' takes a row back by a further one, and sink {sink!r} keeps the last row of each key"
        " alone: leave out results=, and each result replaces the one before; or let the sink append",
    )


def _merged(sink: str) -> ConfigError:
    return ConfigError(
        "retractions-merged",
        f"results='retracting' takes a row back by a further one, and sink {sink!r} would count both, or drop one as a"
        " repeat: use results='discarding', whose parts it can add; or let the sink append",
    )


def _counted_together(sink: str, left_out: Sequence[str]) -> ConfigError:
    return ConfigError(
        "emission-of-several",
        f"sink {sink!r} tells by {EMISSION!r} which rows it has, and each window counts anew: those that differ in"
        f" {', '.join(left_out)} would be taken for repeats. Add it to the sink's key, or to the id's source; in HBase"
        " mode='rolling' needs no numbers",
    )


def _several(sink: str) -> ConfigError:
    return ConfigError(
        "early-results-order",
        f"the trigger may give several results of a key and window in one epoch, and sink {sink!r} does not say which"
        f" stays: let its order= have {EMISSION!r}, or use EachEpoch()",
    )


def _stale(sink: str) -> ConfigError:
    return ConfigError(
        "session-rows-stale",
        f"a session that takes in another one changes its start, and in sink {sink!r} the other's row would stay: let"
        f" it delete that row, by delete_when_true={RETRACTS!r}; or let sessions come once, without lateness= or an"
        " early trigger",
    )


def _origins(groups: Groups, names: Sequence[str]) -> Origins:
    """Of columns of rows of these groups."""
    left_out = tuple(name for name, now in groups.items() if not {*now} & {*names})
    of_groups = {each for now in groups.values() for each in now}
    return Origins(tuple(name for name in names if name not in of_groups), (), left_out)


def _misplaced(flow: str, node: Node, why: str) -> ConfigError:
    return ConfigError("spark-operator-place", f"flow {flow!r}: {node.name!r}, which only Spark runs, {why}")

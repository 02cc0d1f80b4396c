"""Dropping the rows of records that were seen before: where their ids are, and what must not have happened to them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import ConfigError
from onefold.core.source import RecordColumns, record_columns
from onefold.core.values.exact.late_numpy import np
from onefold.core.values.ids import HEADER, Deduplication, OrderedIds, called, check_deduplication
from onefold.core.values.names import check_columns
from onefold.flow.building import Nodes, check_state_key, origin_of
from onefold.flow.graph.nodes import Edge, Shipping
from onefold.flow.graph.operators import Deduplicating, Filtering, MappingBatches, Reading, Selecting

_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


def deduplicated(nodes: Nodes, edge: Edge, ids: Deduplication, uid: str) -> Edge:
    """The rows of an edge without those whose id was seen. Raises ConfigError where it cannot be told from them."""
    check_deduplication(ids)
    schema, columns = nodes.schema(edge), _record_columns(nodes, edge)
    if isinstance(ids, OrderedIds):
        if (way := _lost_by(nodes, edge)) is not None:
            raise ConfigError(
                "partition-order-lost",
                f"deduplicate({uid!r}): OrderedIds needs the rows of each partition in their order, which {way} may"
                " change. Call it on the source's stream, behind filter, select and with_columns at most, and what"
                " else is to be done after it; or take IdsWithin",
            )
        if not columns.place:
            raise ConfigError(
                "position-columns-missing",
                f"deduplicate({uid!r}): OrderedIds needs the columns that say where each record was, as they were read,"
                f" and the rows have {', '.join(schema.names)}. Of Kafka they are topic, partition and offset: give"
                " the source format='raw', or columns=('position', ...), and keep them until here",
            )
    given, id = _with_id(nodes, edge, ids, columns)
    key = columns.place[:-1] if isinstance(ids, OrderedIds) else id
    check_state_key(key, nodes.schema(given), f"deduplicate({uid!r})")
    keyed = replace(given, shipping=Shipping.KEYED, key=key)
    return Edge(nodes.add(Deduplicating(ids, key, id, columns.place), [keyed], schema, uid=uid).number)


def _record_columns(nodes: Nodes, edge: Edge) -> RecordColumns:
    """Those of the source whose rows these are, by their names now; none where more was done than to choose some."""
    origin = origin_of(nodes, edge)
    if not isinstance(origin.node.operator, Reading) or origin.output is not None:
        return RecordColumns()
    found, now = record_columns(origin.node.operator.source), origin.names
    place = tuple(now[name] for name in found.place if name in now)
    return RecordColumns(
        place if len(place) == len(found.place) else (), now.get(found.key or ""), now.get(found.headers or "")
    )


def _lost_by(nodes: Nodes, edge: Edge) -> str | None:
    """What may have changed the order of a partition's rows on their way from a source."""
    node = nodes.made[edge.source]
    if edge.shipping is Shipping.REBALANCE:
        return "rebalance()"
    match node.operator:
        case Filtering() | Selecting():
            return _lost_by(nodes, node.inputs[0])
        case Reading() if edge.output is None:
            return None
        case _:
            return node.name if edge.output is None else f"the side output {edge.output!r} of {node.name}"


def _with_id(nodes: Nodes, edge: Edge, ids: Deduplication, columns: RecordColumns) -> tuple[Edge, tuple[str, ...]]:
    """The edge of rows with the id, and its columns. That of a header becomes a column of its own."""
    schema, label, is_ordered = nodes.schema(edge), type(ids).__name__, isinstance(ids, OrderedIds)
    if isinstance(ids, OrderedIds) and ids.source is not None and ids.sequence is not None:
        check_columns((ids.source, ids.sequence), schema, label)
        kinds = schema.field(ids.source).type, schema.field(ids.sequence).type
        if not _is_text(kinds[0]) or not pa.types.is_integer(kinds[1]):
            raise ConfigError(
                "id-column-type",
                f"OrderedIds: the source is text or bytes, and the sequence an integer; there are {kinds[0]} and"
                f" {kinds[1]}",
            )
        return edge, (ids.source, ids.sequence)
    if ids.id is not None and ids.id.startswith(HEADER):
        headers = _present(columns.headers, label, "its headers", "headers")
        function = FromHeader(ids.id.removeprefix(HEADER), headers, _name_beside(schema))
        kind = schema.field(headers).type.value_type.field("value").type
        node = nodes.add(MappingBatches(function), [edge], schema.append(pa.field(function.column, kind)))
        return Edge(node.number), (function.column,)
    name = _present(columns.key, label, "its key", "key") if ids.id is None else ids.id
    check_columns((name,), schema, label)
    if is_ordered and not _is_text(kind := schema.field(name).type):
        raise ConfigError(
            "id-column-type",
            f"OrderedIds: {called(ids)} is {kind}, and ordered ids are texts SOURCE:NUMBER, or two columns",
        )
    return edge, (name,)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_of(kind) for is_of in _TEXTS)


def _present(column: str | None, label: str, what: str, choice: str) -> str:
    if column is None:
        raise ConfigError(
            "no-such-column",
            f"{label}: a record's id is to be in {what}, which the rows do not have as they were read. Give a Kafka"
            f" source format='raw', or columns=({choice!r}, ...), and keep that column until here; or name a column"
            " with id=",
        )
    return column


def _name_beside(schema: pa.Schema) -> str:
    name = "onefold_id"
    while name in schema.names:
        name += "_"
    return name


@dataclass(frozen=True)
class FromHeader:
    """Adds the value of the header `name` as a column; of several headers of a name that of the last, as Kafka does."""

    name: str
    headers: str
    column: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lists = batch.column(self.headers)
        entries, rows = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
        is_named = pc.fill_null(pc.equal(pc.struct_field(entries, "key"), self.name), False)
        at = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
        last = np.full(batch.num_rows, -1)
        np.maximum.at(last, rows[at], at)
        values = pc.struct_field(entries, "value").take(pa.array(last, mask=last < 0))
        return batch.append_column(self.column, values)

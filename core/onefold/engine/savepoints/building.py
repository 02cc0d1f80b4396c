"""State of a flow made of a table that somebody has, as the tables of a savepoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates.accumulation import Accumulation
from onefold.core.checks import present
from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.exact import Mismatch, canonical
from onefold.core.values.names import told_columns
from onefold.core.values.tuples import hashable, with_shortcut
from onefold.engine.dataflow.chains import Plan
from onefold.engine.savepoints.exporting import mark_of, names_of
from onefold.engine.savepoints.saved_tables import ROWS_MAX, SavedTable, one_batch, table_of_entries
from onefold.engine.state.arrow_entries import Entries
from onefold.engine.state.schemas.description import OperatorDescription, StateDescription
from onefold.engine.state.state_backend import TIMES, Key, StateKind, StateSpec
from onefold.engine.workers.describing import asked_for, described
from onefold.flow.graph.nodes import Graph, Node
from onefold.flow.graph.operators import Aggregating
from onefold.flow.processing.rows import values_of

_PROCESSORS = ("value", "list", "map", "bytes")
_BUILT = {"aggregate": ("rows",), "reduce": ("value",), "process": _PROCESSORS}  # of an operator's kind, its states'


@dataclass(frozen=True, slots=True)
class StateForm:
    """What a table of one state looks like: `key` are the columns of the operator's key, `sub` those that tell the
    entries of one key apart, `value` those of what is kept. `short` are other names that columns may have; `filled`
    have no nulls, nor have their lists. `accumulation` is that of an aggregate."""

    spec: StateSpec
    of: OperatorDescription
    schema: pa.Schema
    key: tuple[str, ...]
    sub: tuple[str, ...]
    value: tuple[str, ...]
    short: dict[str, str]
    filled: tuple[str, ...] = ()
    accumulation: Accumulation | None = None

    def saved(self, table: pa.Table) -> Iterator[SavedTable]:
        """Raises ConfigError for a table that is not of this form, before the first is made."""
        table = self._checked(table)
        return (self._saved(table.slice(at, ROWS_MAX)) for at in range(0, len(table), ROWS_MAX))

    def _saved(self, rows: pa.Table) -> SavedTable:
        if self.accumulation is not None:  # which has each element of a list once
            states = self.accumulation.merged([one_batch(rows)])
            return SavedTable(self.spec, pa.Table.from_batches([states]), len(self.key))
        try:
            keys = [*values_of(one_batch(rows.select(self.key)))]
            subs, values = (self._forms(rows, names) for names in (self.sub, self.value))
        except (Mismatch, BadRecord) as error:
            raise self._refused(f"has a value that is none of its type: {error}") from error
        entries = Entries(keys, [*map(hashable, subs)], values)
        return SavedTable(self.spec, table_of_entries(self.spec.kind, names_of(self.of, self.spec), entries))

    def _forms(self, rows: pa.Table, names: Sequence[str]) -> list[Key]:
        """The columns' rows, in the forms that a processor's states take and find them by."""
        if not names:
            return [()] * len(rows)
        of = canonical(pa.struct([self.schema.field(name) for name in names]))
        form = with_shortcut(self.schema.empty_table().select(names).schema, lambda row: tuple(of(row).values()))
        return [*map(form, values_of(one_batch(rows.select(names))))]

    def _checked(self, table: pa.Table) -> pa.Table:
        names = [self.short.get(name, name) for name in table.column_names]
        if len({*names}) < len(names):
            raise self._refused("names a column twice")
        table = table.rename_columns(names)
        if missing := [name for name in self.schema.names if name not in names]:
            raise self._refused(f"lacks {', '.join(missing)}")
        if extra := [name for name in names if name not in self.schema.names]:
            raise self._refused(f"has {', '.join(extra)} besides")
        table = table.select(self.schema.names)
        for field, given in zip(self.schema, table.schema, strict=True):
            if field.type != given.type:
                raise self._refused(f"has {given.type} in {field.name}")
        identity = [*self.key, *self.sub]
        empty = [name for name in identity if table.column(name).null_count]
        empty += [name for name in self.filled if _has_nulls(table.column(name))]
        if empty:
            raise self._refused(f"has nulls in {', '.join(empty)}")
        places = pa.table([*map(_flat, table.select(identity).columns)], identity)
        if len(places.group_by(identity).aggregate([])) < len(table):
            raise self._refused(f"has more than one row of the same {', '.join(identity)}")
        return pa.Table.from_arrays(table.columns, schema=self.schema)

    def _refused(self, because: str) -> ConfigError:
        return _refused(
            f"the table of {self.spec.uid}/{self.spec.name} {because}. Give it one row a"
            f" {'key' if not self.sub else 'key and place'}, with the columns {told_columns(self.schema)}"
        )


def form_of(plan: Plan, uid: str, name: str) -> StateForm:
    """Raises ConfigError for a state that the flow has not, or that is not made of a table."""
    graph, node = plan.graph, _head(plan, uid)
    now = described(graph, node)
    state = next((state for state in now.states if state.name == name and not name.startswith("$")), None)
    if state is None:
        known = ", ".join(f"{uid}/{state.name}" for state in now.states if not state.name.startswith("$"))
        raise _refused(f"operator {uid!r} has no state {name!r}. Give it one of {known or 'none'}")
    if state.kind not in _BUILT.get(now.kind, ()):
        raise _refused(
            f"{uid}/{name} is the {state.kind} state of a {now.kind}, which goes by the times and the order of the"
            f" records. Leave it out, and let the operator begin empty: restore with --allow-new {uid}"
        )
    form = _of_rows(graph, node, now, state) if state.kind == "rows" else _of_entries(node, now, state)
    if any(column.rpartition(".")[2] == TIMES for column in form.schema.names):
        raise _refused(
            f"{uid}/{name} has a time to live, and a table does not say until when. Leave it out; or restore with the"
            " flow without ttl, and give it one at the start after that"
        )
    return form


def mark(plan: Plan, uid: str) -> SavedTable:
    """What says what the operator keeps."""
    return mark_of(plan.graph, _head(plan, uid))


def _head(plan: Plan, uid: str) -> Node:
    chains = plan.by_uid
    if uid not in chains:
        raise _refused(f"the flow has no operator {uid!r} with state. It has {', '.join(sorted(chains)) or 'none'}")
    return chains[uid].head


def _of_rows(graph: Graph, node: Node, now: OperatorDescription, state: StateDescription) -> StateForm:
    spec, schema, keys = next(each for each in asked_for(graph, node) if each[0].name == state.name)
    parts = [(of.name, column) for of in now.aggregates for column in of.columns]
    short = {of.name: of.columns[0] for of in now.aggregates if len(of.columns) == 1}
    schema = schema.remove_metadata()
    lists = {field.name for field in schema if pa.types.is_large_list(field.type)}
    filled = tuple(column for name, column in parts if column == f"{name}.count" or column in lists)
    assert isinstance(node.operator, Aggregating)
    accumulation = Accumulation(graph.schema(node.inputs[0]), node.operator.key, node.operator.aggregates)
    key, value = (*schema.names[:keys],), (*schema.names[keys:],)
    return StateForm(spec, now, schema, key, (), value, short, filled, accumulation)


def _of_entries(node: Node, now: OperatorDescription, state: StateDescription) -> StateForm:
    spec = state.spec(now.uid)
    if now.kind == "reduce":  # whose rows have the key
        schema = (
            pa.schema(list(present(node.schema, "it gives rows"))) if TIMES not in state.value.names else state.value
        )
        return StateForm(spec, now, schema, (*now.key.names,), (), (*schema.names,), {})
    at = [pa.field("at", pa.int64())] if spec.kind is StateKind.LIST else []
    parts = _prefixed("key", now.key), [*at, *_prefixed("map", state.key)], _prefixed("value", state.value)
    key, sub, value = (tuple(field.name for field in part) for part in parts)
    return StateForm(spec, now, pa.schema([field for part in parts for field in part]), key, sub, value, {})


def _prefixed(prefix: str, fields: Sequence[pa.Field] | pa.Schema) -> list[pa.Field]:
    return [field.with_name(f"{prefix}.{field.name}") for field in fields]


def _has_nulls(column: pa.ChunkedArray) -> bool:
    is_list = pa.types.is_large_list(column.type)
    return bool(column.null_count or (is_list and pc.list_flatten(column).null_count))


def _flat(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column, or other values that are equal where its are, of a type that Arrow groups by."""
    return pa.array(map(repr, column.to_pylist()), pa.large_string()) if column.type.num_fields else column


def _refused(because: str) -> ConfigError:
    return ConfigError("savepoint-table", f"{because}. Nothing was written")

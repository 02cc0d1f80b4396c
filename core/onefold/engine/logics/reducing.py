"""Keeps one row a key: states of aggregates, which Arrow merges; or what a function of the user's makes of that row and
each further one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from onefold.core.aggregates import Aggregate
from onefold.core.aggregates.accumulation import Accumulation
from onefold.core.contract import TaskId
from onefold.core.errors import ConfigError
from onefold.core.values.exact import Mismatch, canonical
from onefold.core.values.tuples import copied, has_containers, with_shortcut
from onefold.engine.logics.logic import BaseLogic, Input, Output
from onefold.engine.state.expiring import Expiry
from onefold.engine.state.state_backend import Key, StateKind, StateSpec, Value
from onefold.flow.graph.nodes import Node
from onefold.flow.processing.groups import by_key
from onefold.flow.processing.rows import RowCollector, dict_maker, not_of_type, note
from onefold.flow.time.ttl import Ttl

PENDING_ROWS_MAX = 200_000
PENDING_BYTES_MAX = 32 << 20
Row = dict[str, Any]


class AggregatingLogic(BaseLogic):
    """Folds each epoch's states into those that are kept, once, and emits the results of the keys that changed."""

    def __init__(
        self,
        given: pa.Schema,
        aggregates: Sequence[tuple[str, Aggregate]],
        key: tuple[str, ...],
        expiry: Expiry,
        ttl: Ttl | None = None,
    ) -> None:
        self._accumulation = Accumulation(given, key, aggregates)
        self._kept = expiry.rows("aggregates", self._accumulation.state_schema, len(key), ttl)
        self._lifted = Lifted(self._accumulation.states, self._accumulation.merged)

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        self._lifted.add(batch)
        return ()

    def flush(self, task: TaskId) -> Iterator[Output]:
        del task
        if (states := self._lifted.take()) is not None:
            yield None, self._accumulation.results(self._kept.fold(states, self._accumulation))


class Lifted:
    """The states of an epoch's rows, merged when they are many."""

    def __init__(self, states: Callable[[pa.RecordBatch], pa.RecordBatch], merged: Callable[..., Any]) -> None:
        self._states_of, self._merged = states, merged
        self._begin()

    def _begin(self) -> None:
        self._states: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._bytes_merged = 0  # since states were merged, and of these

    def add(self, batch: pa.RecordBatch) -> None:
        self._states.append(self._states_of(batch))
        self._rows += self._states[-1].num_rows
        self._bytes += self._states[-1].nbytes
        is_much = self._rows > PENDING_ROWS_MAX or self._bytes > max(PENDING_BYTES_MAX, self._bytes_merged)
        if is_much and len(self._states) > 1:
            self._states = [self._merged(self._states)]
            self._rows = self._bytes = 0
            self._bytes_merged = self._states[0].nbytes

    def take(self) -> pa.RecordBatch | None:
        """One state of each key since the last call; None where there were no rows."""
        states = self.drain()
        return self._merged(states) if len(states) > 1 else next(iter(states), None)

    def drain(self) -> list[pa.RecordBatch]:
        """The states since the last call, as they are."""
        states = self._states
        self._begin()
        return states


class ReducingLogic(BaseLogic):
    """Emits the kept row of each key that changed, once an epoch."""

    def __init__(
        self,
        node: Node,
        function: Callable[[Row, Row], Row],
        key: tuple[str, ...],
        expiry: Expiry,
        ttl: Ttl | None = None,
    ) -> None:
        assert node.uid is not None and node.schema is not None
        self._name, self._key, self._function = node.name, key, function
        self._schema, self._names = node.schema, tuple(node.schema.names)
        self._places = [self._names.index(name) for name in key]
        self._values = itemgetter(*self._names)  # of a dict that has all of them
        self._as_kept = with_shortcut(node.schema, lambda _: ())  # an empty tuple where a value may need another form
        self._known = frozenset(self._names)
        self._forms = [canonical(field.type) for field in node.schema]
        self._copies = has_containers(node.schema)  # for the function, which may change what it is given
        self._rows = RowCollector(node.name, {None: node.schema})
        self._table = expiry.table(StateSpec(node.uid, "reduced", StateKind.VALUE), ttl)
        self._changed: dict[Key, Value] = {}  # since the last barrier

    def take(self, batch: Input, port: int) -> Iterable[Output]:
        del port
        assert isinstance(batch, pa.RecordBatch)
        found, of_each = by_key(batch, self._key)
        keys, reduced = [*found], []
        for key, kept, rows in zip(keys, self._table.get_many(keys), of_each, strict=True):
            if kept is not None:
                rows.insert(0, copied(kept) if self._copies else kept)
            reduced.append(self._reduced(key, rows) if len(rows) > 1 else rows[0])
        self._table.put_many(keys, reduced)
        self._changed.update(zip(keys, reduced, strict=True))
        return ()

    def _reduced(self, key: Key, rows: list[Value]) -> Value:
        """The one row that is left of several of a key."""
        made, function, values = dict_maker(self._names), self._function, rows[0]
        try:
            for further in rows[1:]:
                values = self._checked(key, function(made(values), made(further)))
        except Exception as error:
            note(error, "key", key)
            raise
        return values

    def _checked(self, key: Key, row: Any) -> Value:
        """The row in the forms of its columns' types, so that the next call gets the same one after a restart. Raises
        ConfigError for a row of another key, which would replace that one's in a sink, and for another column,
        BadRecord for a value that is not of its column's type."""
        if type(row) is dict and len(row) == len(self._names) > 1:
            try:
                values = self._as_kept(self._values(row))
            except KeyError:
                values = ()
            if values and tuple([values[at] for at in self._places]) == key:
                return values
        if not isinstance(row, dict) or tuple(map(row.get, self._key)) != key or not row.keys() <= self._known:
            raise ConfigError(
                "function-row",
                f"{self._name}: of two rows of the key {key!r} the function gives {row!r:.200}. Let it give a dict of"
                f" the columns {', '.join(self._names)} that has these values in {', '.join(self._key)}",
            )
        found = []
        for name, form in zip(self._names, self._forms, strict=True):
            try:
                found.append(form(row.get(name)))
            except Mismatch as error:
                raise not_of_type(
                    f"{self._name}: of two rows of the key {key!r} the function gives",
                    error,
                    self._schema.field(name),
                    row,
                ) from None
        return tuple(found)

    def flush(self, task: TaskId) -> Iterator[Output]:
        del task
        changed, self._changed = self._changed, {}
        rows = iter(changed.values())
        while self._rows.fill(rows):
            yield from self._rows.take()
        yield from self._rows.take()

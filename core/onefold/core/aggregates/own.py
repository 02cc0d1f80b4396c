"""Aggregates of a user's own, on plain values: they loop over rows in Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from onefold.core.aggregates.functions import Aggregate, Gather, Merge, Numbers, Parts
from onefold.core.errors import BadRecord, ConfigError
from onefold.core.values.ddl import schema_of
from onefold.core.values.exact import Mismatch, exact_array
from onefold.core.values.names import check_columns


class Aggregator(ABC):
    """An aggregate of your own, for `aggregate(odds=Product().of("odds"))`:

        class Product(Aggregator):
            state_type, result_type = "double", "double"

            def create(self):
                return 1.0

            def add(self, state, odds):
                return state if odds is None else state * odds

            def merge(self, state, other):
                return state * other

            def result(self, state):
                return state

    States and results are plain values of these types, as a schema names them; a struct is a dict. Rows are added in
    the order in which they come, and of two states that merge, `state` is of the earlier rows. Which rows are added,
    and which states merged, is chance: any way must come to the same, which `check_aggregator` tries. The object itself
    keeps nothing. What a method is given it may change and return.
    """

    state_type: ClassVar[str]
    result_type: ClassVar[str]

    @abstractmethod
    def create(self) -> Any:
        """The state of no rows, a new one each time."""

    @abstractmethod
    def add(self, state: Any, *values: Any) -> Any:
        """The state with one more row, of which these are the columns' values; null is None."""

    @abstractmethod
    def merge(self, state: Any, other: Any) -> Any:
        """The state of the rows of both."""

    @abstractmethod
    def result(self, state: Any) -> Any: ...

    def of(self, *columns: str) -> Aggregate:
        """The aggregate of these columns. Raises ConfigError where the class lacks a type."""
        kinds = []
        for name in ("state_type", "result_type"):
            if not isinstance(text := getattr(self, name, None), str):
                raise ConfigError(
                    "option-missing", f"{type(self).__name__} has no {name}: say it in the class, {name} = 'long'"
                )
            kinds.append(schema_of(f"value {text}").field(0).type)
        return _Own(None, columns, self, *kinds)


@dataclass(frozen=True)
class _Own(Aggregate):
    columns: tuple[str, ...]
    aggregator: Aggregator
    state_kind: pa.DataType
    kind: pa.DataType

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        return (("state", self._merged),)

    def lifts(self) -> Sequence[Merge | Gather]:
        return (self._added,)

    def depends_on_order(self, given: pa.DataType) -> bool:  # noqa: ARG002 - nobody knows
        return True

    def __str__(self) -> str:
        return f"{type(self.aggregator).__name__}({', '.join(self.columns)})"

    def given(self, schema: pa.Schema) -> pa.DataType:
        check_columns(self.columns, schema, str(self))
        return pa.struct([schema.field(name) for name in self.columns])

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch.column(name) for name in self.columns], [*self.columns])

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:  # noqa: ARG002 - of any columns
        return (self.state_kind,)

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:  # noqa: ARG002
        return (values,)

    def result_kind(self, given: pa.DataType) -> pa.DataType:  # noqa: ARG002 - of any columns
        return self.kind

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        return self._array([*map(self.aggregator.result, self._plain(state[0]))], kind, "result")

    def _added(self, values: pa.StructArray, groups: Numbers, count: int) -> pa.Array:
        states = [self.aggregator.create() for _ in range(count)]
        rows = zip(*map(self._plain, values.flatten()), strict=True)
        for group, row in zip(groups.tolist(), rows, strict=True):
            states[group] = self.aggregator.add(states[group], *row)
        return self._array(states, self.state_kind, "state")

    def _merged(self, values: pa.Array, groups: Numbers, count: int) -> pa.Array:
        states: dict[int, Any] = {}
        for group, other in zip(groups.tolist(), self._plain(values), strict=True):
            states[group] = self.aggregator.merge(states[group], other) if group in states else other
        return self._array([states[group] for group in range(count)], self.state_kind, "state")

    def _plain(self, values: pa.Array) -> list[Any]:
        try:
            found: list[Any] = values.to_pylist()
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise BadRecord(
                "function-value", f"{self} is given a value of {values.type} that Python has none for: {error}. Cast it"
            ) from error
        return found

    def _array(self, values: list[Any], kind: pa.DataType, what: str) -> pa.Array:
        try:
            return exact_array(values, kind)
        except Mismatch as error:
            raise BadRecord(
                "function-value", f"{self} gives a {what} that is none of {kind}: {error}. Convert it there"
            ) from error

"""The first or last rows of a key by a column's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates.functions import Aggregate, First, Last, Numbers, Parts
from onefold.core.aggregates.sub_keys import elements_of, in_order, lists_of, order_kind, singles
from onefold.core.errors import ConfigError
from onefold.core.values.exact.late_numpy import np
from onefold.core.values.names import check_columns


@dataclass(frozen=True)
class _Ranks:
    """A Gather of lists of structs: of each group the first `rows` by the first field. Equal ones go by the other
    fields, ascending, so that they are the same for any order of rows."""

    rows: int
    is_descending: bool

    def __call__(self, lists: pa.LargeListArray, groups: Numbers, count: int) -> pa.LargeListArray:
        elements, groups = elements_of(lists, groups)
        columns = [pa.array(groups), *map(in_order, elements.flatten())]
        names = [str(at) for at in range(len(columns))]
        ways = ["descending" if at == 1 and self.is_descending else "ascending" for at in range(len(columns))]
        table = pa.Table.from_arrays(columns, names)
        order = pc.sort_indices(table, sort_keys=[*zip(names, ways, strict=True)]).to_numpy()
        groups = groups[order]
        sizes = np.bincount(groups, minlength=count)
        is_kept = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes) < self.rows
        return lists_of(elements.take(pa.array(order[is_kept])), groups[is_kept], count)


@dataclass(frozen=True)
class _Ranked(Aggregate):
    """By the column. Rows whose value there is null are left out."""

    columns: tuple[str, ...]
    ranks: _Ranks
    name: str

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        return (("rows", self.ranks),)

    def __str__(self) -> str:
        rows = f"{self.ranks.rows}, " if self.name == "top" else ""
        return f"{self.name}({rows}{', '.join(self.columns)}, by={self.column})"

    def given(self, schema: pa.Schema) -> pa.DataType:
        names = [str(self.column), *self.columns]
        check_columns(names, schema, str(self))
        for name in names:
            if order_kind(kind := schema.field(name).type) is None:
                raise ConfigError(
                    "aggregate-type",
                    f"{self} cannot be computed: {name!r} is {kind}, which has no order. Cast the column first",
                )
        return pa.struct([pa.field(str(at), schema.field(name).type) for at, name in enumerate(names)])

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        columns = [batch.column(name) for name in (str(self.column), *self.columns)]
        return pa.StructArray.from_arrays(columns, [str(at) for at in range(len(columns))])

    def kinds(self, given: pa.DataType) -> tuple[pa.DataType, ...] | None:
        return (pa.large_list(given),)

    def lift(self, values: pa.Array, kinds: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:  # noqa: ARG002
        return (singles(values, values.field(0).is_valid()),)

    def result_kind(self, given: pa.DataType) -> pa.DataType:
        if self.name != "top":
            return given[1].type
        kinds = [given[at].type for at in range(1, given.num_fields)]
        return pa.list_(pa.struct([*map(pa.field, self.columns, kinds)]))

    def result(self, state: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        _, *columns = state[0].flatten().flatten()
        sizes = pc.list_value_length(state[0]).to_numpy()
        ends = np.cumsum(sizes)
        if self.name != "top":
            return columns[0].take(pa.array(ends - 1, mask=sizes == 0))
        rows = pa.StructArray.from_arrays(columns, fields=[*kind.value_type])
        return pa.ListArray.from_arrays(pa.array(np.append(0, ends).astype(np.int32)), rows)


def top(rows: int, *, by: str, columns: str | Sequence[str]) -> Aggregate:
    """The rows with the largest values of the column `by`, so many at most, the largest first: a list of structs of
    `columns`.

    Rows of equal values go by `columns`, ascending, so the result is the same for any order of the rows; those whose
    value is null are left out. NaN is above all other numbers. A key's state is these rows.
    """
    named = (columns,) if isinstance(columns, str) else tuple(columns)
    if type(rows) is not int or rows < 1 or not named or len({*named}) < len(named):
        raise ConfigError(
            "option-value",
            f"top({rows!r:.20}, columns={columns!r:.100}): give a number from 1 on, and each column once",
        )
    return _Ranked(by, named, _Ranks(rows, is_descending=True), "top")


def first(column: str, *, by: str | None = None) -> Aggregate:
    """The column of the key's first row, null too. With `by` that is the row with the smallest value there which is not
    null, and of equal ones that with the smallest in the column.

    Without `by` it goes by arrival: rows of a source's partition come in its order; between partitions the order is
    chance.
    """
    return First(column) if by is None else _Ranked(by, (column,), _Ranks(1, is_descending=False), "first")


def last(column: str, *, by: str | None = None) -> Aggregate:
    """The column of the key's last row, null too; in the order that `first` has. With `by` that is the row with the
    largest value there, and of equal ones that with the smallest in the column."""
    return Last(column) if by is None else _Ranked(by, (column,), _Ranks(1, is_descending=True), "last")

"""Merges the rows of one key: by the merges that a user declares, or by the user's own function.

    rows  --lift-->  partial results  --fold-->  one for each key  --finish, with what the table has-->  states

Declared merges but "last" and "union" are the aggregates of core. Folding in any split gives the same result, and a sum
that its column cannot hold is an error, never another number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.aggregates import Aggregate as OfColumn
from onefold.core.aggregates import count, max_, merged, min_, sum_
from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.core.values.names import told_columns
from onefold.sinks.hbase.group_kernels import latest, sets, unions

MERGES = ("sum", "count", "min", "max", "last", "union")
Function = Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch]
_OF_COLUMNS: Mapping[str, Callable[[str], OfColumn]] = {"sum": sum_, "count": count, "min": min_, "max": max_}
_MEMBERS = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_decimal128,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_timestamp,
)  # those that come back from JSON as they were


@dataclass(frozen=True, slots=True)
class Base:
    """What the table has for some keys, row by row. `states` may have anything where `is_there` is false."""

    states: pa.RecordBatch
    is_there: pa.BooleanArray


class RowMerge(Protocol):
    """How rows of one key become one. Pickles. `keys` has a key for each row of the batch beside it, never null."""

    def states(self, rows: pa.Schema) -> pa.Schema:
        """What the table keeps of rows of this schema. Raises SchemaMismatch for rows that cannot be folded so."""
        ...

    def lift(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turns rows into partial results. Raises BadRecord for a row that cannot be ordered among the others."""
        ...

    def fold(self, keys: pa.BinaryArray, partials: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.RecordBatch]:
        """Merges partial results: each key once, in the order in which the keys first come."""
        ...

    def finish(self, keys: pa.BinaryArray, partials: pa.RecordBatch, base: Base | None) -> pa.RecordBatch:
        """Merges folded rows into what the table has. Raises BadRecord where a column cannot hold a result."""
        ...


@dataclass(frozen=True, slots=True)
class Declared:
    """`merges` names each column that the table keeps, and how its values become one; `order` the columns by which a
    key's last row is the last. If these are not kept, a row is always later than what the table has."""

    merges: tuple[tuple[str, str], ...]
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, merges: Mapping[str, str], order: Sequence[str] = ()) -> Declared:
        """Raises ConfigError for merges that make no sense with any rows."""
        if not merges:
            raise ConfigError("option-value", "merge={} names no column: merge={'amount': 'sum'}")
        for name, merge in merges.items():
            if merge not in MERGES:
                raise ConfigError(
                    "option-value", f"merge={{{name!r}: {merge!r}}}: a merge is one of {', '.join(MERGES)}"
                )
        if "last" in merges.values() and not order:
            raise ConfigError(
                "option-missing", "the merge 'last' needs order=, the column by which a key's last row is the last"
            )
        if order and "last" not in merges.values():
            raise ConfigError(
                "options-conflict", f"order={tuple(order)!r} belongs to the merge 'last', which no column has"
            )
        for name in order:
            if merges.get(name, "last") != "last":
                raise ConfigError(
                    "options-conflict",
                    f"order= names {name!r}, of which the table then keeps the last: merge it with 'last'",
                )
        return cls(tuple(merges.items()), tuple(order))

    def states(self, rows: pa.Schema) -> pa.Schema:
        for name in (*dict(self.merges), *self.order):
            if name not in rows.names:
                raise SchemaMismatch(
                    "column-missing", f"merge= and order= name {name!r}, and the rows have {', '.join(rows.names)}"
                )
        for name in self.order:
            _kept(name, "last", rows.field(name).type)
        return pa.schema([pa.field(name, _kept(name, merge, rows.field(name).type)) for name, merge in self.merges])

    def lift(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for name in self.order:
            if nulls := rows.column(name).null_count:
                raise BadRecord(
                    "order-null",
                    f"{nulls} rows have no {name!r}, by which a key's last row is told: filter them before the sink,"
                    " or mend them",
                )
        return pa.record_batch({name: _lifted(name, merge, rows.column(name)) for name, merge in self._partials})

    def fold(self, keys: pa.BinaryArray, partials: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.RecordBatch]:
        if not len(keys):
            return keys, partials
        named = keys.dictionary_encode()
        codes, merges = named.indices, self._partials
        of_columns = [(name, _OF_COLUMNS[merge](name)) for name, merge in merges if merge in _OF_COLUMNS]
        names = [name for name, _ in of_columns]
        states = pa.RecordBatch.from_arrays([named, *partials.select(names).columns], ["row key", *names])
        states = merged(states, [merge for _, each in of_columns for _, merge in each.parts])
        states = states.take(pc.sort_indices(states.column(0).indices))
        folded: dict[str, pa.Array] = dict(zip(names, states.columns[1:], strict=True))
        folded |= {name: unions(codes, partials.column(name)) for name, merge in merges if merge == "union"}
        lasts = [name for name, merge in merges if merge == "last"]
        if lasts:
            places = latest(codes, [partials.column(n) for n in self.order], [partials.column(n) for n in lasts])
            folded |= {name: partials.column(name).take(places) for name in lasts}
        return named.dictionary, pa.record_batch({name: folded[name] for name, _ in merges})

    def finish(self, keys: pa.BinaryArray, partials: pa.RecordBatch, base: Base | None) -> pa.RecordBatch:
        if base is not None:
            there = base.states.filter(base.is_there)
            lacking = pa.nulls(len(there), pa.null())
            columns = {n: there.column(n) if n in there.schema.names else lacking for n in partials.schema.names}
            restored = {name: column.cast(partials.column(name).type) for name, column in columns.items()}
            all_keys = pa.concat_arrays([keys, keys.filter(base.is_there)])
            _, partials = self.fold(all_keys, pa.concat_batches([partials, pa.record_batch(restored)]))
        return partials.select([name for name, _ in self.merges])

    @property
    def _partials(self) -> tuple[tuple[str, str], ...]:
        kept = dict(self.merges)
        return (*self.merges, *((name, "last") for name in self.order if name not in kept))


@dataclass(frozen=True, slots=True)
class Own:
    """`function(base, new)` is given rows of the same schema, those at the same place of the same key, and returns what
    each two come to. It must be a plain function of its arguments, associative and commutative: which rows it is given
    together, and in which order, is nobody's promise. `columns` are those that it is given, which the table keeps."""

    function: Function
    columns: tuple[str, ...]

    def states(self, rows: pa.Schema) -> pa.Schema:
        missing = [name for name in self.columns if name not in rows.names]
        if missing:
            raise SchemaMismatch(
                "column-missing", f"the table keeps {missing[0]!r}, and the rows have {', '.join(rows.names)}"
            )
        return pa.schema([pa.field(name, rows.field(name).type) for name in self.columns])

    def lift(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({name: rows.column(name) for name in self.columns})

    def fold(self, keys: pa.BinaryArray, partials: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.RecordBatch]:
        """Merges rows pair by pair: a key of n rows takes as many calls as n has binary digits."""
        named = keys.dictionary_encode()
        codes = named.indices.to_numpy()
        in_order = np.argsort(codes, kind="stable")
        codes, partials = codes[in_order], partials.take(pa.array(in_order))
        while len(codes) > len(named.dictionary):
            starts = np.flatnonzero(np.diff(codes, prepend=-1))
            sizes = np.diff(starts, append=len(codes))
            rank = np.arange(len(codes)) - np.repeat(starts, sizes)  # of a row among those of its key
            is_even, has_next = rank % 2 == 0, rank + 1 < np.repeat(sizes, sizes)
            pairs, single = np.flatnonzero(is_even & has_next), np.flatnonzero(is_even & ~has_next)
            called = self._called(partials.take(pa.array(pairs)), partials.take(pa.array(pairs + 1)))
            codes = np.concatenate([codes[pairs], codes[single]])
            in_order = np.argsort(codes, kind="stable")
            partials = pa.concat_batches([called, partials.take(pa.array(single))]).take(pa.array(in_order))
            codes = codes[in_order]
        return named.dictionary, partials

    def finish(self, keys: pa.BinaryArray, partials: pa.RecordBatch, base: Base | None) -> pa.RecordBatch:  # noqa: ARG002
        places = np.flatnonzero(base.is_there.to_numpy(zero_copy_only=False)) if base is not None else ()
        if base is None or not len(places):
            return partials
        there = base.states.take(pa.array(places)).cast(partials.schema)
        called = self._called(there, partials.take(pa.array(places)))
        chosen = np.arange(len(partials)) + len(places)
        chosen[places] = np.arange(len(places))
        return pa.concat_batches([called, partials]).take(pa.array(chosen))

    def _called(self, base: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        merged = self.function(base, new)
        name = getattr(self.function, "__name__", repr(self.function))
        if not isinstance(merged, pa.RecordBatch):
            raise ConfigError(
                "merge-function-result",
                f"the merge function {name} must return a RecordBatch, not {type(merged).__name__}",
            )
        if merged.schema != new.schema or len(merged) != len(new):
            raise ConfigError(
                "merge-function-result",
                f"the merge function {name} was given {len(new)} rows of ({told_columns(new.schema)}) twice, and"
                f" returned {len(merged)} of ({told_columns(merged.schema)}): it must return one row for each two, of"
                " the same columns",
            )
        return merged


def _kept(name: str, merge: str, kind: pa.DataType) -> pa.DataType:
    """What the table keeps of a column of this type. Raises SchemaMismatch for one that cannot be merged so."""
    if merge == "union":
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        member = kind.value_type if is_list else kind
        kinds = (pa.list_(member),) if any(holds(member) for holds in _MEMBERS) else None
    else:
        kinds = _OF_COLUMNS.get(merge, max_)(name).kinds(kind)  # of equal rows the greatest value is the last
    if kinds is None:
        raise SchemaMismatch(
            "column-type", f"{merge!r} cannot merge the column {name!r}, which is {kind}: cast it to a text or a number"
        )
    return kinds[0]


def _lifted(name: str, merge: str, values: pa.Array) -> pa.Array:
    if merge == "union":
        return sets(values)
    if merge not in _OF_COLUMNS:
        return values
    return _OF_COLUMNS[merge](name).lift(values, (_kept(name, merge, values.type),))[0]


BYTES_MAX = 64 << 20


class Accumulator:
    """Folds the rows of one task as they come, so that memory grows with their keys and not with their number: whenever
    the rows that wait exceed `bytes_max` and the size of what is folded already."""

    def __init__(self, aggregate: RowMerge, bytes_max: int = BYTES_MAX) -> None:
        self._aggregate, self._bytes_max = aggregate, bytes_max
        self._keys: list[pa.BinaryArray] = []
        self._partials: list[pa.RecordBatch] = []
        self._waiting = self._folded = 0  # bytes

    @property
    def bytes(self) -> int:
        return self._waiting + self._folded

    def add(self, keys: pa.BinaryArray, rows: pa.RecordBatch) -> None:
        """Adds rows. Raises BadRecord for a row that cannot be ordered among the others."""
        partials = self._aggregate.lift(rows)
        self._keys.append(keys)
        self._partials.append(partials)
        self._waiting += keys.nbytes + partials.nbytes
        if self._waiting > max(self._bytes_max, self._folded):  # so a row is folded again a few times at most
            self.folded()

    def folded(self) -> tuple[pa.BinaryArray, pa.RecordBatch]:
        """Folds, and returns each key once. Call it after at least one `add`; more may follow."""
        if self._waiting:
            keys, partials = self._aggregate.fold(pa.concat_arrays(self._keys), pa.concat_batches(self._partials))
            self._keys, self._partials = [keys], [partials]
            self._waiting, self._folded = 0, keys.nbytes + partials.nbytes
        return self._keys[0], self._partials[0]

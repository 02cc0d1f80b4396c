"""The keys of a destination that are wrong, and the rows that they are to have, as far as a plan takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from onefold.spark.runtime.dataframe_columns import columns
from onefold.spark.verify.comparing.reconcile import KINDS, deletion_of, joined
from onefold.spark.verify.comparing.samples import newest_among
from onefold.spark.verify.comparing.sides import Places, Sides

KEYS_MAX = 10_000
_ROWS_MAX = 10 * KEYS_MAX
_BYTES_MAX = 100 << 20
_COUNTS = ("__expected", "__actual")


@dataclass
class WrongRows:
    """Of one sink. `keys` has the key's columns, `rows` all that the destination has; both have the key's counts of
    rows on both sides. `more` is how many keys are left out, and `because` why no row of them is here. `beside` names
    who else writes there: rows that are too many may be theirs."""

    key: tuple[str, ...] = ()
    keys: pa.Table | None = None
    rows: pa.Table | None = None
    places: Mapping[str, Places] = field(default_factory=dict)
    more: int = 0
    because: str = ""
    beside: Sequence[str] = ()

    def take(self, judged: DataFrame, sides: Sides) -> None:
        """Of a comparison, before what is wrong in it is forgotten."""
        key, sources = sides.key, sides.sources
        self.key, self.because, self.rows = tuple(key), "", None
        is_wrong: Column = reduce(Column.__or__, (F.col(f"__{kind}") > 0 for kind in KINDS))
        wrong = judged.where(is_wrong)
        for keys_max in (KEYS_MAX, max(KEYS_MAX // 100, 1), 1):  # fewer, where their rows are too many or too large
            some = wrong.select(*columns(key), *_COUNTS).limit(keys_max).persist()  # a limit may take others each time
            rows = newest_among(sides, some).where(~deletion_of(sides.changes)).select(columns(sides.actual.columns))
            due = joined(rows, F.broadcast(some), key, _COUNTS).limit(_ROWS_MAX + 1).persist()
            try:
                self.keys = keys = _arrow(some)
                self.places = sources(some.select(columns(key))) if sources is not None and keys.num_rows else {}
                if _is_small(due):
                    self.rows = _arrow(due)
                    break
            finally:
                some.unpersist()
                due.unpersist()
        self.more = wrong.count() - keys.num_rows
        if self.rows is None:
            self.because = f"one of these keys has more than {_ROWS_MAX:,} rows, or {_BYTES_MAX >> 20:,} MB of them"

    def refuse(self, because: str) -> None:
        """No statements: they would delete rows of records that are gone, which may be right."""
        if self.keys is not None:
            self.because = self.because or because

    def parts(self) -> dict[str, pa.Table]:
        """What to delete, by key; to insert; and to update, where a key has one row, which has other values."""
        assert self.keys is not None and self.rows is not None
        rows, keys = self.rows, self.keys
        if self.beside:
            rows, keys = (of.filter(pc.invert(_has_more(of))) for of in (rows, keys))
        is_one, other = _is_one(rows), pc.and_(pc.invert(_is_one(keys)), pc.greater(keys["__actual"], 0))
        deleted = keys.filter(other).select([*self.key])
        return {
            "DELETE": pa.concat_tables(
                [rows.select(rows.column_names[:-2]).slice(0, 0), deleted], promote_options="default"
            ),
            "INSERT": rows.filter(pc.invert(is_one)).drop_columns([*_COUNTS]),
            "UPDATE": rows.filter(is_one).drop_columns([*_COUNTS]),
        }

    def spared(self) -> pa.Table:
        """The keys with rows that may be others', which nothing is done to."""
        assert self.keys is not None
        return self.keys.filter(_has_more(self.keys)) if self.beside else self.keys.slice(0, 0)


def _is_small(rows: DataFrame) -> bool:
    """Whether they are few enough to be in memory and in a file that somebody reads."""
    size = F.sum(F.octet_length(F.struct(*columns(rows.columns)).cast("string")))
    ((count, length),) = rows.agg(F.count("*"), size).collect()
    return bool(count <= _ROWS_MAX and (length or 0) <= _BYTES_MAX)


def _has_more(of: pa.Table) -> pa.ChunkedArray:
    return pc.greater(of["__actual"], of["__expected"])


def _is_one(of: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.equal(of["__expected"], 1), pc.equal(of["__actual"], 1))


def shown(rows: pa.Table) -> list[dict[str, Any]]:
    """For a reader: dates and timestamps as texts, since Python has none after the year 9999."""
    texts = [column.cast(pa.string()) if pa.types.is_temporal(column.type) else column for column in rows.columns]
    found: list[dict[str, Any]] = pa.table(texts, names=rows.column_names).to_pylist()
    return found


def _arrow(rows: DataFrame) -> pa.Table:
    return rows.toArrow().cast(to_arrow_schema(rows.schema, timezone="UTC"))


def statement(verb: str, table: str, values: Mapping[str, str], key: Sequence[str]) -> str:
    """One statement of SQL, of names and values as SQL has them. A DELETE's values are the key's alone."""
    same = " AND ".join(f"{name} IS NULL" if values[name] == "NULL" else f"{name} = {values[name]}" for name in key)
    match verb:
        case "DELETE":
            return f"DELETE FROM {table} WHERE {same};"
        case "UPDATE":
            new = ", ".join(f"{name} = {value}" for name, value in values.items() if name not in key)
            return f"UPDATE {table} SET {new} WHERE {same};"
        case _:
            return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())});"

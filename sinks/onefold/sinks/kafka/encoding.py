"""Rows as Kafka records: values, keys, headers, and, with format=raw, partitions and timestamps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.errors import BadRecord, ConfigError, SchemaMismatch
from onefold.core.values import json_encoder
from onefold.core.values.ddl import is_same
from onefold.core.values.exact import Mismatch, exact_cast

Format = Literal["json", "raw"]
ROWS_MAX = 10_000  # at once: the texts of so many rows stay well below Arrow's 2 GiB a column

Header = tuple[str, bytes | None]

_HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_RAW = (
    "value binary or string, and if wanted key (the same), headers array<struct<key: string, value: binary>>, "
    "partition int, timestamp timestamp"
)

_OWN = frozenset({"value", "key", "headers", "partition", "timestamp"})


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Some rows, column by column as a producer takes them; None where no record has such a thing.

    `timestamps` are milliseconds; 0 is the producer's own clock, as -1 in `partitions` is its own partitioner.
    """

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[list[Header] | None] | None = None
    partitions: list[int] | None = None
    timestamps: list[int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether records are keys and values only."""
        return self.headers is None and self.partitions is None and self.timestamps is None

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return sum(len(part) for parts in (self.values, self.keys or ()) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class RecordEncoding:
    """How a sink's rows become records.

    With `json` a value is one JSON object of all columns but `headers`'. The key is the text (or the bytes) of the one
    column in `key`, or a JSON object of several; a header has the text or the bytes of its column, under its name.
    With `raw` the columns are the record's own parts; those in `headers` are written behind the row's own headers.
    """

    format: Format
    key: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    def check_settings(self) -> None:
        """Raise ConfigError for what makes no sense with any rows."""
        if self.format == "raw" and self.key:
            raise ConfigError(
                "options-conflict", "key= goes with format='json'; with format='raw' the rows bring " + _RAW
            )
        if self.format == "raw" and (own := _OWN.intersection(self.headers)):
            raise ConfigError(
                "options-conflict",
                f"headers= names {min(own)!r}, which is a part of the record with format='raw': {_RAW}",
            )
        for what, names in (("key", self.key), ("headers", self.headers)):
            if len(set(names)) != len(names) or not all(isinstance(name, str) and name for name in names):
                raise ConfigError("option-value", f"{what}={names!r} must name columns, each once")

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaMismatch unless rows of this schema can be records."""
        if len(set(schema.names)) != len(schema.names):
            raise SchemaMismatch(
                "column-twice", f"two columns have the same name, among {', '.join(schema.names)}: rename one"
            )
        if self.format == "raw":
            _check_raw(pa.schema([field for field in schema if field.name not in self.headers]))
        for what, names in (("key", self.key), ("headers", self.headers)):
            if missing := [name for name in names if name not in schema.names]:
                raise SchemaMismatch(
                    "column-missing", f"{what} names {missing[0]!r}, and the rows have {', '.join(schema.names)}"
                )
        for field in schema if self.format == "json" else (schema.field(name) for name in self.headers):
            if (bad := json_encoder.unsupported(field.type)) is not None:
                raise SchemaMismatch(
                    "column-type",
                    f"the column {field.name!r} ({field.type}) cannot be written as JSON, for its {bad}: cast it to a "
                    "text or a number first, or leave it out",
                )
        nested = [name for name in self.headers if _has_parts(schema.field(name).type)]
        if nested:
            raise SchemaMismatch(
                "column-type", f"headers names {nested[0]!r}, which is a list, map or struct: cast it to a text first"
            )
        if not self._valued(schema.names):
            raise SchemaMismatch("no-value-column", "no column is left for the value: headers names them all")

    def records(self, batch: pa.RecordBatch) -> Iterator[EncodedRecords]:
        """The rows of a batch whose schema was checked, in order. Raises BadRecord for a value without a JSON."""
        encode = self._of_raw if self.format == "raw" else self._of_json
        for start in range(0, batch.num_rows, ROWS_MAX):
            try:
                yield encode(batch.slice(start, ROWS_MAX))
            except ValueError as error:
                raise BadRecord(
                    "value-not-encodable",
                    f"{self._culprit(batch)}: {error}. Filter such rows before the sink, or mend them",
                ) from error

    def _of_json(self, batch: pa.RecordBatch) -> EncodedRecords:
        names = self._valued(batch.schema.names)
        values = json_encoder.objects(names, [batch.column(name) for name in names])
        return EncodedRecords(
            values=_bytes(values),
            keys=self._keys(batch) if self.key else None,
            headers=[*self._named(batch)] if self.headers else None,
        )

    def _named(self, batch: pa.RecordBatch) -> Iterator[list[Header]]:
        """Of each row, the headers that are made of columns."""
        columns = [[(name, part) for part in _parts(batch.column(name))] for name in self.headers]
        return (list(row) for row in zip(*columns, strict=True))

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        columns = [batch.column(name) for name in self.key]
        if len(columns) == 1:
            return _parts(columns[0])
        return _bytes(json_encoder.objects(self.key, columns))

    def _of_raw(self, batch: pa.RecordBatch) -> EncodedRecords:
        there = {name: batch.column(name) for name in batch.schema.names}
        headers = partitions = timestamps = None
        if "headers" in there:
            rows = there["headers"].to_pylist()
            headers = [None if row is None else [(pair["key"], pair["value"]) for pair in row] for row in rows]
        if self.headers:
            own = headers or [None] * batch.num_rows
            headers = [[*(first or ()), *row] for first, row in zip(own, self._named(batch), strict=True)]
        if "partition" in there:
            partitions = _partitions(there["partition"])
        if "timestamp" in there:
            timestamps = _timestamps(there["timestamp"])
        return EncodedRecords(
            values=_bytes(there["value"]),
            keys=_bytes(there["key"]) if "key" in there else None,
            headers=headers,
            partitions=partitions,
            timestamps=timestamps,
        )

    def _valued(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.headers]

    def _culprit(self, batch: pa.RecordBatch) -> str:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                json_encoder.texts(column)
            except ValueError:
                return f"the column {name!r}"
        return "a row"


def _partitions(array: pa.Array) -> list[int]:
    try:
        numbers = exact_cast(array, pa.int32())
    except Mismatch as error:
        raise BadRecord(
            "value-not-encodable", f"the column 'partition': {error}. Filter such rows before the sink, or mend them"
        ) from None
    if pc.any(pc.less(numbers, 0)).as_py():
        raise BadRecord(
            "partition-negative",
            f"a row asks for partition {pc.min(numbers).as_py()}, and partitions count from 0. Filter such rows before"
            " the sink, or make the partition null: then the record's key decides",
        )
    partitions: list[int] = pc.fill_null(numbers, -1).to_pylist()
    return partitions


def _timestamps(array: pa.Array) -> list[int]:
    """Kafka keeps milliseconds. Of these librdkafka takes 0 for its own clock's time, and readers take -1 for none."""
    in_ms = array.cast(options=pc.CastOptions(pa.timestamp("ms"), allow_time_truncate=True)).cast(pa.int64())
    taken = pc.is_in(in_ms, pa.array([0, -1]))
    if taken.true_count:
        raise BadRecord(
            "timestamp-reserved",
            f"a row has the timestamp {array[pc.index(taken, True).as_py()]}, and Kafka's client cannot send the first"
            " millisecond of 1970 or the one before it as they are: they stand for the time of sending, and for none."
            " Filter such rows before the sink, or make their timestamp null or another",
        )
    timestamps: list[int] = pc.fill_null(in_ms, 0).to_pylist()
    return timestamps


def _parts(array: pa.Array) -> list[bytes | None]:
    """A column's values as keys or headers: bytes as they are, all else as text."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _parts(array.cast(kind.value_type))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _bytes(array)
    if _has_parts(kind):
        return _bytes(json_encoder.nullable_texts(array))
    return _bytes(json_encoder.plain_texts(array))


def _bytes(array: pa.Array) -> list[bytes | None]:
    values: list[bytes | None] = array.cast(pa.binary()).to_pylist()
    return values


def _has_parts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _check_raw(schema: pa.Schema) -> None:
    if "value" not in schema.names:
        raise SchemaMismatch(
            "column-missing", f"format='raw' needs a column value; the rows have {', '.join(schema.names)}: {_RAW}"
        )
    for field in schema:
        kind = field.type
        match field.name:
            case "value" | "key":
                fits = kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
            case "headers":
                fits = is_same(kind, _HEADERS)
            case "partition":
                fits = pa.types.is_signed_integer(kind)
            case "timestamp":
                fits = pa.types.is_timestamp(kind)
            case _:
                raise SchemaMismatch(
                    "column-without-place", f"format='raw' has no place for the column {field.name!r}: it takes {_RAW}"
                )
        if not fits:
            raise SchemaMismatch(
                "column-type", f"format='raw': the column {field.name!r} is {kind}, and it takes {_RAW}"
            )

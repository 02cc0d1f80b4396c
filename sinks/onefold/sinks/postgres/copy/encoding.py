"""A task's rows as COPY's binary format wants them, into the target itself or into the stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder, encoders

from onefold.clients.postgres.quoting import identifier
from onefold.core.values.batches import repeated
from onefold.sinks.postgres.copy.binary_columns import builder, to_wire
from onefold.sinks.postgres.schema.type_mapping import Column
from onefold.sinks.postgres.sink_plan import ATTEMPT, DELETED, PostgresPlan
from onefold.sinks.sink_writer import check_names

__all__ = ["Encoding"]


@dataclass(frozen=True, slots=True)
class _Staged:
    """What the stage has beside the rows' own columns."""

    position: tuple[Column, ...]
    position_names: tuple[str, ...]
    deletes: bool


@lru_cache(maxsize=64)  # each task has an encoding of its own, of the same columns
def _wire(columns: tuple[Column, ...], staged: _Staged | None) -> tuple[pa.Schema, dict[str, Any], str]:
    """The columns as COPY takes them, their encoders, and their names in SQL."""
    names = [column.name for column in columns]
    pairs = [builder(column) for column in columns]
    if staged is not None:
        pairs += [builder(column) for column in staged.position]
        names += staged.position_names
        field = pa.field(ATTEMPT, pa.int64())
        pairs.append((field, encoders.Int64EncoderBuilder(field)))
        names.append(ATTEMPT)
        if staged.deletes:
            field = pa.field(DELETED, pa.bool_())
            pairs.append((field, encoders.BooleanEncoderBuilder(field)))
            names.append(DELETED)
    # The names are ours alone: COPY goes by the order of the columns, and pgpq by their own names.
    schema = pa.schema([field.with_name(name) for name, (field, _) in zip(names, pairs, strict=True)])
    by_name = dict(zip(names, (encoder for _, encoder in pairs), strict=True))
    return schema, by_name, ", ".join(map(identifier, names))


class Encoding:
    """What a COPY of this plan looks like. `attempt` marks the rows of the stage."""

    def __init__(self, plan: PostgresPlan, attempt: int) -> None:
        self._plan, self._attempt = plan, attempt
        self._schema: pa.Schema | None = None  # of the last batch: checked once, not for each batch
        self._columns: tuple[Column, ...] = plan.columns
        staged = None
        if plan.stage_table is not None:
            deletes = plan.changes is not None and plan.changes.deletes
            staged = _Staged(plan.position, tuple(plan.position_names), deletes)
        self._wire_schema, self._encoders, names = _wire(plan.columns, staged)
        self.statement = f"COPY {plan.stage_table or plan.target} ({names}) FROM STDIN (FORMAT BINARY)"

    def encoder(self) -> ArrowToPostgresBinaryEncoder:
        """A fresh encoder: each serves one COPY."""
        return ArrowToPostgresBinaryEncoder.new_with_encoders(self._wire_schema, self._encoders)

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaMismatch unless rows of `schema` are those that the sink was opened with."""
        if self._schema is not None and self._schema.equals(schema):
            return
        check_names(schema.names, self._plan.names)
        self._schema = schema

    def wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the encoder takes them. Raises ValueError for values that Postgres cannot hold."""
        arrays = [self._array(column, batch) for column in self._columns]
        changes = self._plan.changes
        if changes is not None:
            changes.check_values(batch)
        if self._plan.stage_table is not None:
            arrays += [self._array(column, batch) for column in self._plan.position]
            arrays.append(repeated(self._attempt, batch.num_rows))
            if changes is not None and changes.deletes:
                arrays.append(changes.deleted(batch))
        return pa.RecordBatch.from_arrays(arrays, schema=self._wire_schema)

    def _array(self, column: Column, batch: pa.RecordBatch) -> Any:
        values = batch.column(column.name)
        try:
            return to_wire(column, values)
        except (ValueError, pa.ArrowException) as error:
            raise ValueError(f"column {column.name}: {error}") from error

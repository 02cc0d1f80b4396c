"""What makes two rows versions of one row, which of them is newer, and which of them delete it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import present
from onefold.core.errors import ConfigError, SchemaMismatch

DELETES_KEPT_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Changes:
    """How an upserting sink reads its rows.

    `key` names the columns that a row is known by, `order` those that say which version of it is newer, compared from
    left to right. A version deletes the row where the boolean column `delete_when_true` is true, or the column
    `delete_when_null` is null. A deletion is remembered for `deletes_kept_s`, by the epochs' own time.
    """

    key: tuple[str, ...]
    order: tuple[str, ...]
    delete_when_true: str | None = None
    delete_when_null: str | None = None
    deletes_kept_s: float = DELETES_KEPT_S

    def __post_init__(self) -> None:
        if not self.key or not self.order:
            raise ConfigError(
                "option-missing",
                "mode='upsert' needs key=..., the columns that name a row, and order=..., those that say which version"
                " of it is newer (a version number, a time of change): without an order a late record would overwrite"
                " a newer one",
            )
        if both := sorted({*self.key} & {*self.order}):
            raise ConfigError(
                "options-conflict", f"{', '.join(both)}: a column of key cannot be one of order: all versions share it"
            )
        if len(set(self.key)) != len(self.key) or len(set(self.order)) != len(self.order):
            raise ConfigError("option-value", f"key={self.key} and order={self.order} must name each column once")
        if self.delete_when_true is not None and self.delete_when_null is not None:
            raise ConfigError("options-conflict", "give delete_when_true or delete_when_null, not both")
        marker = self.delete_when_true or self.delete_when_null
        if marker in (*self.key, *self.order):
            raise ConfigError(
                "options-conflict", f"{marker!r} marks deletions, and a column of key or order has a value in every row"
            )
        if not self.deletes_kept_s > 0:
            raise ConfigError(
                "option-value", "deletes_kept_s is the time in which a late older record may still come: above 0"
            )

    @property
    def deletes(self) -> bool:
        return self.delete_when_true is not None or self.delete_when_null is not None

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that have a value in every row."""
        return (*self.key, *self.order)

    def check(self, names: Sequence[str], schema: pa.Schema) -> None:
        """Raise SchemaMismatch unless the rows (`schema`) and what is written of them (`names`) have what is needed."""
        missing = [name for name in self.required if name not in names]
        if missing:
            raise SchemaMismatch(
                "column-missing",
                f"mode='upsert' compares {', '.join(missing)}, which must be columns of the rows and of the table;"
                f" the rows have {', '.join(schema.names)}",
            )
        marker = self.delete_when_true or self.delete_when_null
        if marker is not None and marker not in schema.names:
            raise SchemaMismatch(
                "column-missing", f"no column {marker!r}, which is to mark deletions: {', '.join(schema.names)}"
            )
        if self.delete_when_true is not None and not pa.types.is_boolean(schema.field(self.delete_when_true).type):
            raise SchemaMismatch(
                "column-type",
                f"delete_when_true={self.delete_when_true!r} must be a boolean column, not"
                f" {schema.field(self.delete_when_true).type}; where null means deletion, use delete_when_null",
            )

    @property
    def conditions(self) -> tuple[str, ...]:
        """Under which the guarantee holds."""
        order = ", ".join(self.order)
        distinct = f"versions of one row differ in {order}: of two that do not, the first stays"
        kept = f"no version comes {self.deletes_kept_s:g} s later than a newer deletion: it would be a row again"
        return (distinct, kept) if self.deletes else (distinct,)

    def check_values(self, batch: pa.RecordBatch) -> None:
        """Raise ValueError for a row without a key or an order."""
        for name in self.required:
            if batch.column(name).null_count:
                raise ValueError(f"column {name}: null, and a column of key or order has a value in every row")

    def written(self, names: Sequence[str]) -> list[str]:
        """Of the rows' columns, those that go into the table."""
        return [name for name in names if name != self.delete_when_true]

    def deleted(self, batch: pa.RecordBatch) -> pa.Array:
        """Which rows are deletions."""
        if self.delete_when_true is not None:
            return pc.fill_null(batch.column(self.delete_when_true), False)
        return batch.column(present(self.delete_when_null, "no column marks deletions")).is_null()

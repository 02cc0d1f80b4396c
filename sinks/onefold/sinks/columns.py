"""The columns of rows, as sinks are told of them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onefold.core.errors import SchemaMismatch

__all__ = ["check_columns", "check_names"]


def check_columns(batch: pa.RecordBatch, opened: pa.Schema, where: str) -> None:
    """Raise SchemaMismatch unless the rows have the columns that the sink was opened for."""
    if batch.schema.names != opened.names or batch.schema.types != opened.types:
        raise SchemaMismatch(
            "rows-of-another-schema", f"{where}: rows of {batch.schema} came, and the sink was opened for {opened}"
        )


def check_names(names: Sequence[str], opened: Sequence[str]) -> None:
    """Raise SchemaMismatch unless the rows have the columns that the sink was opened with, in whatever order."""
    if sorted(names) != sorted(opened):
        raise SchemaMismatch(
            "rows-of-another-schema",
            f"the rows have columns {', '.join(names)}, and the sink was opened with {', '.join(opened)}: open it with"
            " the schema that the writers deliver",
        )

"""A range of offsets as Arrow record batches: what a data source's reader and a writing task both call."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from onefold.core.errors import BadRecord, ConfigError
from onefold.sources.kafka import json, raw
from onefold.sources.kafka import settings as client
from onefold.sources.kafka.fetching import MESSAGES_MAX, fetch
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.positions import check_positions, parsed_part, with_positions
from onefold.sources.kafka.raw import RAW_COLUMNS
from onefold.sources.kafka.records import Wanted

__all__ = ["RAW_COLUMNS", "check_schema", "read"]


def check_schema(format: str, schema: pa.Schema, positions: bool = False) -> None:
    """Raise `ConfigError` if records in this format can't be read as this schema."""
    if positions:
        check_positions(schema)
        schema = parsed_part(schema)
    match format:
        case "raw":
            raw.check(schema)
        case "json":
            json.check(schema)
        case _:
            raise ConfigError(f"format is raw or json, not {format!r}")


def read(
    bootstrap_servers: str,
    settings: client.Settings,
    format: str,
    schema: pa.Schema,
    wanted: OffsetRange,
    *,
    positions: bool = False,
    timeout_s: float = 60.0,
    rows_max: int = MESSAGES_MAX,
    compiled_fetch: str = "auto",
) -> Iterator[pa.RecordBatch]:
    """The records of one range, in order, in batches of about `rows_max` rows with exactly this schema.

    With `positions`, the columns of `POSITION_COLUMNS` in the schema say where each record was. Raises `BadRecord`,
    `DataLoss`, `Retriable`, `ConfigError`; a range without records yields nothing.
    """
    parsed = parsed_part(schema) if positions else schema
    columns = Wanted.of(schema.names) if format == "raw" else Wanted(lines=True)
    batches = fetch(
        bootstrap_servers,
        settings,
        wanted,
        columns=columns,
        timeout_s=timeout_s,
        messages_max=rows_max,
        compiled=compiled_fetch,
    )
    for records in batches:
        if format == "raw":
            yield raw.to_batch(records, schema)
            continue
        values = records.values
        try:
            batch = json.parse(values, parsed)
        except json.Unparsable as error:
            value, offset = values[error.index], records.column(pa.field("offset", pa.int64()))[error.index]
            raise BadRecord(
                f"{wanted.topic}/{wanted.partition} offset {offset}: {error.reason}. The value is {_short(value)}. "
                "Correct the schema, or read with format=raw and deal with such records yourself"
            ) from None
        yield with_positions(batch, records, schema) if positions else batch


def _short(value: bytes | None, length_max: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= length_max else f"{text[:length_max]}... ({len(value or b'')} bytes)"

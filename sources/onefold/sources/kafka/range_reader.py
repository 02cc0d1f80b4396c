"""A range of offsets as Arrow record batches: what a data source's reader and a writing task both call."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from onefold.clients.kafka.client_roles import CONSUMER
from onefold.core.source import Part
from onefold.sources.formats.guarded_parser import in_task
from onefold.sources.formats.values import BadValue, Parser, Separated, TooManyBad, separate
from onefold.sources.kafka.bad_records import bad_batch, may_change, place_of
from onefold.sources.kafka.fetching.fetched_records import FetchedRecords, WantedFields
from onefold.sources.kafka.fetching.fetcher import MESSAGES_MAX, fetch
from onefold.sources.kafka.formats.dispatch import parser_of
from onefold.sources.kafka.formats.record_columns import RAW_COLUMNS, parsed_part, raw_batch, wanted_of, with_columns
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.source_options import KafkaSourceConfig


def read(
    source: KafkaSourceConfig,
    schema: pa.Schema,
    wanted: OffsetRange,
    *,
    rows_max: int = MESSAGES_MAX,
    guarded: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of one range, in order, in batches of about `rows_max` rows with exactly this schema.

    With `on_error="fail"` the first bad record raises `BadRecord`; else bad ones are left out, up to the source's
    `bad_records_max` in this range, for another reader to make dead letters of (`repeatable`, see `read_parts`).
    `guarded`: values that a parser's library dies of are bad records, too, at the price of a process for each batch.
    Raises `DataLoss`, `Retriable`, `ConfigError`; a range without records yields nothing.
    """
    skipped = 0
    repeatable = source.on_error == "dead_letter"
    for part in read_parts(source, schema, wanted, rows_max=rows_max, repeatable=repeatable, guarded=guarded):
        skipped += part.bad.num_rows
        if part.rows.num_rows:
            yield part.rows
    if skipped and source.on_error == "skip":
        CONSUMER.logger.warning("%s: unreadable records, skipped: %d", wanted, skipped)


def read_parts(
    source: KafkaSourceConfig,
    schema: pa.Schema,
    wanted: OffsetRange,
    *,
    rows_max: int = MESSAGES_MAX,
    repeatable: bool = False,
    guarded: bool = False,
) -> Iterator[Part]:
    """As `read`, with the bad records beside the rows.

    With `repeatable`, a record that may be good another time raises `BadRecord`: a caller that reads a range twice must
    find the same.
    """
    parsing = Parsing(source, schema, repeatable=repeatable, guarded=guarded)
    fetched = fetch(
        source.bootstrap_servers,
        source.client_config,
        wanted,
        columns=parsing.wanted,
        timeout_s=source.timeout_s,
        messages_max=rows_max,
        compiled=source.compiled_fetch,
    )
    for records in fetched:
        yield parsing.part(records, wanted)


class Parsing:
    """Parses the records of one task. Raises `BadRecord` where too many are bad.

    `wanted` says what has to come along with the values.
    """

    def __init__(
        self, source: KafkaSourceConfig, schema: pa.Schema, *, repeatable: bool = False, guarded: bool = False
    ) -> None:
        self._source = source
        self._schema = schema
        self._repeatable = repeatable
        self._parser: Parser | None = None
        if source.format != "raw":
            self._parser = in_task(parser_of(source, parsed_part(schema, source.columns)), guarded=guarded)
        self._left = source.bad_max
        self.wanted = _wanted(source, schema)
        self._reads_headers = "headers" in (schema.names if source.format == "raw" else source.columns)

    def part(self, records: FetchedRecords, wanted: OffsetRange) -> Part:
        """The next of them; `wanted` is where they are from, for the errors."""
        source = self._source
        try:
            found = self._separated(records)
        except TooManyBad as error:
            at, instead = place_of(wanted, records, error.last), "; or read with format=raw and deal with them yourself"
            raise source.refused(at, error.last, records.values[error.last.index], instead) from None
        if self._repeatable and (temporary := [value for value in found.bad if not value.is_permanent]):
            raise may_change(wanted, records, temporary[0])
        self._left -= len(found.bad)
        bad = bad_batch(records, found.bad, self.wanted)
        refused_at = {value.index for value in found.bad}
        good = [index for index in range(len(records)) if index not in refused_at] if found.bad else None
        if source.format == "raw":
            rows = raw_batch(records, self._schema)
            return Part(rows if good is None else rows.take(pa.array(good, pa.int64())), bad)
        if not found.rows or not source.columns:
            return Part(found.batch(self._schema), bad)
        places = None if good is None else pa.array(good)
        return Part(with_columns(found.batch(self._schema), records, places, self._schema, wanted.topic_id), bad)

    def _separated(self, records: FetchedRecords) -> Separated:
        known = dict(records.odd_headers) if self._reads_headers else {}
        known |= {at: _too_large(size, self.wanted.record_bytes_max) for at, size in records.too_large.items()}
        if self._parser is not None:
            return separate(records.values, self._parser, self._left, known)
        bad = [BadValue(at, reason) for at, reason in sorted(known.items())]
        if len(bad) > self._left:
            raise TooManyBad(bad[self._left])
        return Separated(bad=bad)


def _wanted(source: KafkaSourceConfig, schema: pa.Schema) -> WantedFields:
    """What is fetched beside the values. Dead letters have it all, whichever records they will be of."""
    names = set(schema.names) if source.format == "raw" else wanted_of(source.columns)
    if source.on_error == "dead_letter":
        names = set(RAW_COLUMNS.names)
    return WantedFields.of(names, lines=source.format == "json", record_bytes_max=source.record_bytes_max)


def _too_large(size: int | None, record_bytes_max: int) -> str:
    if size is None:
        return (
            "the record, or the batch it is in, cannot be unpacked: it has more bytes than receive.message.max.bytes of"
            " client_config= allows (100,000,000), or is damaged"
        )
    return f"the record has {size} bytes, more than record_bytes_max={record_bytes_max}"

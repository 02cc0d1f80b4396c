"""A range of offsets as Arrow record batches: what a data source's reader and a writing task both call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from onefold.core.errors import BadRecord
from onefold.sources.kafka import raw
from onefold.sources.kafka.bad_records import bad_batch, open_question, refused
from onefold.sources.kafka.columns import parsed_part, wanted_of, with_columns
from onefold.sources.kafka.fetching import MESSAGES_MAX, fetch
from onefold.sources.kafka.formats import parser_of
from onefold.sources.kafka.guarding import in_task
from onefold.sources.kafka.offsets import OffsetRange
from onefold.sources.kafka.records import UNREADABLE, Records, Values, Wanted, with_odd_headers
from onefold.sources.kafka.settings import LOGGER
from onefold.sources.kafka.sifting import BadValue, Parser, Sifted, TooManyBad, sift

if TYPE_CHECKING:
    from onefold.sources.kafka.source import KafkaSource

__all__ = ["Parsing", "Part", "read", "read_parts", "tell_skipped"]


@dataclass(frozen=True, slots=True)
class Part:
    """Some records of a range: the rows of those that could be read, and those that couldn't, as `BAD_COLUMNS`."""

    rows: pa.RecordBatch
    bad: pa.RecordBatch


def read(
    source: KafkaSource,
    schema: pa.Schema,
    wanted: OffsetRange,
    *,
    rows_max: int = MESSAGES_MAX,
    guarded: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of one range, in order, in batches of about `rows_max` rows with exactly this schema.

    With `on_error="fail"` the first bad record raises `BadRecord`; else bad ones are left out, up to the source's
    `bad_records_max` in this range, for others to read (`settled`, see `read_parts`, where they become dead letters).
    `guarded`: values that a parser's library dies of are bad records, too, at the price of a process for each batch.
    Raises `DataLoss`, `Retriable`, `ConfigError`; a range without records yields nothing.
    """
    skipped = 0
    settled = source.on_error == "dead_letter"
    for part in read_parts(source, schema, wanted, rows_max=rows_max, settled=settled, guarded=guarded):
        skipped += part.bad.num_rows
        if part.rows.num_rows:
            yield part.rows
    tell_skipped(source, wanted, skipped)


def tell_skipped(source: KafkaSource, wanted: OffsetRange, count: int) -> None:
    """Log how many records of a range were left out, if they go nowhere else."""
    if count and source.on_error == "skip":
        LOGGER.warning("%s: %d records could not be read, and were skipped", wanted, count)


def read_parts(
    source: KafkaSource,
    schema: pa.Schema,
    wanted: OffsetRange,
    *,
    rows_max: int = MESSAGES_MAX,
    settled: bool = False,
    guarded: bool = False,
) -> Iterator[Part]:
    """As `read`, with the bad records beside the rows.

    With `settled`, a record that may be good another time raises `BadRecord`: for those who read a range twice, and
    must find the same.
    """
    parsing = Parsing(source, schema, settled=settled, guarded=guarded)
    fetched = fetch(
        source.bootstrap_servers,
        source.settings,
        wanted,
        columns=parsing.wanted,
        timeout_s=source.timeout_s,
        messages_max=rows_max,
        compiled=source.compiled_fetch,
    )
    for records in fetched:
        yield parsing.part(records, wanted)


class Parsing:
    """From the records of one task, whoever read them, to rows. Raises `BadRecord`, where there are too many bad ones.

    `wanted` says what has to come along with the values.
    """

    def __init__(self, source: KafkaSource, schema: pa.Schema, *, settled: bool = False, guarded: bool = False) -> None:
        self._source = source
        self._schema = schema
        self._settled = settled
        self._parser = None
        if source.format != "raw":
            self._parser = in_task(parser_of(source, parsed_part(schema, source.columns)), guarded=guarded)
        self._left = source.bad_records_max if source.on_error != "fail" else 0
        self.wanted = _wanted(source, schema)
        self._reads_headers = "headers" in (schema.names if source.format == "raw" else source.columns)

    def part(self, records: Records, wanted: OffsetRange) -> Part:
        """The next of them; `wanted` is where they are from, for the errors."""
        odd = with_odd_headers(records) if self._reads_headers else []
        if self._parser is None:
            if odd:
                offset = records.column(raw.RAW_COLUMNS.field("offset"))[odd[0]]
                raise BadRecord(f"{wanted.topic}/{wanted.partition}, offset {offset}: {UNREADABLE}")
            return Part(raw.to_batch(records, self._schema), bad_batch(records, [], self.wanted))
        source = self._source
        try:
            found = _without(odd, records.values, self._parser, self._left)
        except TooManyBad as error:
            allowed = None if source.on_error == "fail" else source.bad_records_max
            raise refused(wanted, records, error.last, allowed) from None
        if self._settled and (unsettled := [value for value in found.bad if not value.settled]):
            raise open_question(wanted, records, unsettled[0])
        self._left -= len(found.bad)
        bad = bad_batch(records, found.bad, self.wanted)
        if not found.rows:
            return Part(pa.RecordBatch.from_pylist([], schema=self._schema), bad)
        rows = found.rows[0] if len(found.rows) == 1 else pa.concat_batches(found.rows)
        if not source.columns:
            return Part(rows, bad)
        refused_at = {value.index for value in found.bad}
        good = [index for index in range(len(records)) if index not in refused_at] if found.bad else None
        places = None if good is None else pa.array(good)
        return Part(with_columns(rows, records, places, self._schema, wanted.topic_id), bad)


def _without(odd: list[int], values: Values, parser: Parser, bad_max: int) -> Sifted:
    """All values but the odd ones, which are bad, whatever their value is."""
    if not odd:
        return sift(values, parser, bad_max)
    bad = [BadValue(index, UNREADABLE) for index in odd]
    if len(bad) > bad_max:
        raise TooManyBad(bad[bad_max])
    kept = sorted(set(range(len(values))).difference(odd))
    try:
        found = sift([values[index] for index in kept], parser, bad_max - len(bad))
    except TooManyBad as error:
        raise TooManyBad(replace(error.last, index=kept[error.last.index])) from None
    bad += [replace(value, index=kept[value.index]) for value in found.bad]
    return Sifted(found.rows, sorted(bad, key=lambda value: value.index))


def _wanted(source: KafkaSource, schema: pa.Schema) -> Wanted:
    """What is fetched beside the values. Dead letters have it all, whichever records they will be of."""
    if source.format == "raw":
        return Wanted.of(schema.names)
    names = set(raw.RAW_COLUMNS.names) if source.on_error == "dead_letter" else wanted_of(source.columns)
    return Wanted.of(names, lines=source.format == "json")

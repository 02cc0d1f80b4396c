"""Records of a file, parsed; the bad ones among them as dead letters, or as the error that stops the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onefold.core.errors import BadRecord
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.core.values.plain import plain
from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.sources.files.source_options import FileSourceConfig
from onefold.sources.formats.values import BadValue, Parser, TooManyBad, separate

_NONE_BAD = empty_batch(BAD_COLUMNS)  # made once: it takes as long as parsing a thousand rows


@dataclass(frozen=True, slots=True)
class FileRecords:
    """Some records of a file: what the parser takes, where each is, and its bytes as a dead letter has them. `known`
    ones are bad, and why."""

    values: Any
    places: Sequence[int]
    shown: Callable[[int], bytes | None]
    known: Mapping[int, str] = field(default_factory=dict)


class Separator:
    """Parses the records of one part of a file. `place` is what their places count: "byte" or "row"."""

    def __init__(self, source: FileSourceConfig, schema: pa.Schema, parser: Parser, where: str, place: str) -> None:
        self._source, self._schema, self._parser, self._where, self._place = source, schema, parser, where, place
        self._left = source.bad_max

    def part(self, records: FileRecords) -> Part:
        try:
            found = separate(records.values, self._parser, self._left, records.known)
        except TooManyBad as error:
            raise self._refused(records, error.last) from None
        for bad in found.bad:
            if bad.is_torn:
                raise torn(f"{self._where} from byte {records.places[bad.index]}", bad.reason)
        self._left -= len(found.bad)
        return Part(found.batch(self._schema), self._letters(records, found.bad))

    def _letters(self, records: FileRecords, bad: Sequence[BadValue]) -> pa.RecordBatch:
        if not bad:
            return _NONE_BAD
        rows: list[dict[str, Any]] = [
            {
                "source_topic": self._where,
                "source_partition": 0,
                "source_offset": records.places[value.index],
                "value": records.shown(value.index),
                "headers": [],
                "reason": value.reason,
            }
            for value in bad
        ]
        return pa.RecordBatch.from_pylist(rows, schema=BAD_COLUMNS)

    def _refused(self, records: FileRecords, bad: BadValue) -> BadRecord:
        at = f"{self._where} from {self._place} {records.places[bad.index]}"
        if bad.is_torn:
            return torn(at, bad.reason)
        return self._source.refused(at, bad, records.shown(bad.index))


def torn(at: str, reason: str) -> BadRecord:
    """The error for CSV whose quotes do not end: it is for the whole file, whatever `on_error` says."""
    return BadRecord(
        "csv-quotes-torn",
        f"{at}: {plain(reason)}: which lines behind it are within quotes cannot be told, so nothing of the file is"
        " written. If its texts have line breaks, set csv_multiline; else correct the line, in which a quote within"
        " quotes is written twice, or take the file away",
    )

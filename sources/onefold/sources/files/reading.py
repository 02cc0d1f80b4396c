"""A part of a file as Arrow: its rows, and the lines that could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from onefold.core.dead_letters import BAD_COLUMNS
from onefold.core.errors import BadRecord
from onefold.core.source import Part
from onefold.core.values.batches import empty_batch
from onefold.sources.files.config import FileSourceConfig
from onefold.sources.files.lines import LineBatch, lines_of
from onefold.sources.files.listing import Folder
from onefold.sources.files.parquet import as_columns
from onefold.sources.files.splitting import FileRange, is_packed
from onefold.sources.formats.bad_values import BadValue, Parser, Separated, TooManyBad, separate
from onefold.sources.formats.csv import CsvParser
from onefold.sources.formats.guarded_parser import in_task
from onefold.sources.formats.json import JsonParser

__all__ = ["read_parts"]

_ROWS = 64 << 10


def read_parts(
    source: FileSourceConfig, schema: pa.Schema, wanted: FileRange, *, guarded: bool = False
) -> Iterator[Part]:
    """The rows of a part of a file, in order, with the bad lines beside them. Raises `BadRecord` where too many are
    bad, and `DataLoss` for a file that is not as it was planned, also if it changes meanwhile."""
    folder = Folder(source.path)
    folder.check_same(wanted.name, wanted.version)
    if source.format == "parquet":
        yield from _rows(folder, wanted, schema)
    else:
        yield from _Lines(source, schema, wanted, folder, guarded=guarded).parts()
    folder.check_same(wanted.name, wanted.version)


def _rows(folder: Folder, wanted: FileRange, schema: pa.Schema) -> Iterator[Part]:
    none = empty_batch(BAD_COLUMNS)
    with folder.opened(wanted.name) as file:
        with folder.decoding(wanted.name, "Parquet"):
            opened = pq.ParquetFile(file)
            groups = range(wanted.start, opened.num_row_groups if wanted.end is None else wanted.end)
            names = [name for name in opened.schema_arrow.names if name in schema.names]
            batches = opened.iter_batches(_ROWS, row_groups=list(groups), columns=names)
        while True:
            with folder.decoding(wanted.name, "Parquet"):
                batch = next(batches, None)
                if batch is None:
                    return
                rows = as_columns(batch, schema)
            yield Part(rows, none)


class _Lines:
    """Parses the lines of one part."""

    def __init__(
        self, source: FileSourceConfig, schema: pa.Schema, wanted: FileRange, folder: Folder, *, guarded: bool
    ) -> None:
        self._source, self._schema, self._wanted, self._folder = source, schema, wanted, folder
        parser: Parser = JsonParser(schema) if source.format == "json" else CsvParser(schema, source.csv_delimiter)
        self._parser = in_task(parser, guarded=guarded)
        self._left = source.bad_records_max if source.on_error != "fail" else 0
        self._has_header = source.csv_header and wanted.start == 0
        self._blank_is_a_row = source.format == "csv" and len(schema) == 1  # of a null
        self._where = folder.shown(wanted.name)

    def parts(self) -> Iterator[Part]:
        wanted = self._wanted
        packed = is_packed(wanted.name)
        open_ = self._folder.unpacked if packed else self._folder.opened
        with open_(wanted.name) as file, self._folder.decoding(wanted.name, "a compressed file"):
            most, blank = self._source.record_bytes_max, self._blank_is_a_row
            for lines in lines_of(file, wanted.start, wanted.end, most, with_blank=blank):
                if self._has_header and lines.values:
                    lines = self._without_header(lines)
                if lines.values:
                    yield self._part(lines)

    def _part(self, lines: LineBatch) -> Part:
        try:
            found = self._separated(lines)
        except TooManyBad as error:
            raise self._refused(lines, error.last) from None
        self._left -= len(found.bad)
        rows = [*found.rows, *([] if found.rows else [empty_batch(self._schema)])]
        return Part(rows[0] if len(rows) == 1 else pa.concat_batches(rows), self._bad(lines, found.bad))

    def _separated(self, lines: LineBatch) -> Separated:
        most = self._source.record_bytes_max
        known = {
            at: f"the line has {size} bytes, more than record_bytes_max={most}" for at, size in lines.too_long.items()
        }
        return separate(lines.values, self._parser, self._left, known)

    def _bad(self, lines: LineBatch, bad: Sequence[BadValue]) -> pa.RecordBatch:
        rows = [
            {
                "source_topic": self._where,
                "source_partition": 0,
                "source_offset": lines.places[value.index],
                "value": lines.values[value.index],
                "headers": [],
                "reason": value.reason,
            }
            for value in bad
        ]
        return pa.RecordBatch.from_pylist(rows, schema=BAD_COLUMNS)

    def _refused(self, lines: LineBatch, bad: BadValue) -> BadRecord:
        value = repr(lines.values[bad.index])
        value = value if len(value) <= 200 else f"{value[:200]}..."
        at = f"{self._where} from byte {lines.places[bad.index]}: {bad.reason}. The line is {value}"
        if self._source.on_error == "fail":
            return BadRecord(
                "record-unreadable",
                f"{at}. Correct the schema; or say what is to become of such lines, with on_error='dead_letter' or"
                " on_error='skip'",
            )
        return BadRecord(
            "too-many-bad-records",
            f"more than bad_records_max={self._source.bad_records_max} lines cannot be read. The first beyond: {at}."
            " Nothing of this epoch was decided. If the schema is right and the lines are not, raise bad_records_max",
        )

    def _without_header(self, lines: LineBatch) -> LineBatch:
        """The lines behind the first, which must name the schema's columns in their order."""
        self._has_header = False
        names = lines.values[0].rstrip(b"\r").decode("utf-8", "replace").split(self._source.csv_delimiter)
        if [name.strip().strip('"') for name in names] != self._schema.names:
            raise BadRecord(
                "csv-header-mismatch",
                f"{self._where} begins with the columns {', '.join(names)}, and the schema has"
                f" {', '.join(self._schema.names)}: correct the schema or the file; or, if its first line is a record,"
                " leave out csv_header",
            )
        too_long = {at - 1: size for at, size in lines.too_long.items() if at}
        return LineBatch(lines.values[1:], lines.places[1:], too_long)

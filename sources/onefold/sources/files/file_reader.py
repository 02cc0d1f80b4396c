"""A part of a file as Arrow: its rows, and the records that could not be read."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pyarrow as pa

from onefold.core.errors import BadRecord
from onefold.core.source import Part
from onefold.core.values.plain import plain
from onefold.sources.files.bad_records import FileRecords, Separator, torn
from onefold.sources.files.lines import LineBatch, UnbalancedQuotes, lines_of, records_of
from onefold.sources.files.listing import Folder
from onefold.sources.files.parquet.parquet_rows import rows_of
from onefold.sources.files.partitions import PlacedParser, no_column_left, partition_of
from onefold.sources.files.source_options import FileSourceConfig
from onefold.sources.files.splitting import FileRange, is_packed
from onefold.sources.formats.csv import CsvParser
from onefold.sources.formats.guarded_parser import in_task
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import Parser


def read_parts(
    source: FileSourceConfig, schema: pa.Schema, wanted: FileRange, *, guarded: bool = False
) -> Iterator[Part]:
    """The rows of a part of a file, in order, with the bad records beside them. Raises `BadRecord` where too many are
    bad, and `DataLoss` for a file that is not as it was planned, also if it changes meanwhile."""
    folder = Folder(source.path)
    folder.check_same(wanted.name, wanted.version)
    if source.format == "parquet":
        yield from rows_of(source, schema, wanted, folder, guarded=guarded)
    else:
        yield from _Lines(source, schema, wanted, folder, guarded=guarded).parts()
    folder.check_same(wanted.name, wanted.version)


class _Lines:
    """Parses the lines of one part. `_columns` are those that the lines have, and no folder."""

    def __init__(
        self, source: FileSourceConfig, schema: pa.Schema, wanted: FileRange, folder: Folder, *, guarded: bool
    ) -> None:
        self._source, self._wanted, self._folder = source, wanted, folder
        self._where = folder.shown(wanted.name)
        partition = partition_of(wanted.name, schema, self._where)
        parser: Parser
        if source.format == "json":
            self._columns = pa.schema([f.with_nullable(f.nullable or f.name in partition) for f in schema])
            parser = JsonParser(self._columns)
        else:
            self._columns = pa.schema([field for field in schema if field.name not in partition])
            if not self._columns:
                raise no_column_left(self._where)
            parser = CsvParser(self._columns, source.csv_delimiter, multiline=source.csv_multiline)
        if partition:
            parser = PlacedParser(parser, schema, partition)
        self._separator = Separator(source, schema, in_task(parser, guarded=guarded), self._where, "byte")
        self._has_header = source.csv_header and wanted.start == 0
        self._blank_is_a_row = source.format == "csv" and len(self._columns) == 1  # of a null

    def parts(self) -> Iterator[Part]:
        wanted = self._wanted
        open_ = self._folder.unpacked if is_packed(wanted.name) else self._folder.opened
        with open_(wanted.name) as file, self._folder.decoding(wanted.name, "a compressed file"):
            try:
                for lines in self._batches(file):
                    if self._has_header and lines.values:
                        lines = self._without_header(lines)
                    if lines.values:
                        yield self._separator.part(self._records(lines))
            except UnbalancedQuotes as error:
                raise torn(f"{self._where} from byte {error.place}", error.reason) from None

    def _batches(self, file: pa.NativeFile) -> Iterator[LineBatch]:
        source, wanted, blank = self._source, self._wanted, self._blank_is_a_row
        most = source.record_bytes_max
        if not source.csv_multiline:
            return lines_of(file, wanted.start, wanted.end, most, with_blank=blank)
        lines = lines_of(file, wanted.start, wanted.end, most, with_blank=True)
        return records_of(lines, source.csv_delimiter, most, with_blank=blank)

    def _records(self, lines: LineBatch) -> FileRecords:
        most = self._source.record_bytes_max
        for at, (size, has_quote) in lines.too_long.items():
            if has_quote and self._source.format == "csv":
                raise UnbalancedQuotes(
                    lines.places[at], f"a record of {size} bytes, more than record_bytes_max={most}, has quotes"
                )
        known = {
            at: f"the line has {too_long.size} bytes, more than record_bytes_max={most}"
            for at, too_long in lines.too_long.items()
        }
        return FileRecords(lines.values, lines.places, lambda at: lines.values[at].removesuffix(b"\r"), known)

    def _without_header(self, lines: LineBatch) -> LineBatch:
        """The lines behind the first, which must name the columns in their order."""
        self._has_header = False
        text = lines.values[0].decode("utf-8", "replace")
        try:
            names = next(csv.reader([text], delimiter=self._source.csv_delimiter, strict=True, skipinitialspace=True))
        except csv.Error:
            names = [text]
        if [name.strip() for name in names] != self._columns.names:
            raise BadRecord(
                "csv-header-mismatch",
                f"{self._where} begins with the columns {plain(', '.join(names))}, and the schema has"
                f" {', '.join(self._columns.names)}: correct the schema or the file; or, if its first line is a record,"
                " leave out csv_header",
            )
        return lines.without_first()

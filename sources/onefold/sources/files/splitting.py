"""Parts of one file: large ones are read by several tasks, lines by ranges of bytes, Parquet by its row groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.parquet as pq

from onefold.sources.files.listing import Folder, ListedFile, codec_of
from onefold.sources.files.source_options import FileSourceConfig

SPLIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """Of one version of a file, the lines that begin in the bytes from `start` up to `end`, or those row groups. `end`
    is None for all."""

    name: str
    version: str
    start: int = 0
    end: int | None = None


def is_packed(name: str) -> bool:
    """Whether a file of lines is compressed, by its name; it is read from its beginning then."""
    return codec_of(name) is not None


def splits_of(source: FileSourceConfig, folder: Folder, file: ListedFile) -> Iterator[tuple[FileRange, int]]:
    """The parts of a file with their sizes in bytes, always the same ones. None of an empty file."""
    is_whole = source.csv_multiline or (source.format != "parquet" and is_packed(file.name))
    if file.size <= SPLIT_BYTES or is_whole:
        yield from [(FileRange(file.name, file.version), file.size)] if file.size else []
    elif source.format == "parquet":
        yield from _row_groups(folder, file)
    else:
        for start in range(0, file.size, SPLIT_BYTES):
            end = min(start + SPLIT_BYTES, file.size)
            yield FileRange(file.name, file.version, start, end), end - start


def _row_groups(folder: Folder, file: ListedFile) -> Iterator[tuple[FileRange, int]]:
    with folder.opened(file.name) as opened, folder.decoding(file.name, "Parquet"):
        metadata = pq.ParquetFile(opened).metadata
        sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    start = total = 0
    for number, size in enumerate(sizes):
        total += size
        if total >= SPLIT_BYTES or number == len(sizes) - 1:
            yield FileRange(file.name, file.version, start, number + 1), total
            start, total = number + 1, 0

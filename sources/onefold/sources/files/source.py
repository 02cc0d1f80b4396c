"""FileSource: what a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self
from urllib.parse import parse_qs, urlparse

import pyarrow as pa

from onefold.clients.options import options_model
from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.core.source import BoundedSource, Journal, Keep, Part, Split
from onefold.core.values.ddl import ddl_of, schema_of
from onefold.core.values.plain import shown_url
from onefold.sources.files.file_planner import FilePlanner, position_of
from onefold.sources.files.file_reader import read_parts
from onefold.sources.files.listing import Folder, is_hidden
from onefold.sources.files.parquet.column_matching import columns_of
from onefold.sources.files.source_options import FileSourceConfig
from onefold.sources.formats import csv, json


@options_model
class FileSource(FileSourceConfig):
    """The files of a folder, each read once, also those that come later.

        FileSource("s3://bucket/orders", format="json", schema="id long, at timestamp")

    `path` is a folder with all that is in it, or one file: a path of this machine, or a URI that `pyarrow.fs` knows
    (`s3://`, `gs://`, `hdfs://`), whose settings stand in its query: `s3://bucket/in?region=eu-north-1`. `pattern`:
    only files whose own names match (`*.json`). Names that begin with `_` or `.` are hidden.

    `format="parquet"` reads columns by name; without `schema`, a Spark DDL text, they are those of the first file.
    `"json"` and `"csv"` read a record from each line, by `schema`; files that end in `.gz`, `.bz2`, `.zst` or `.lz4`
    are unpacked. Of CSV, `csv_header` says that the first line of each file names the columns, which is checked, and
    `csv_multiline` that texts in quotes have line breaks: one task reads a file then. A folder `key=value` is a column.

    A file must not change once it is there: write it elsewhere, and rename it; or set `settle_s`, so that a file is
    taken only when it has not been written for so many seconds. One that does change, or is gone before it was read, is
    DataLoss. What was read may be taken away, moved within the folder or packed, and its name must not be used again.

    `name` is what the source is called in positions, by default the last part of the path; give it, so that `path` may
    be narrowed later. `max_files_per_trigger` and `max_bytes_per_trigger` bound an epoch. `on_error`, `bad_records_max`
    and `record_bytes_max` are for lines and rows, as KafkaSource has them for records. See docs/files.md.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        csv.check_delimiter(self.csv_delimiter)
        if self.schema is not None:
            self.arrow_schema()

    def covers(self, name: str) -> bool:
        return name.startswith(position_of(self.name))

    def resolved(self, keep: Keep) -> Self:
        """The same source with the columns of the first file, where it names none."""
        if self.schema is not None:
            return self
        return replace(self, schema=keep(f"parquet schema of {self.name}"[:100], self._find_schema))

    def arrow_schema(self) -> pa.Schema:
        """The columns of its rows. Raises ConfigError where the schema is open, and for columns that the format cannot
        be parsed to."""
        if self.schema is None:
            raise ConfigError(
                "schema-not-resolved",
                f"the source {self.name!r} has no schema yet: `resolved` looks at the first file, or give it one",
            )
        found = schema_of(self.schema)
        if self.format != "parquet":
            (json if self.format == "json" else csv).check(found)
        return found

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> FilePlanner:
        return FilePlanner(self, frozen, until, journal)

    def read(self, split: Split, *, guarded: bool = False) -> Iterator[Part]:
        return read_parts(self, self.arrow_schema(), split.range, guarded=guarded)

    def bounded(self) -> BoundedFiles:
        """The files that there are at a flow's first start, and no others."""
        return BoundedFiles(self)

    @property
    def is_local(self) -> bool:
        return urlparse(self.path).scheme in ("", "file")

    def check_apart(self, root: str, own: str) -> None:
        place, others = _place(self.path), (_place(root), _place(own))
        is_read = any(other[: len(place)] == place and not any(map(is_hidden, other[len(place) :])) for other in others)
        if is_read or place[: len(others[1])] == others[1]:
            raise ConfigError(
                "checkpoint-in-source",
                f"the pipeline keeps its own files in {shown_url(root)}, which lies where the source {self.name!r}"
                f" reads, {shown_url(self.path)}: they would be read as records. Keep the checkpoint and the store in"
                " another folder, or below one whose name begins with a dot",
            )

    def exposure(self) -> str:
        """Why others on the network could read or change what is read; empty if they cannot."""
        place = urlparse(self.path)
        if self.is_local:
            return ""
        if place.scheme in ("s3", "gs", "gcs"):
            open_ = parse_qs(place.query).get("scheme") == ["http"]
            return "scheme=http in its URI: somebody on the network can read and change the files" if open_ else ""
        return f"{place.scheme}:// does not say whether its connections are TLS"

    def _find_schema(self) -> str:
        folder = Folder(self.path)
        files = sorted(folder.list(self.pattern).values(), key=lambda file: (file.modified_ns, file.name))
        if not files:
            raise ConfigError(
                "schema-not-inferred",
                f"{folder.path} has no file yet whose columns could be those of the source: give a schema",
            )
        return ddl_of(columns_of(folder, files[0].name))


@dataclass(frozen=True)
class BoundedFiles(BoundedSource):
    """The files of a source that are there when its first epoch is planned. The source's log has them."""

    source: FileSource

    def resolved(self, keep: Keep) -> BoundedFiles:
        return replace(self, source=self.source.resolved(keep))

    def planner(
        self, frozen: Positions | None = None, until: Positions | None = None, journal: Journal | None = None
    ) -> FilePlanner:
        return FilePlanner(self.source, frozen, until, journal, is_bounded=until is None)

    @property
    def is_local(self) -> bool:
        return self.source.is_local

    def check_apart(self, root: str, own: str) -> None:
        self.source.check_apart(root, own)


def _place(path: str) -> tuple[str, ...]:
    """A folder or file of this machine or of a URL, as what it is on and the names down to it."""
    url = urlparse(path)
    if url.scheme in ("", "file"):
        return ("", *Path(os.path.realpath(url.path if url.scheme else path)).parts)
    return (f"{url.scheme}://{url.hostname}", "/", *PurePosixPath(url.path).parts[1:])

"""The options of a file source, each said once: its name, type and default."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args
from urllib.parse import urlparse

from onefold.clients.options import in_one_form
from onefold.core.errors import ConfigError
from onefold.core.values.names import near
from onefold.core.values.plain import plain, shown_url
from onefold.sources.formats.record_options import RecordOptions

Format = Literal["parquet", "json", "csv"]

FORMATS: tuple[Format, ...] = get_args(Format)
_NAME_MAX = 200  # as many the checkpoint store has room for


@dataclass(frozen=True)
class FileSourceConfig(RecordOptions):
    """What planners and readers of a file source take. `FileSource` describes the options."""

    path: str = field(repr=False)  # a URI may hold a password
    _: KW_ONLY
    format: Format
    schema: str | None = None
    name: str = ""
    pattern: str = "*"
    settle_s: float = 0.0
    max_files_per_trigger: int | None = None
    csv_header: bool = False
    csv_multiline: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path.strip():
            raise ConfigError(
                "option-value", f"path is a folder, a file, or a URI such as s3://bucket/in: {self.path!r}"
            )
        if "\0" in self.path or self.path.encode(errors="ignore").decode() != self.path:
            raise ConfigError("option-value", f"path is no name of a file in UTF-8: {plain(self.path)}")
        path = self.path if "://" in self.path else str(Path(self.path).absolute())
        place = urlparse(shown_url(path) if "://" in path else path)  # a name stands in positions and errors
        in_one_form(self, path=path, name=self.name or PurePosixPath(place.path).name or place.netloc)
        self._check()

    def _check(self) -> None:
        """Raise `ConfigError` for a value that makes no sense. Looks at no file."""
        if self.format not in FORMATS:
            raise ConfigError(
                "option-value",
                f"format is one of {', '.join(FORMATS)}, not {self.format!r}{near(str(self.format), FORMATS)}",
            )
        if not 0 < len(self.name) <= _NAME_MAX or "/" in self.name or "#" in self.name:
            raise ConfigError(
                "option-value",
                f"name stands in the source's positions: no / and no #, {_NAME_MAX} characters at most, not"
                f" {self.name!r}",
            )
        if self.format != "parquet" and self.schema is None:
            raise ConfigError(
                "schema-missing",
                f"format={self.format} needs a schema, such as schema='id long, at timestamp'",
            )
        if self.format != "csv" and (self.csv_delimiter != "," or self.csv_header or self.csv_multiline):
            raise ConfigError("options-conflict", "csv_delimiter, csv_header and csv_multiline go with format='csv'")
        if not self.settle_s >= 0:
            raise ConfigError("option-value", f"settle_s is a time of 0 or more, not {self.settle_s!r}")
        self.check_records("max_files_per_trigger")

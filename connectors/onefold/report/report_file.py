"""The file of a report: that it can be written shows before the work begins; and it is there whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from onefold.core import ConfigError


class ReportFile:
    """Raises ConfigError where no file can be made there."""

    def __init__(self, path: Path, what: str = "report") -> None:
        self._what = what
        self.path = Path(os.path.realpath(path))  # a link stays one
        self._beside = self.path.with_name(f".onefold-{uuid.uuid4().hex}.html")
        try:
            if self.path.exists() and not self.path.is_file():
                raise FileExistsError(None, "what is there is no file")
            self._beside.touch(exist_ok=False)
            self._beside.unlink()
        except OSError as error:
            raise ConfigError(
                "report-not-writable",
                f"the {what} {self.path} could not be written: {error.strerror}. Nothing was begun. Name a file in a"
                " folder that is there, and that this user may write to",
            ) from error

    def write(self, page: str) -> str:
        """Says where it is, or why it is not there: the verdict stands without it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)  # a run may have emptied its folder
            self._beside.write_text(page, encoding="utf-8")
            self._beside.replace(self.path)
        except OSError as error:
            self._beside.unlink(missing_ok=True)
            return f"the {self._what} {self.path} could not be written: {error.strerror}"
        return f"The {self._what}: {self.path}"

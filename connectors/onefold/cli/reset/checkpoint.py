"""A query's checkpoint directory, which `onefold reset` removes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from onefold.core import ConfigError

__all__ = ["CheckpointDirectory"]

_SPARKS = {"commits", "metadata", "offsets", "sources", "state"}


@dataclass(frozen=True, slots=True)
class CheckpointDirectory:
    """What a definition calls its checkpoint. One that is not of this machine is left where it is."""

    text: str

    @property
    def is_elsewhere(self) -> bool:
        return urlparse(self.text).scheme not in ("", "file")

    def found(self) -> Iterator[str]:
        """Its line of the plan, where there is one here. Raises ConfigError for what is no checkpoint."""
        if self.is_elsewhere or not os.path.lexists(self._path):
            return
        if self._path.is_symlink() or not self._path.is_dir():
            raise ConfigError(
                "not-a-checkpoint",
                f"the checkpoint {self._path} is a link or a file: nothing was removed. Name the directory itself",
            )
        if not all(os.access(each, os.R_OK | os.W_OK | os.X_OK) for each in (self._path, self._path.parent)):
            raise ConfigError(
                "checkpoint-not-removed",
                f"this user may not remove the checkpoint {self._path}: nothing was removed. Run the command as its"
                " owner",
            )
        if strange := sorted({each.name for each in self._path.iterdir() if not each.name.startswith(".")} - _SPARKS):
            raise ConfigError(
                "not-a-checkpoint",
                f"the checkpoint {self._path} has {strange[0]!r}, which no checkpoint of Spark's has: nothing was"
                " removed. Is the definition's checkpoint right?",
            )
        yield f"the checkpoint directory {self._path}"

    def remove(self) -> None:
        if self.is_elsewhere or not self._path.exists():
            return
        try:
            shutil.rmtree(self._path)
        except OSError as error:
            raise ConfigError(
                "checkpoint-not-removed",
                f"the checkpoint {self._path} could not be removed: {error}. The rest is reset: remove it yourself",
            ) from error

    @property
    def _path(self) -> Path:
        return Path("/" + bare.lstrip("/") if (bare := self.text.removeprefix("file:")).startswith("//") else bare)

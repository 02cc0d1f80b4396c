"""A query's checkpoint directory, which `onefold reset` removes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from onefold.core import ConfigError
from onefold.operate.savepoint.savepoint import REPLACED, RESTORING

__all__ = ["CheckpointDirectory"]

_SPARKS = {"commits", "metadata", "offsets", "sources", "state"}


@dataclass(frozen=True, slots=True)
class CheckpointDirectory:
    """What a pipeline calls its checkpoint. One that is not of this machine is left where it is."""

    text: str

    @property
    def is_elsewhere(self) -> bool:
        return urlparse(self.text).scheme not in ("", "file")

    def found(self) -> Iterator[str]:
        """A line of the plan for each directory that is here. Raises ConfigError for what is no checkpoint."""
        for path in self._here():
            _check(path)
            yield f"the checkpoint directory {path}"

    def remove(self) -> None:
        for path in self._here():
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise ConfigError(
                    "checkpoint-not-removed",
                    f"the checkpoint {path} could not be removed: {error}. The rest is reset: remove it yourself",
                ) from error

    def _here(self) -> list[Path]:
        """The directory, and those that a restore of a savepoint left beside it when it was cut short."""
        if self.is_elsewhere:
            return []
        bare = self.text.rstrip("/").removeprefix("file:")
        root = "/" + bare.lstrip("/") if bare.startswith("//") else bare
        return [path for end in ("", RESTORING, REPLACED) if os.path.lexists(path := Path(root + end))]


def _check(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        raise ConfigError(
            "not-a-checkpoint",
            f"the checkpoint {path} is a link or a file: nothing was removed. Name the directory itself",
        )
    if not all(os.access(each, os.R_OK | os.W_OK | os.X_OK) for each in (path, path.parent)):
        raise ConfigError(
            "checkpoint-not-removed",
            f"this user may not remove the checkpoint {path}: nothing was removed. Run the command as its owner",
        )
    if strange := sorted({each.name for each in path.iterdir() if not each.name.startswith(".")} - _SPARKS):
        raise ConfigError(
            "not-a-checkpoint",
            f"the checkpoint {path} has {strange[0]!r}, which no checkpoint of Spark's has: nothing was removed. Is"
            " the pipeline's checkpoint right?",
        )

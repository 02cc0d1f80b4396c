"""A query's checkpoint directory on this machine, which a move of the positions sets aside."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from urllib.parse import urlparse

from onefold.core import ConfigError

__all__ = ["LocalCheckpoint"]


class LocalCheckpoint:
    """What a pipeline calls its checkpoint. One that is elsewhere can be neither read nor renamed from here."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_elsewhere = urlparse(text).scheme not in ("", "file")
        bare = text.removeprefix("file:")
        self.path = Path("/" + bare.lstrip("/") if bare.startswith("//") else bare)
        self.went_to: Path | None = None

    @property
    def is_there(self) -> bool:
        return not self.is_elsewhere and self.path.exists()

    @property
    def keeps_state(self) -> bool:
        """Whether the query has a state store: an aggregation, a join, a deduplication."""
        state = self.path / "state"
        return self.is_there and state.is_dir() and any(state.iterdir())

    def read(self, path: str) -> str | None:
        file = Path(path)
        return file.read_text() if file.exists() else None

    def names(self, folder: str) -> list[str]:
        found = Path(folder)
        return [path.name for path in found.iterdir()] if found.exists() else []

    def set_aside(self, epoch: int) -> None:
        """Rename it, so that its name says up to which epoch it is; what is not there stays so. Raises ConfigError."""
        if not self.is_there:
            return
        if self.path.is_symlink():
            raise ConfigError(
                "checkpoint-not-set-aside",
                f"the checkpoint {self.path} is a link, and only its directory can be renamed. Nothing was moved. Name"
                " the directory itself",
            )
        base = self.path.with_name(f"{self.path.name}.until-epoch-{epoch}")
        names = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in count(1))
        to = next(name for name in names if not os.path.lexists(name))
        try:
            self.path.rename(to)
        except OSError as error:
            raise ConfigError(
                "checkpoint-not-set-aside",
                f"the checkpoint {self.path} could not be renamed to {to.name}: {error.strerror}. Nothing was moved."
                " Run the command as the owner of its directory",
            ) from error
        self.went_to = to

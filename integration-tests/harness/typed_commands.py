"""Commands in this process, as they are typed into a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onefold.cli import entry

__all__ = ["TypedCommands"]


class TypedCommands:
    """Runs commands in a folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._captured = folder, patch, captured
        patch.chdir(folder)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Its exit code, and what it wrote to stdout and to stderr."""
        self._captured.readouterr()
        self._patch.setattr(sys, "argv", ["onefold", *arguments])
        try:
            entry.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self._captured.readouterr()
        assert "Traceback" not in out + err, err
        return code, out, err
